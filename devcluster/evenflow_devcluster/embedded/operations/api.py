"""The API without HTTP: every operation on every resource, as the server, the controllers and tests call it."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.errors import StatusError, bad_request, invalid, not_found, unsupported_media_type
from evenflow_devcluster.embedded.jsonvalues import Clock, Object, copied
from evenflow_devcluster.embedded.kinds.definitions import CRDS, defined_resources, with_status
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.kinds.resources import CelTwin, Resource
from evenflow_devcluster.embedded.kinds.services import AddressPool, allocate, release
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.deletion import DeleteOptions, Deleter
from evenflow_devcluster.embedded.operations.lifecycle import Lifecycle
from evenflow_devcluster.embedded.operations.writes import Writer
from evenflow_devcluster.embedded.patching.json_patches import json_patch, merge_patch
from evenflow_devcluster.embedded.patching.media_types import APPLY, JSON_PATCH, MERGE, STRATEGIC, accepted
from evenflow_devcluster.embedded.patching.strategic import strategic_merge
from evenflow_devcluster.embedded.schema.pruning import apply_defaults
from evenflow_devcluster.embedded.schema.structural import Schema
from evenflow_devcluster.embedded.store.memory import Key, Record, Store, key_of


class Api:
    def __init__(self, store: Store, clock: Clock, rng: random.Random, twins: Mapping[str, CelTwin]) -> None:
        self.store = store
        self.clock = clock
        self.registry = Registry(twins)
        self.writer = Writer(store, self.registry, clock, rng)
        self._deleter = Deleter(store, self.registry, clock)
        self._addresses = AddressPool(random.SystemRandom())
        self._twins = twins
        self._unsubscribe = [
            store.subscribe(self._clean_up),
            Lifecycle(store, self.registry, self.writer, self._deleter, clock).start(),
        ]

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self.store.end_watches()

    # --- read ---------------------------------------------------------------------------------------------------

    def record(self, resource: Resource, key: Key) -> Record:
        found = self.store.get(resource.qualified, key)
        if found is None:
            raise not_found(resource.qualified, key[1])
        return self.viewed(resource, found)

    def viewed(self, resource: Resource, record: Record) -> Record:
        """The record as a version of the resource shows it; the versions of a definition differ in name only."""
        if record.object["apiVersion"] == resource.api_version:
            return record
        return Record({**record.object, "apiVersion": resource.api_version})

    # --- write --------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: Object, caller: Caller) -> Object:
        return self._insert(resource, self.writer.prepare(resource, namespace, body, caller), caller)

    def _insert(self, resource: Resource, obj: Object, caller: Caller) -> Object:
        key = key_of(obj)
        if resource.qualified == "services" and self.store.get("services", key) is None and not caller.dry_run:
            errors = list(allocate(obj, self._addresses))
            if errors:
                raise invalid(resource.kind, resource.group, key[1], errors)
        if resource.qualified == CRDS:
            return self._define(resource, obj, caller)
        return self.writer.insert(resource, obj, caller)

    def _define(self, resource: Resource, definition: Object, caller: Caller) -> Object:
        name = definition["metadata"]["name"]
        served = defined_resources(definition, self._twins)
        clash = self.registry.clash(name, served)
        stored = self.writer.insert(resource, with_status(definition, clash, self.writer.now()), caller)
        if not caller.dry_run and clash is None:
            self.registry.install(name, served)
        return stored

    def update(self, resource: Resource, key: Key, body: Object, caller: Caller, *, subresource: str = "") -> Object:
        return self._change(resource, key, lambda _: body, caller, subresource, replace=True)

    def patch(
        self, resource: Resource, key: Key, kind: str, patch: Any, caller: Caller, *, subresource: str = ""
    ) -> tuple[Object, bool]:
        """The object as stored, and whether the patch created it (server-side apply does)."""
        if kind == APPLY:
            if not isinstance(patch, dict):
                raise bad_request("the body of a server-side apply is one object")
            return self._apply(resource, key, patch, caller, subresource)
        build = self.patcher(resource, kind, patch)
        return self._change(resource, key, build, caller, subresource), False

    def patcher(self, resource: Resource, kind: str, patch: Any) -> Callable[[Object], Object]:
        """The change that a patch of media type `kind` makes. Raises 415 for a type that the resource doesn't take."""
        if kind == MERGE:
            if not isinstance(patch, dict):
                raise bad_request("a merge patch of an object is an object")
            return lambda live: merge_patch(live, patch)
        if kind == JSON_PATCH:
            return lambda live: _object(json_patch(live, patch))
        if kind == STRATEGIC and not resource.custom:
            return lambda live: strategic_merge(live, patch, resource.schema)
        raise unsupported_media_type(kind, accepted(custom=resource.custom))

    def _apply(
        self, resource: Resource, key: Key, config: Object, caller: Caller, subresource: str
    ) -> tuple[Object, bool]:
        if self.store.get(resource.qualified, key) is None:
            if subresource:
                raise not_found(resource.qualified, key[1])
            named = {**config, "metadata": {"name": key[1], **(config.get("metadata") or {})}}
            obj = self.writer.apply_create(resource, key[0], named, caller)
            return self._insert(resource, obj, caller), True
        stored = self.writer.apply(resource, key, config, caller, subresource=subresource)
        self._changed(resource, stored, caller)
        return stored, False

    def _change(
        self,
        resource: Resource,
        key: Key,
        build: Callable[[Object], Object],
        caller: Caller,
        subresource: str,
        replace: bool = False,
    ) -> Object:
        stored = self.writer.update(resource, key, build, caller, subresource=subresource, replace=replace)
        self._changed(resource, stored, caller)
        return stored

    def _changed(self, resource: Resource, stored: Object, caller: Caller) -> None:
        """A definition that changed serves its new schema from now on."""
        if resource.qualified != CRDS or caller.dry_run:
            return
        name = stored["metadata"]["name"]
        if self.store.get(CRDS, ("", name)) is None:
            return
        served = defined_resources(stored, self._twins)
        clash = self.registry.clash(name, served)
        now = with_status(stored, clash, self.writer.now())
        if now["status"] != stored.get("status"):
            self.store.put(CRDS, ("", name), {**now, "metadata": dict(now["metadata"])})
        if clash is None:
            self.registry.install(name, served)
            storage = self.registry.named(name)
            if storage is not None:
                schema = storage.schema
                self.store.rewrite(name, lambda obj: _defaulted(obj, schema))

    def _clean_up(self, event: StoreEvent) -> None:
        """A service that is gone gives its address back; a definition that is gone takes its API along."""
        if event.type != "DELETED":
            return
        if event.resource == "services":
            release(event.object, self._addresses)
        elif event.resource == CRDS:
            name = event.object["metadata"]["name"]
            self.registry.install(name, ())
            self.store.drop(name)

    def delete(self, resource: Resource, key: Key, options: DeleteOptions) -> tuple[Object, bool]:
        return self._deleter.delete(resource, key, options)


def _object(value: Any) -> Object:
    if not isinstance(value, dict):
        raise StatusError(422, "Invalid", "a JSON patch must leave an object")
    return value


def _defaulted(obj: Object, schema: Schema) -> Object:
    fresh = copied(obj)
    apply_defaults(fresh, schema)
    return fresh
