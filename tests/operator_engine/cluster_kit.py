"""The whole operator against the embedded API server, with pods that become ready without any process."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from evenflow_devcluster.embedded.cluster import EmbeddedCluster
from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.local import pool_twin
from evenflow_operator.adapters.kube import MERGE_PATCH, KubeClient
from evenflow_operator.api.names import API_VERSION, CRD_NAME, GROUP, KIND, PLURAL, VERSION
from evenflow_operator.main import Operator
from evenflow_operator.ports import ApiError
from evenflow_operator.settings import Settings

T = TypeVar("T")
CRD_FILE = Path(__file__).parents[2] / "crds" / f"{GROUP}_{PLURAL}.yaml"
GPU = "nvidia.com/gpu"


class Stage:
    """An embedded cluster with our CRD, one node of 64 GPUs, and a kubelet that only pretends."""

    def __init__(self, cluster: EmbeddedCluster, client: KubeClient) -> None:
        self.cluster = cluster
        self.client = client
        self._addresses = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = True
        """Whether pods become ready."""

    @property
    def kubeconfig(self) -> str:
        return str(self.cluster.kubeconfig)

    def settings(self, **more: Any) -> Settings:
        fields: dict[str, Any] = {"kubeconfig": self.kubeconfig, "leader_election": False}
        return Settings(**{**fields, **more})

    # --- what a user does ----------------------------------------------------------------------------------------

    async def apply_pool(self, name: str = "llama", namespace: str = "default", **spec: Any) -> Mapping[str, Any]:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {
                "model": {"name": "m"},
                "engine": {"type": "Simulated"},
                "replicas": 2,
                "metrics": {"intervalSeconds": 1, "staleAfterSeconds": 10},
                "trafficClasses": [{"name": "chat", "promptTokens": 1000, "outputTokens": 200}],
                **spec,
            },
        }
        return await self.request("POST", pools(namespace), body=body)

    async def patch_pool(self, name: str, spec: Mapping[str, Any], namespace: str = "default") -> None:
        path = f"{pools(namespace)}/{name}"
        await self.request("PATCH", path, body={"spec": dict(spec)}, content_type=MERGE_PATCH)

    async def delete_pool(self, name: str, namespace: str = "default") -> None:
        await self.request("DELETE", f"{pools(namespace)}/{name}")

    async def pool(self, name: str = "llama", namespace: str = "default") -> Mapping[str, Any]:
        return await self.request("GET", f"{pools(namespace)}/{name}")

    async def create_namespace(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.request("POST", "/api/v1/namespaces", body=body)

    async def request(self, *arguments: Any, **options: Any) -> Any:
        return await self.client.request(*arguments, **options)

    # --- what stands in the cluster ------------------------------------------------------------------------------

    def pods(self, namespace: str = "default", *, pool: str | None = None) -> list[Mapping[str, Any]]:
        """Pods that are not being deleted, by slot."""
        found = [
            pod
            for pod in self.cluster.api.list("pods", namespace)
            if not pod["metadata"].get("deletionTimestamp")
            and (pool is None or pod["metadata"]["labels"].get("evenflow.dev/pool") == pool)
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def names(self, namespace: str = "default", *, pool: str | None = None) -> list[str]:
        return [str(pod["metadata"]["name"]) for pod in self.pods(namespace, pool=pool)]

    def services(self, namespace: str = "default") -> set[str]:
        return {str(service["metadata"]["name"]) for service in self.cluster.api.list("services", namespace)} - {
            "kubernetes"
        }

    def condition(self, kind: str, name: str = "llama", namespace: str = "default") -> Mapping[str, Any]:
        pool = self.cluster.api.get(f"{PLURAL}.{GROUP}", namespace, name) or {}
        for condition in (pool.get("status") or {}).get("conditions") or ():
            if condition["type"] == kind:
                return condition
        return {}

    def is_ready(self, name: str = "llama", namespace: str = "default") -> bool:
        return self.condition("Ready", name, namespace).get("status") == "True"

    # --- the kubelet that only pretends --------------------------------------------------------------------------

    def on_write(self, event: StoreEvent) -> None:
        if event.resource == "pods" and event.type != "DELETED":
            task = asyncio.get_running_loop().create_task(self._play(event.object))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _play(self, pod: Mapping[str, Any]) -> None:
        meta, api = pod["metadata"], self.cluster.api
        if meta.get("deletionTimestamp"):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            with contextlib.suppress(ApiError):
                await self.client.request("DELETE", path, body=options)
        elif self.ready and pod["spec"].get("nodeName") and not (pod.get("status") or {}).get("podIP"):
            number = next(self._addresses)
            # A net of this process alone: runs beside this one may have engines on the same ports.
            address = f"127.{100 + os.getpid() % 100}.{number // 250}.{number % 250 + 1}"
            status = {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [
                    {"type": "PodScheduled", "status": "True"},
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                ],
            }
            if api.get("pods", meta["namespace"], meta["name"]):
                api.merge_patch("pods", meta["namespace"], meta["name"], {"status": status}, subresource="status")

    async def finish(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def pools(namespace: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"


@contextlib.asynccontextmanager
async def stage(folder: Path, *, lenient: bool = False) -> AsyncIterator[Stage]:
    """`lenient`: the CRD accepts anything, as an older or hand-made one would."""
    cluster = await EmbeddedCluster.start(folder, cel_twins={CRD_NAME: pool_twin}, seed=11)
    client = KubeClient(str(cluster.kubeconfig))
    built = Stage(cluster, client)
    unsubscribe = cluster.api.subscribe(built.on_write)
    try:
        crd = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
        if lenient:
            anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = anything
        await client.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=crd)
        cluster.api.create("nodes", None, node("node-1"))
        cluster.api.merge_patch("nodes", None, "node-1", {"spec": {"taints": None}})
        cluster.api.merge_patch("nodes", None, "node-1", {"status": node_status()}, subresource="status")
        yield built
    finally:
        unsubscribe()
        await built.finish()
        await client.close()
        await cluster.stop()


def node(name: str) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def node_status() -> dict[str, Any]:
    amounts = {"cpu": "640", "memory": "8Ti", "pods": "1000", GPU: "64"}
    return {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Operator]:
    """An operator in this loop, stopped in the end as SIGTERM stops it."""
    stop = asyncio.Event()
    operator = Operator(settings)
    task = asyncio.create_task(operator.run(stop))
    try:
        yield operator
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


async def eventually(check: Callable[[], bool | Awaitable[bool]], what: str, limit: float = 10.0) -> None:
    """Poll until `check` holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    while True:
        result = check()
        if await result if isinstance(result, Awaitable) else result:
            return
        if loop.time() > deadline:
            raise AssertionError(f"not within {limit:g} s: {what}")
        await asyncio.sleep(0.02)
