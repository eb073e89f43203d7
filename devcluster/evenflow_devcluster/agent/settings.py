"""What one node agent is told: its folder, what its nodes offer, and how patient it is."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

A100 = "NVIDIA-A100-SXM4-80GB"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What each node offers. The processes are local, so cpu and memory are declared, not measured."""

    gpus: int = 8
    gpu_product: str = A100
    cpu: str = "96"
    memory: str = "1Ti"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)

    def resources(self) -> dict[str, str]:
        return {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), "nvidia.com/gpu": str(self.gpus)}


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Durations in seconds. A kubelet's crash back-off starts at 10 s; here it starts at 1 s, for pods are cheap."""

    folder: Path
    heartbeat: float = 10.0
    crash_backoff: float = 1.0
    crash_backoff_limit: float = 60.0
    object_refresh: float = 10.0
    host_ip: str = "127.0.0.1"
    pod_network: str = "127.77"
    """First half of the pods' addresses, which must be local. A real API server refuses loopback endpoints."""
    python: str = sys.executable
    account_kubeconfig: Path | None = None
    """What KUBECONFIG names in pods that say automountServiceAccountToken: true; no token is mounted here."""

    def crash_delay(self, crashes: int) -> float:
        """Wait before restart number `crashes` (from 1): none, then the base, doubling up to the limit."""
        if crashes <= 1:
            return 0.0
        return min(self.crash_backoff_limit, self.crash_backoff * 2.0 ** min(crashes - 2, 32))
