"""Controllers on the real in-memory API, without HTTP and without waiting for wall-clock time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from evenflow_devcluster.embedded.controllers import Controllers
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.local import LocalApi
from evenflow_devcluster.embedded.store.memory import Store

Object = dict[str, Any]
NS = "default"


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> None:
        self.now += timedelta(**by)


class World:
    """An API with its controllers; after a change `settle` lets them do all they want to do."""

    def __init__(self, api: Api, controllers: Controllers, clock: Clock) -> None:
        self.server = api
        self._controllers = controllers
        self.api = LocalApi(api)
        self.clock = clock

    async def settle(self) -> None:
        """Until no controller has written anything for many turns of the event loop."""
        quiet, version = 0, self.server.store.version
        while quiet < 50:
            await asyncio.sleep(0)
            unchanged = self.server.store.version == version
            quiet = quiet + 1 if unchanged and self._controllers.idle else 0
            version = self.server.store.version

    async def create(self, resource: str, body: Object, namespace: str | None = NS) -> Object:
        created = self.api.create(resource, namespace, body)
        await self.settle()
        return created

    async def status(self, resource: str, name: str, status: Object, namespace: str | None = NS) -> None:
        self.api.merge_patch(resource, namespace, name, {"status": status}, subresource="status")
        await self.settle()

    async def delete(self, resource: str, name: str, **options: Any) -> None:
        self.api.delete(resource, NS, name, **options)
        await self.settle()

    def get(self, resource: str, name: str, namespace: str | None = NS) -> Object | None:
        return self.api.get(resource, namespace, name)

    def found(self, resource: str, name: str, namespace: str | None = NS) -> Object:
        found = self.get(resource, name, namespace)
        assert found is not None, f"{resource} {name} isn't there"
        return found

    def names(self, resource: str) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.api.list(resource, NS))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = Clock()
    server = Api(Store(), clock, random.Random(1), {})
    controllers = Controllers(LocalApi(server), clock)
    made = World(server, controllers, clock)
    try:
        await made.settle()
        yield made
    finally:
        await controllers.stop()
        server.close()


def pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    container = {"name": "main", "image": "i:1", **spec.pop("container", {})}
    metadata = {"name": name, "labels": labels or {}, **spec.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def gpu_pod(name: str, gpus: int = 1, **spec: Any) -> Object:
    return pod(name, container={"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}, **spec)


async def add_node(world: World, name: str, labels: dict[str, str] | None = None, **amounts: str) -> None:
    total = {"cpu": "8", "memory": "32Gi", "pods": "100", **amounts}
    body = {"metadata": {"name": name, "labels": labels or {}}, "status": {"capacity": total, "allocatable": total}}
    world.api.create("nodes", None, body)
    world.api.merge_patch("nodes", None, name, {"spec": {"taints": None}})
    await world.settle()


def running(address: str, *, ready: bool = True) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}


def config_map(name: str, owners: list[Object] | None = None, finalizers: list[str] | None = None) -> Object:
    metadata: Object = {"name": name}
    if owners:
        metadata["ownerReferences"] = owners
    if finalizers:
        metadata["finalizers"] = finalizers
    return {"metadata": metadata}


def owner(obj: Object, **more: Any) -> Object:
    metadata = obj["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"], **more}
