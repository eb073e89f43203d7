"""The controllers' view of the API: `ControllerApi` on the in-memory store, without HTTP."""

from collections.abc import Callable

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.errors import no_such_path
from evenflow_devcluster.embedded.jsonvalues import Object, copied
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.deletion import DeleteOptions
from evenflow_devcluster.embedded.operations.pod_actions import bind, evict
from evenflow_devcluster.embedded.operations.scale import patch_scale
from evenflow_devcluster.embedded.patching.media_types import MERGE


class LocalApi:
    """Implements `ControllerApi`. What it returns belongs to the caller: it is a copy."""

    def __init__(self, api: Api, manager: str = "embedded-controllers") -> None:
        self._api = api
        self._caller = Caller(manager=manager)

    def _resource(self, qualified: str) -> Resource:
        found = self._api.registry.named(qualified)
        if found is None:
            raise no_such_path()
        return found

    def list(self, resource: str, namespace: str | None = None) -> list[Object]:
        self._resource(resource)
        return [copied(record.object) for record in self._api.store.records(resource, namespace)]

    def get(self, resource: str, namespace: str | None, name: str) -> Object | None:
        self._resource(resource)
        record = self._api.store.get(resource, (namespace or "", name))
        return copied(record.object) if record else None

    def create(self, resource: str, namespace: str | None, body: Object) -> Object:
        """Also `pods/binding` and `pods/eviction`, with the pod's name in the body's metadata."""
        parent, _, subresource = resource.partition("/")
        if subresource:
            key = (namespace or "", str(body["metadata"]["name"]))
            if parent == "pods" and subresource == "binding":
                return bind(self._api, key, body, self._caller)
            if parent == "pods" and subresource == "eviction":
                return evict(self._api, key, body, self._caller)
            raise no_such_path()
        return copied(self._api.create(self._resource(resource), namespace or "", body, self._caller))

    def merge_patch(
        self, resource: str, namespace: str | None, name: str, patch: Object, *, subresource: str | None = None
    ) -> Object:
        """`subresource` is status, scale, or binding (the patch then sets spec.nodeName of an unbound pod)."""
        target = self._resource(resource)
        key = (namespace or "", name)
        if subresource == "scale":
            return patch_scale(self._api, target, key, MERGE, patch, self._caller)
        if subresource == "binding":
            target_node = {"kind": "Node", "name": (patch.get("spec") or {}).get("nodeName")}
            bind(self._api, key, {"metadata": {"name": name}, "target": target_node}, self._caller)
            return copied(self._api.record(target, key).object)
        if subresource not in (None, "status"):
            raise no_such_path()
        stored, _ = self._api.patch(target, key, MERGE, patch, self._caller, subresource=subresource or "")
        return copied(stored)

    def delete(
        self, resource: str, namespace: str | None, name: str, *, uid: str | None = None, propagation: str | None = None
    ) -> None:
        target = self._resource(resource)
        self._api.delete(target, (namespace or "", name), DeleteOptions(uid=uid, propagation=propagation))

    def subscribe(self, receive: Callable[[StoreEvent], None]) -> Callable[[], None]:
        return self._api.store.subscribe(receive)
