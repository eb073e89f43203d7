"""What the embedded controllers (scheduler, endpoint slices, garbage collector, …) may ask of the API server.

The controllers run in the server's process and event loop. Calls are synchronous, act on the in-memory store and raise
`StatusError` exactly where the HTTP API would answer that error. A resource is named as kubectl names it: `pods`,
`endpointslices.discovery.k8s.io`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from evenflow_devcluster.embedded.jsonvalues import Object


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """One committed write, in resourceVersion order; `object` must not be changed by the receiver."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    resource: str
    object: Mapping[str, Any]


class ControllerApi(Protocol):
    def list(self, resource: str, namespace: str | None = None) -> list[Object]: ...

    def get(self, resource: str, namespace: str | None, name: str) -> Object | None: ...

    def create(self, resource: str, namespace: str | None, body: Object) -> Object: ...

    def merge_patch(
        self, resource: str, namespace: str | None, name: str, patch: Object, *, subresource: str | None = None
    ) -> Object: ...

    def delete(
        self, resource: str, namespace: str | None, name: str, *, uid: str | None = None, propagation: str | None = None
    ) -> None: ...

    def subscribe(self, receive: Callable[[StoreEvent], None]) -> Callable[[], None]:
        """Call `receive` after every committed write, in the writer's stack; returns the function that unsubscribes."""
        ...
