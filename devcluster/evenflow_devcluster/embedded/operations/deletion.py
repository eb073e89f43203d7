"""Deleting: preconditions, grace periods, finalizers, and what goes with a namespace or a definition."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from evenflow_devcluster.embedded.errors import StatusError, bad_request, conflict, forbidden, not_found
from evenflow_devcluster.embedded.jsonvalues import Clock, Object, dig, timestamp
from evenflow_devcluster.embedded.kinds.definitions import CLEANUP_FINALIZER, CRDS
from evenflow_devcluster.embedded.kinds.finalizers import FOREGROUND, ORPHAN
from evenflow_devcluster.embedded.kinds.pods import ended
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.operations.changes import releasable
from evenflow_devcluster.embedded.schema.structural import builtin
from evenflow_devcluster.embedded.schema.validation import validate
from evenflow_devcluster.embedded.store.memory import Key, Store, key_of

_PROTECTED_NAMESPACES = ("default", "kube-system", "kube-public")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """meta/v1 DeleteOptions; `grace` in seconds."""

    grace: int | None = None
    uid: str | None = None
    version: str | None = None
    propagation: str | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.propagation not in (None, "Background", "Foreground", "Orphan"):
            raise bad_request(f"propagationPolicy: {self.propagation!r} must be Background, Foreground or Orphan")
        if self.grace is not None and self.grace < 0:
            raise bad_request(f"gracePeriodSeconds: {self.grace} must be at least 0")


def options_from(body: Mapping[str, Any]) -> DeleteOptions:
    """Raises 400 for a body that isn't DeleteOptions."""
    if body.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"the body of a DELETE is DeleteOptions, not {body['kind']!r}")
    given = {key: value for key, value in body.items() if value is not None}
    for error in validate(given, builtin("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")):
        raise bad_request(f"DeleteOptions: {error}")
    preconditions = body.get("preconditions") or {}
    propagation = body.get("propagationPolicy")
    if propagation is None and body.get("orphanDependents") is not None:
        propagation = "Orphan" if body["orphanDependents"] else "Background"
    grace = body.get("gracePeriodSeconds")
    return DeleteOptions(
        grace, preconditions.get("uid"), preconditions.get("resourceVersion"), propagation, bool(body.get("dryRun"))
    )


class Deleter:
    def __init__(self, store: Store, registry: Registry, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock

    def delete(self, resource: Resource, key: Key, options: DeleteOptions) -> tuple[Object, bool]:
        """The object as it is now or was last, and whether it is gone."""
        record = self._store.get(resource.qualified, key)
        if record is None:
            raise not_found(resource.qualified, key[1])
        live = record.object
        self._check(resource, live, options)
        finalizers = self._finalizers(resource, live, options)
        grace = self._grace(resource, live, options)
        holds_content = resource.qualified == "namespaces" and bool(dig(live, "spec", "finalizers"))
        if not finalizers and not grace and not holds_content:
            if options.dry_run:
                return live, True
            return self._store.remove(resource.qualified, key).object, True
        metadata = dict(live["metadata"])
        if "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = timestamp(self._clock() + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
            if resource.generation:
                metadata["generation"] = metadata.get("generation", 0) + 1
        elif grace < metadata.get("deletionGracePeriodSeconds", 0):
            metadata["deletionTimestamp"] = timestamp(self._clock() + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        marked = {**live, "metadata": metadata}
        if resource.qualified == "namespaces":
            marked["status"] = {**(live.get("status") or {}), "phase": "Terminating"}
        if marked == live or options.dry_run:
            return marked, False
        return self._store.put(resource.qualified, key, marked).object, False

    def _check(self, resource: Resource, live: Object, options: DeleteOptions) -> None:
        metadata = live["metadata"]
        name = metadata["name"]
        for word, wanted, found in (
            ("UID", options.uid, metadata["uid"]),
            ("ResourceVersion", options.version, metadata["resourceVersion"]),
        ):
            if wanted and wanted != found:
                why = f"Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {found}"
                raise conflict(resource.qualified, name, why)
        if resource.qualified == "namespaces" and name in _PROTECTED_NAMESPACES:
            raise forbidden("namespaces", name, "this namespace may not be deleted")

    def _finalizers(self, resource: Resource, live: Object, options: DeleteOptions) -> list[str]:
        found = list(live["metadata"].get("finalizers") or ())
        if options.propagation is not None and resource.qualified not in ("namespaces", CRDS):
            found = [name for name in found if name not in (ORPHAN, FOREGROUND)]
            if options.propagation == "Orphan":
                found.append(ORPHAN)
            elif options.propagation == "Foreground":
                found.append(FOREGROUND)
        if resource.qualified == CRDS and CLEANUP_FINALIZER not in found and self._instances(live["metadata"]["name"]):
            found.append(CLEANUP_FINALIZER)
        return found

    def _grace(self, resource: Resource, live: Object, options: DeleteOptions) -> int:
        """Seconds the object stays for its kubelet; only a pod that runs on a node has any."""
        if resource.qualified != "pods" or not dig(live, "spec", "nodeName") or ended(live):
            return 0
        wanted = options.grace
        if wanted is None:
            wanted = dig(live, "spec", "terminationGracePeriodSeconds")
        if wanted is None:
            wanted = 30
        pending = live["metadata"].get("deletionGracePeriodSeconds")
        return int(wanted if pending is None else min(wanted, pending))

    def _instances(self, qualified: str) -> list[Object]:
        return [record.object for record in self._store.records(qualified)]

    # --- what goes with its container ---------------------------------------------------------------------------

    def purge_namespace(self, namespace: str) -> None:
        """Delete what is left in a terminating namespace, and the namespace once it is empty. Idempotent."""
        left = 0
        for resource in self._registry.stored():
            if not resource.namespaced:
                continue
            for record in list(self._store.records(resource.qualified, namespace)):
                left += not self._gone(resource, record.object)
        record_now = self._store.get("namespaces", ("", namespace))
        if left or record_now is None:
            return
        spec = {key: value for key, value in record_now.object["spec"].items() if key != "finalizers"}
        released = {**record_now.object, "spec": spec, "metadata": dict(record_now.object["metadata"])}
        if releasable(released):
            self._store.remove("namespaces", ("", namespace), released)
        elif record_now.object["spec"] != spec:
            self._store.put("namespaces", ("", namespace), released)

    def purge_definition(self, name: str) -> None:
        """Delete the objects of a definition that is being deleted, and the definition after them. Idempotent."""
        resource = self._registry.named(name)
        if resource is not None:
            for obj in self._instances(name):
                self._gone(resource, obj)
        record = self._store.get(CRDS, ("", name))
        if record is None or self._instances(name):
            return
        metadata = dict(record.object["metadata"])
        finalizers = [entry for entry in metadata.get("finalizers") or () if entry != CLEANUP_FINALIZER]
        metadata["finalizers"] = finalizers
        if not finalizers:
            self._store.remove(CRDS, ("", name), {**record.object, "metadata": metadata})

    def _gone(self, resource: Resource, obj: Object) -> bool:
        key = key_of(obj)
        if self._store.get(resource.qualified, key) is None:
            return True
        if "deletionTimestamp" in obj["metadata"]:
            return False
        try:
            return self.delete(resource, key, DeleteOptions())[1]
        except StatusError as error:
            if error.code == 404:
                return True
            raise
