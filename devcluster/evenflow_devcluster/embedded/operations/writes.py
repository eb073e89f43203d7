"""Creating and changing objects: the path every write takes, whoever makes it."""

import random
import uuid
from collections.abc import Callable

from evenflow_devcluster.embedded.errors import (
    FieldError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    modified,
    not_found,
)
from evenflow_devcluster.embedded.jsonvalues import Clock, Object, copied, timestamp
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.changes import (
    finalizer_errors,
    releasable,
    same_object,
    same_owners,
    specified,
    unwritten,
)
from evenflow_devcluster.embedded.operations.decoding import check_applied, checked_envelope, clean
from evenflow_devcluster.embedded.patching import ownership
from evenflow_devcluster.embedded.patching.apply import apply
from evenflow_devcluster.embedded.patching.fieldsets import field_values
from evenflow_devcluster.embedded.patching.ownership import APPLY, UPDATE, Managed, Owner
from evenflow_devcluster.embedded.schema.pruning import drop_nulls
from evenflow_devcluster.embedded.schema.validation import MAX_ERRORS, validate
from evenflow_devcluster.embedded.store.memory import Key, Store, key_of
from evenflow_devcluster.embedded.syntax.naming import generated_name, metadata_errors, name_errors

_SYSTEM_METADATA = (
    "uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "name", "namespace",
)  # fmt: skip
_UPDATE_NEEDS_VERSION = frozenset({"leases.coordination.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"})


