"""Everything that one decision about one pool may look at: frozen, complete, and taken at one moment.

The engine gathers a `Snapshot`; `decide` turns it into a `Plan`. Times are seconds since the epoch, lengths tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.core.memory import PoolMemory

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, slots=True)
class PodView:
    """What the operator keeps of a pod: a few fields, never the whole object."""

    name: str
    uid: str
    resource_version: str
    phase: PodPhase
    ready: bool
    created_at: float
    slot: int | None
    """None when the slot label is missing or no number: such a pod is never counted and never touched."""
    revision: str
    attempt: int
    serving: bool
    classes: frozenset[str]
    owner_uid: str | None
    """uid of the controller owner; None for an orphan, which is adopted if its revision matches."""
    deleting: bool = False
    ready_since: float | None = None
    node: str | None = None
    ip: str | None = None
    template_version: str | None = None
    worker_image: str | None = None
    """The image that it was made with; None on pods of a release that didn't note it."""
    worker_config: WorkerConfig | None = None
    """The annotation's document; None when it is absent or malformed (`config_problem` then says why)."""
    config_problem: str | None = None
    drain_started: float | None = None
    drain_reason: str | None = None
    unschedulable: str | None = None
    """The scheduler's message while the pod cannot be placed (`Insufficient nvidia.com/gpu`)."""
    waiting_reason: str | None = None
    """Reason of a waiting container: `CrashLoopBackOff`, `ImagePullBackOff`, …"""
    trouble: str | None = None
    """What is known of why it doesn't start: the kubelet's message, or how the container ended last."""
    engine_waiting: bool = False
    """The engine's container doesn't run, so that nothing can be in flight."""
    restarts: int = 0


class ServicePort(NamedTuple):
    name: str
    port: int
    target: int | str
    """Port of the pods, by number or by name."""
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True)
class ServiceView:
    name: str
    uid: str
    resource_version: str
    owner_uid: str | None
    pool: str | None
    traffic_class: str | None
    selector: Mapping[str, str]
    ports: tuple[ServicePort, ...]
    class_removed: float | None = None
    """Since when its class is gone from the spec, as the operator noted it."""
    deleting: bool = False
    """Whether it only waits for a finalizer of somebody else's, such as a load balancer's."""
    orphan: bool = False
    """Made by the operator and without any owner: its pool was deleted without what belongs to it."""


@dataclass(frozen=True, slots=True)
class ReplicaWriter:
    """An entry of the pool's managedFields that owns `spec.replicas`."""

    manager: str
    operation: str
    """`Update`, or `Apply` (server-side apply), whose manager sets the field again and again."""
    subresource: str
    """`scale`, or empty for the pool itself."""
    at: float | None


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """One engine's series at one moment. Every field may be None: an absent or NaN series is never zero.

    Counters are cumulative since the engine's start; `kv_peak_ratio` is the peak KV use (0–1) over the last window.
    """

    evictions: float | None = None
    admitted: float | None = None
    completed: float | None = None
    iterations: float | None = None
    recomputed_tokens: float | None = None
    generated_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_peak_ratio: float | None = None
    kv_capacity_tokens: float | None = None
    applied_generation: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest that is known of one pod's engine; keyed by pod uid: a deleted pod's series counts for nobody."""

    taken_at: float
    """When the sample was true, not when it was fetched; its age is judged against `metrics.staleAfterSeconds`."""
    source: Literal["Scrape", "Prometheus"]
    counters: EngineCounters | None = None
    state: WorkerState | None = None
    state_at: float | None = None
    """When the state was read; None: together with the counters."""
    lengths: WorkerLengths | None = None
    problem: str | None = None
    """Why there are no counters (timeout, HTTP status, NaN): one short line for the condition's message."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    now: float
    namespace: str
    name: str
    uid: str
    generation: int
    pool: LLMServingPool | None
    """None when the spec cannot be read; `spec_problem` then says why, and the last good settings stay."""
    spec_problem: str | None
    pods: tuple[PodView, ...]
    services: tuple[ServiceView, ...]
    """Services that carry this pool's label, and any other Service that stands on a name this pool needs."""
    routable: frozenset[str]
    """uids of pods that stand as ready endpoints in the pool's EndpointSlices."""
    readings: Mapping[str, Reading]
    memory: PoolMemory
    lost_nodes: frozenset[str] = frozenset()
    unsettled_slots: frozenset[int] = frozenset()
    """Slots with an own create, delete or patch that the cache does not show yet: nothing is decided for them."""
    metrics_source_problem: str | None = None
    """Why the source as a whole failed (Prometheus down): holds caps, and shows in MetricsAvailable."""
    create_refusals: Mapping[int, str] = field(default_factory=dict)
    """Slots whose last create the API server refused (quota, admission, permissions), with its message."""
    scale_refusal: str | None = None
    """Why the API server refused the autoscaler's last write of replicas; None once one was taken or none is wanted."""
    admin_token_problem: str | None = None
    """Why the Secret of `adminTokenSecretRef` can't be read; None when it can or there is none."""
    replica_writers: tuple[ReplicaWriter, ...] = ()
    """Who set the number of replicas that stands there."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Operator-level facts: `simulated_image`, `worker_image`, `metrics_source`, `admin_write` (`open` or absent)."""
