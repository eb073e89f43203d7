"""What the engine's tests share: virtual time, small objects, and a cluster of dictionaries that can fail."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from evenflow_operator.adapters import views
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.core.snapshot import PodView, ServicePort, ServiceView
from evenflow_operator.ports import ApiError, Identity, Kind, PodRecord, PoolRecord, Record

T = TypeVar("T")
NAMESPACE = "serving"


class TravelLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer as soon as nothing else is to do: hours pass in milliseconds, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._travelled = 1000.0

    def time(self) -> float:
        return self._travelled

    def _run_once(self) -> None:
        timers = [timer._when for timer in self._scheduled if not timer._cancelled]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self._travelled = max(self._travelled, min(timers))
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """The clock of the running loop; the epoch lies 1,700,000,000 s before it."""

    def now(self) -> float:
        return 1_700_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class ManualClock:
    def __init__(self, start: float = 1000.0) -> None:
        self.at = start
        self.wall = 1_700_000_000.0

    def now(self) -> float:
        return self.wall + self.at

    def monotonic(self) -> float:
        return self.at


def travel(work: Callable[[], Coroutine[Any, Any, T]], limit: float = 100_000.0) -> T:
    """Run a coroutine in virtual time; fails if it takes more than `limit` virtual seconds."""
    loop = TravelLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(work(), limit))
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()


def pool_object(name: str = "llama", *, uid: str = "pool-1", generation: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "resourceVersion": "1",
            "generation": generation,
        },
        "spec": {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}, **spec},
    }


def pool_record(name: str = "llama", **more: Any) -> PoolRecord:
    record = views.pool_record(pool_object(name, **more))
    assert record is not None
    return record


def pod_view(slot: int = 0, **more: Any) -> PodView:
    fields: dict[str, Any] = {
        "name": f"llama-{slot}-aaaaaa",
        "uid": f"pod-{slot}",
        "resource_version": "10",
        "phase": "Running",
        "ready": True,
        "created_at": 1_700_000_000.0,
        "slot": slot,
        "revision": "r1",
        "attempt": 1,
        "serving": True,
        "classes": frozenset(),
        "owner_uid": "pool-1",
        "ip": "127.77.0.1",
    }
    return PodView(**{**fields, **more})


def service_view(name: str = "llama", **more: Any) -> ServiceView:
    fields: dict[str, Any] = {
        "name": name,
        "uid": f"service-{name}",
        "resource_version": "20",
        "owner_uid": "pool-1",
        "pool": "llama",
        "traffic_class": "default",
        "selector": {"evenflow.dev/pool": "llama", "evenflow.dev/serving": "true"},
        "ports": (ServicePort("http", 8000, 8000),),
    }
    return ServiceView(**{**fields, **more})


class DictCluster:
    """The Cluster port over dictionaries. `fail` is asked before (and, for lost answers, after) every write."""

    def __init__(self) -> None:
        self.pools: dict[tuple[str, str], PoolRecord] = {}
        self.pods: dict[str, PodView] = {}
        self.services: dict[str, ServiceView] = {}
        self.statuses: list[Mapping[str, Any]] = []
        self.scaled: list[int] = []
        self.writes: list[tuple[str, str]] = []
        self.fail_before: Callable[[str, str], ApiError | None] = lambda verb, name: None
        self.fail_after: Callable[[str, str], ApiError | None] = lambda verb, name: None
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)

    def version(self) -> str:
        return str(next(self._versions))

    def _write(self, verb: str, name: str, apply: Callable[[], T]) -> T:
        error = self.fail_before(verb, name)
        if error is not None:
            raise error
        result = apply()
        self.writes.append((verb, name))
        error = self.fail_after(verb, name)
        if error is not None:
            raise error
        return result

    async def get_pool(self, namespace: str, name: str) -> tuple[PoolRecord, Mapping[str, Any]] | None:
        record = self.pools.get((namespace, name))
        return (record, {}) if record else None

    async def patch_pool_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        record = self.pools.get((namespace, name))
        if record is None:
            raise ApiError(404, "NotFound", name)
        if record.uid != uid:
            raise ApiError(409, "Conflict", "uid")
        self._write("status", name, lambda: self.statuses.append(status))

    async def scale_pool(self, namespace: str, name: str, replicas: int, resource_version: str) -> None:
        def apply() -> None:
            if self.pools[namespace, name].resource_version != resource_version:
                raise ApiError(409, "Conflict", name)
            self.scaled.append(replicas)

        self._write("scale", name, apply)

    async def list_pods(self, namespace: str, pool: str) -> list[PodView]:
        return list(self.pods.values())

    async def get_pod(self, namespace: str, name: str) -> PodRecord | None:
        view = self.pods.get(name)
        return PodRecord(namespace, "llama", view) if view else None

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any]) -> PodView:
        name = manifest["metadata"]["name"]

        def apply() -> PodView:
            if name in self.pods:
                raise ApiError(409, "AlreadyExists", name)
            obj = {**manifest, "metadata": {**manifest["metadata"]}}
            obj["metadata"] |= {"uid": f"uid-{next(self._uids)}", "resourceVersion": self.version()}
            view = views.pod_view(obj)
            assert view is not None
            self.pods[name] = view
            return view

        return self._write("create", name, apply)

    async def dry_run_pod(self, namespace: str, manifest: Mapping[str, Any]) -> None:
        self._write("dry-run", manifest["metadata"]["name"], lambda: None)

    async def patch_pod(
        self, namespace: str, name: str, patch: Mapping[str, Any], *, strategic: bool = False
    ) -> PodView:
        def apply() -> PodView:
            pod = self.pods.get(name)
            if pod is None:
                raise ApiError(404, "NotFound", name)
            if patch["metadata"]["uid"] != pod.uid:
                raise ApiError(422, "Invalid", "metadata.uid: field is immutable")
            if patch["metadata"]["resourceVersion"] != pod.resource_version:
                raise ApiError(409, "Conflict", name)
            self.pods[name] = replace(pod, resource_version=self.version())
            return self.pods[name]

        return self._write("patch", name, apply)

    async def delete_pod(self, namespace: str, name: str, uid: str, resource_version: str | None) -> PodView | None:
        def apply() -> PodView | None:
            pod = self.pods.get(name)
            if pod is None:
                raise ApiError(404, "NotFound", name)
            if pod.uid != uid:
                raise ApiError(409, "Conflict", name)
            self.pods[name] = replace(pod, deleting=True, resource_version=self.version())
            return self.pods[name]

        return self._write("delete", name, apply)

    async def get_service(self, namespace: str, name: str) -> ServiceView | None:
        return self.services.get(name)

    async def create_service(self, namespace: str, manifest: Mapping[str, Any]) -> ServiceView:
        name = manifest["metadata"]["name"]

        def apply() -> ServiceView:
            if name in self.services:
                raise ApiError(409, "AlreadyExists", name)
            obj = {**manifest, "metadata": {**manifest["metadata"]}}
            obj["metadata"] |= {"uid": f"uid-{next(self._uids)}", "resourceVersion": self.version()}
            view = views.service_view(obj)
            assert view is not None
            self.services[name] = view
            return view

        return self._write("create", name, apply)

    async def patch_service(self, namespace: str, name: str, patch: Mapping[str, Any]) -> ServiceView:
        def apply() -> ServiceView:
            selector = {key: value for key, value in patch["spec"]["selector"].items() if value is not None}
            self.services[name] = replace(self.services[name], selector=selector, resource_version=self.version())
            return self.services[name]

        return self._write("patch", name, apply)

    async def delete_service(self, namespace: str, name: str, uid: str) -> None:
        def apply() -> None:
            if self.services.pop(name, None) is None:
                raise ApiError(404, "NotFound", name)

        self._write("delete", name, apply)

    async def list_records(self, kind: Kind, namespace: str | None) -> list[Record]:
        raise NotImplementedError

    async def list_identities(self, kind: Kind, namespace: str | None) -> list[Identity]:
        raise NotImplementedError
