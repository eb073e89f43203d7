"""What the events have told so far about some resources.

Listing through the API copies every object, which costs the square of a load test's pods when done per event; these
objects are the store's own and must not be changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import StoreEvent

View = Mapping[str, Any]


class Mirror:
    def __init__(self, resources: Iterable[str]) -> None:
        self._objects: dict[str, dict[str, dict[str, View]]] = {resource: {} for resource in resources}

    def fill(self, resource: str, objects: Iterable[View]) -> None:
        for obj in objects:
            metadata = obj["metadata"]
            self._objects[resource].setdefault(metadata.get("namespace", ""), {})[metadata["name"]] = obj

    def apply(self, event: StoreEvent) -> View | None:
        """Take a write in; returns the object as it was before, None if it is new or of a resource not held."""
        spaces = self._objects.get(event.resource)
        if spaces is None:
            return None
        metadata = event.object["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if event.type != "DELETED":
            space = spaces.setdefault(namespace, {})
            before = space.get(name)
            space[name] = event.object
            return before
        space = spaces.get(namespace, {})
        before = space.pop(name, None)
        if not space:
            spaces.pop(namespace, None)
        return before

    def get(self, resource: str, namespace: str, name: str) -> View | None:
        return self._objects[resource].get(namespace, {}).get(name)

    def values(self, resource: str, namespace: str | None = None) -> Iterator[View]:
        """In the order of their creation within a namespace."""
        if namespace is not None:
            yield from self._objects[resource].get(namespace, {}).values()
            return
        for space in self._objects[resource].values():
            yield from space.values()