class Writer:
    """Writes to the store after stamping, defaulting, pruning and validation; raises `StatusError` as the API would."""

    def __init__(self, store: Store, registry: Registry, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._rng = rng

    def now(self) -> str:
        return timestamp(self._clock())

    def live(self, resource: Resource, key: Key) -> Object:
        record = self._store.get(resource.qualified, key)
        if record is None:
            raise not_found(resource.qualified, key[1])
        return record.object

    # --- create -----------------------------------------------------------------------------------------------

    def prepare(
        self, resource: Resource, namespace: str, body: Object, caller: Caller, *, owner: Owner | None = None
    ) -> Object:
        """A new object, complete and valid but not stored yet."""
        obj = {"apiVersion": "", "kind": "", **copied(body)}
        metadata = checked_envelope(resource, obj, namespace, None)
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        self._name(resource, metadata, namespace)
        self._namespace_open(resource, namespace, metadata["name"])
        clean(resource, obj, caller)
        strategy = self._registry.strategy(resource)
        strategy.prepare_create(obj)
        strategy.default(obj)
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
            metadata.pop(key, None)
        metadata["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        metadata["creationTimestamp"] = now = self.now()
        if resource.generation:
            metadata["generation"] = 1
        else:
            metadata.pop("generation", None)
        name = metadata["name"]
        errors = list(name_errors(name, "subdomain" if resource.custom else strategy.name_rule))
        errors += self._errors(resource, obj)
        errors = errors or [*strategy.validate(obj), *strategy.validate_create(obj)]
        if errors:
            raise invalid(resource.kind, resource.group, name, errors[:MAX_ERRORS])
        owner = owner or Owner(caller.manager, UPDATE)
        fields = field_values(obj, resource.schema, skip=unwritten(resource, obj, ""))
        if owner.operation == UPDATE:
            managed = ownership.after_update({}, owner, {}, fields, resource.api_version, now)
            metadata["managedFields"] = ownership.write(managed)
        obj["apiVersion"] = resource.stored_api_version
        return obj

    def insert(self, resource: Resource, obj: Object, caller: Caller) -> Object:
        key = key_of(obj)
        if self._store.get(resource.qualified, key) is not None:
            raise already_exists(resource.qualified, key[1])
        return obj if caller.dry_run else self._store.put(resource.qualified, key, obj).object

    def _name(self, resource: Resource, metadata: Object, namespace: str) -> None:
        if metadata.get("name"):
            return
        prefix = metadata.get("generateName")
        if not isinstance(prefix, str) or not prefix:
            error = FieldError("metadata.name", "name or generateName is required", "Required")
            raise invalid(resource.kind, resource.group, "", [error])
        for _ in range(8):
            metadata["name"] = generated_name(prefix, self._rng)
            if self._store.get(resource.qualified, (namespace, metadata["name"])) is None:
                return

    def _namespace_open(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        space = self._store.get("namespaces", ("", namespace))
        if space is None:
            raise not_found("namespaces", namespace)
        if "deletionTimestamp" in space.object["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise forbidden(resource.qualified, name, why, [cause])

    def _errors(self, resource: Resource, obj: Object) -> list[FieldError]:
        return validate(obj, resource.schema) or list(metadata_errors(obj["metadata"]))

    # --- update -----------------------------------------------------------------------------------------------

    def update(
        self,
        resource: Resource,
        key: Key,
        build: Callable[[Object], Object],
        caller: Caller,
        *,
        subresource: str = "",
        replace: bool = False,
        trusted: bool = False,
    ) -> Object:
        """Store what `build` makes of the live object (which it must not change); returns the object as stored.

        `replace`: the body came whole (PUT); `trusted`: the server's own subresources may change frozen fields.
        """
        live = self.live(resource, key)
        shown = {**live, "apiVersion": resource.api_version}
        new = copied(build(shown))
        metadata = checked_envelope(resource, new, key[0], key[1])
        needs_version = replace and (resource.custom or resource.qualified in _UPDATE_NEEDS_VERSION)
        if needs_version and not metadata.get("resourceVersion"):
            error = FieldError("metadata.resourceVersion", "must be specified for an update", value=0)
            raise invalid(resource.kind, resource.group, key[1], [error])
        given = metadata.get("managedFields")
        clean(resource, new, caller, patched=not replace)
        metadata = self._checked(resource, live, new, subresource, replace=replace)
        if given is not None and given != live["metadata"].get("managedFields"):
            managed = ownership.read(given)
        else:
            managed = ownership.read(live["metadata"].get("managedFields"))
        owner = Owner(caller.manager, UPDATE, subresource)

        def owned() -> Managed:
            if subresource == "scale" and not _counts_replicas(resource, managed):
                return managed
            skip = unwritten(resource, new, subresource)
            old_fields = field_values(live, resource.schema, skip=skip)
            new_fields = field_values(new, resource.schema, skip=skip)
            return ownership.after_update(managed, owner, old_fields, new_fields, resource.api_version, self.now())

        return self._store_update(resource, key, live, new, subresource, caller, owned, trusted)

    def apply(self, resource: Resource, key: Key, config: Object, caller: Caller, *, subresource: str = "") -> Object:
        """Server-side apply onto a live object; 409 names the managers in conflict."""
        live = self.live(resource, key)
        wanted = copied(config)
        given = checked_envelope(resource, wanted, key[0], key[1])
        if given.get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        drop_nulls(wanted)
        check_applied(resource, wanted, key[1])
        managed = ownership.read(live["metadata"].get("managedFields"))
        new, owned = apply(
            {**live, "apiVersion": resource.api_version},
            wanted,
            resource.schema,
            managed,
            Owner(caller.manager, APPLY, subresource),
            api_version=resource.api_version,
            now=self.now(),
            force=caller.force,
            skip=unwritten(resource, wanted, subresource),
        )
        self._checked(resource, live, new, subresource)
        return self._store_update(resource, key, live, new, subresource, caller, lambda: owned, False)

    def apply_create(self, resource: Resource, namespace: str, config: Object, caller: Caller) -> Object:
        """The object that a first server-side apply makes, not stored yet; the applier owns what it named."""
        owner = Owner(caller.manager, APPLY)
        wanted = copied(config)
        drop_nulls(wanted)
        if (wanted.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        check_applied(resource, wanted, wanted["metadata"]["name"])
        obj = self.prepare(resource, namespace, wanted, caller, owner=owner)
        paths = frozenset(field_values(wanted, resource.schema, skip=unwritten(resource, wanted, "")))
        held = {owner: ownership.Ownership(paths, resource.api_version, self.now())}
        obj["metadata"]["managedFields"] = ownership.write(held)
        return obj

    def _checked(
        self, resource: Resource, live: Object, new: Object, subresource: str, *, replace: bool = False
    ) -> Object:
        """Preconditions in the body, then the metadata that only the server writes.

        Another object's uid is a failed precondition in a PUT, a changed field in a patch, and not looked at where
        nothing but the status is taken: in a patch of a custom resource's /status.
        """
        metadata: Object = new["metadata"]
        current = live["metadata"]
        version = metadata.get("resourceVersion")
        if version and version != current["resourceVersion"]:
            raise modified(resource.qualified, current["name"])
        uid = metadata.get("uid")
        if uid and uid != current["uid"] and replace:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {current['uid']}"
            raise conflict(resource.qualified, current["name"], why)
        if uid and uid != current["uid"] and not (resource.custom and subresource == "status"):
            error = FieldError("metadata.uid", "field is immutable", value=uid)
            raise invalid(resource.kind, resource.group, current["name"], [error])
        for field in _SYSTEM_METADATA:
            if field in current:
                metadata[field] = current[field]
            else:
                metadata.pop(field, None)
        metadata["resourceVersion"] = current["resourceVersion"]
        return metadata

    def _store_update(
        self,
        resource: Resource,
        key: Key,
        live: Object,
        new: Object,
        subresource: str,
        caller: Caller,
        owned: Callable[[], Managed],
        trusted: bool,
    ) -> Object:
        strategy = self._registry.strategy(resource)
        strategy.prepare_update(new, live, subresource)
        strategy.default(new)
        errors = self._errors(resource, new) or list(strategy.validate(new))
        if not trusted and not errors:
            errors += strategy.validate_update(new, live, subresource)
        errors += finalizer_errors(new, live)
        if errors:
            raise invalid(resource.kind, resource.group, key[1], errors[:MAX_ERRORS])
        new["apiVersion"] = resource.stored_api_version
        metadata = new["metadata"]
        entries = ownership.write(owned())
        if same_object(new, live) and same_owners(entries, live["metadata"].get("managedFields")):
            return live
        metadata["managedFields"] = entries
        if not entries:
            del metadata["managedFields"]
        if resource.generation and subresource != "status" and specified(new) != specified(live):
            metadata["generation"] = metadata.get("generation", 0) + 1
        if caller.dry_run:
            return new
        if releasable(new):
            return self._store.remove(resource.qualified, key, new).object
        return self._store.put(resource.qualified, key, new).object


def _counts_replicas(resource: Resource, managed: Managed) -> bool:
    """Whether somebody owns the replicas; if nobody does, as after a server-side apply without them, /scale's writers
    leave no trace: an object without managedFields isn't tracked, and the Scale has only those of its replicas."""
    if resource.scale is None:
        return True
    path = tuple(f"f:{step}" for step in resource.scale.spec_replicas)
    return any(path in owned.paths for owned in managed.values())
