"""Pools in an embedded cluster in this process, what its store shows of them, and a kubelet that only pretends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_devcluster.embedded.cluster import EmbeddedCluster
from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.faults import Fault
from evenflow_devcluster.local import pool_twin
from evenflow_operator.api.crd import crd_text
from evenflow_operator.api.names import API_VERSION, CRD_NAME, KIND
from fakes.engines import StubEngines

NAMESPACES = 100
CRDS = "customresourcedefinitions.apiextensions.k8s.io"


@dataclass(slots=True)
class Fleet:
    """`engines`: where pods become ready as soon as they are bound; without, they stay pending."""

    cluster: EmbeddedCluster
    replicas: int
    engines: StubEngines | None
    pools: int = 0
    unsettled: set[str] = field(default_factory=set)
    """Pools whose status doesn't yet say what their spec asks for."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _caps: dict[str, dict[str, float | None]] = field(default_factory=dict)
    _starting: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def requests(self) -> int:
        """All that the API server was sent: this process makes none."""
        return self.cluster.faults.acted

    def create(self, number: int) -> None:
        spec = {
            "model": {"name": "m"},
            "engine": {"type": "Simulated"},
            "replicas": self.replicas,
            "admission": {"mode": "Fixed", "unit": "Volume", "capMicro": 1_000_000},
            "trafficClasses": [
                {"name": "chat", "promptTokens": 1024, "outputTokens": 220, "weight": 70},
                {"name": "code", "promptTokens": 2048, "outputTokens": 32, "weight": 30},
            ],
        }
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": _pool(number)}, "spec": spec}
        self.unsettled.add(_pool(number))
        self.pools += 1
        self.cluster.api.create(CRD_NAME, _namespace(number), body)

    def set_cap(self, number: int, multiple: float) -> None:
        patch: Any = {"spec": {"admission": {"capMicro": round(multiple * 1e6)}}}
        self.cluster.api.merge_patch(CRD_NAME, _namespace(number), _pool(number), patch)

    def has_cap(self, number: int, multiple: float) -> bool:
        """Whether every pod's annotation, and every engine there is, has it."""
        caps = [*self._caps.get(_pool(number), {}).values()]
        if len(caps) != self.replicas or any(cap != multiple for cap in caps):
            return False
        return self.engines is None or self.engines.pushed[multiple] >= self.replicas

    def on_write(self, event: StoreEvent) -> None:
        obj = event.object
        if event.resource == CRD_NAME:
            status, spec = obj.get("status") or {}, obj["spec"]
            settled = status.get("observedGeneration") == obj["metadata"]["generation"]
            counted = "replicas" if self.engines is None else "readyReplicas"
            if settled and status.get(counted) == spec["replicas"]:
                self.unsettled.discard(obj["metadata"]["name"])
        elif event.resource == "pods" and event.type != "DELETED":
            metadata = obj["metadata"]
            config = WorkerConfig.parse(metadata["annotations"][labels.WORKER_CONFIG])
            pods = self._caps.setdefault(metadata["labels"][labels.POOL], {})
            pods[metadata["name"]] = config.admission.per_iteration
            bound = obj["spec"].get("nodeName") and not (obj.get("status") or {}).get("podIP")
            if self.engines is not None and bound:
                starting = asyncio.create_task(self._start(self.engines, metadata, config))
                self._starting.add(starting)
                starting.add_done_callback(self._starting.discard)
        self.changed.set()

    async def _start(self, engines: StubEngines, metadata: Any, config: WorkerConfig) -> None:
        address = await engines.start(config)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": metadata["creationTimestamp"]}
        scheduled = {**ready, "type": "PodScheduled"}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [scheduled, ready]}
        place = metadata["namespace"], metadata["name"]
        self.cluster.api.merge_patch("pods", *place, {"status": status}, subresource="status")


def _pool(number: int) -> str:
    return f"pool-{number}"


def _namespace(number: int) -> str:
    return f"bench-{number % NAMESPACES}"


@asynccontextmanager
async def fleet(folder: Path, pools: int, replicas: int, *, ready: bool) -> AsyncIterator[Fleet]:
    """An empty one, with room for so much."""
    definition = yaml.safe_load(crd_text())
    cluster = await EmbeddedCluster.start(folder, cel_twins={CRD_NAME: pool_twin})
    built = Fleet(cluster, replicas, StubEngines() if ready else None)
    try:
        # A rule without a consequence counts the requests.
        cluster.faults.add(Fault())
        cluster.api.create(CRDS, None, definition)
        for number in range(NAMESPACES):
            cluster.api.create("namespaces", None, {"metadata": {"name": _namespace(number)}})
        if ready:
            _add_node(cluster, pools * replicas)
        cluster.api.subscribe(built.on_write)
        yield built
    finally:
        await cluster.stop()
        if built.engines is not None:
            built.engines.close()


def _add_node(cluster: EmbeddedCluster, pods: int) -> None:
    amounts = {"cpu": str(64 * pods), "memory": f"{pods}Ti", "pods": str(2 * pods), "nvidia.com/gpu": str(2 * pods)}
    status: Any = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    tags = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    cluster.api.create("nodes", None, {"metadata": {"name": "node", "labels": tags}})
    cluster.api.merge_patch("nodes", None, "node", {"spec": {"taints": None}})
    cluster.api.merge_patch("nodes", None, "node", {"status": status}, subresource="status")
