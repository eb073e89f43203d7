"""What the engine needs of the world, as protocols: adapters implement them, tests fake them.

Everything that crosses a port is small and frozen; raw Kubernetes objects stop at the adapters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.core.snapshot import PodView, Reading, ReplicaWriter, ServiceView

Key = tuple[str, str]
"""Namespace and name of a pool."""

Kind = Literal["pools", "pods", "services", "endpointslices", "nodes"]


NAME_CONFLICT = "NameConflict"
"""Reason of our own ApiError: the name that we need is taken by somebody else's object."""


class ApiError(Exception):
    """An API call that did not succeed.

    `status` is the HTTP status, or 0 when no answer came (connection refused, time-out): whether a write happened is
    then unknown. `reason` is the Kubernetes reason (`AlreadyExists`, `Conflict`) or a short word for transport errors.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """The object is no longer the one that was decided on (resourceVersion or uid differ)."""
        return self.status == 409 and self.reason not in ("AlreadyExists", NAME_CONFLICT)

    @property
    def namespace_terminating(self) -> bool:
        """Nothing can be made any more: the namespace is going, and the pool goes with it."""
        return self.status == 403 and "because it is being terminated" in self.message

    @property
    def certain(self) -> bool:
        """True if the write certainly did not happen."""
        return 400 <= self.status < 500

    @property
    def transient(self) -> bool:
        """True if the same request may succeed a little later."""
        return self.status == 0 or self.status in (401, 408, 429) or self.status >= 500


class WorkerError(Exception):
    """A worker's admin API did not do what was asked. `status` is 0 when no answer came."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class TokenUnavailable(Exception):
    """The admin token of a pool can't be had: not allowed to this operator, missing or empty."""


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """What the operator keeps of a pool object. `pool` is None when the spec can't be read; `problem` then says why."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    deleting: bool
    pool: LLMServingPool | None
    problem: str | None
    replica_writers: tuple[ReplicaWriter, ...] = ()
    """Who set the number of replicas that stands there, by managedFields."""

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class PodRecord:
    namespace: str
    pool: str
    view: PodView


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    namespace: str
    view: ServiceView


@dataclass(frozen=True, slots=True)
class SliceRecord:
    """Ready pods of one EndpointSlice, by uid."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    pool: str
    ready: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    name: str
    uid: str
    lost: bool


Record = PoolRecord | PodRecord | ServiceRecord | SliceRecord | NodeRecord


@dataclass(frozen=True, slots=True)
class Identity:
    """Enough of an object to tell whether the cache knows it."""

    namespace: str
    name: str
    uid: str
    resource_version: str


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump, for time-outs and back-off."""
        ...


class Cluster(Protocol):
    """The Kubernetes API. Every method raises ApiError, and none waits longer than its time-out."""

    async def get_pool(self, namespace: str, name: str) -> tuple[PoolRecord, Mapping[str, Any]] | None:
        """The live pool and its raw status; None if it does not exist."""
        ...

    async def patch_pool_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """Replace the whole status. A pool of another uid under the same name is refused with 422 or 409."""
        ...

    async def scale_pool(self, namespace: str, name: str, replicas: int, resource_version: str) -> None:
        """Write `spec.replicas` through the scale subresource; a pool that has changed since is refused with 409."""
        ...

    async def list_pods(self, namespace: str, pool: str) -> list[PodView]: ...

    async def get_pod(self, namespace: str, name: str) -> PodRecord | None:
        """The live pod, whoever's it is; its `pool` is empty when it carries no label of ours."""
        ...

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any]) -> PodView: ...

    async def dry_run_pod(self, namespace: str, manifest: Mapping[str, Any]) -> None:
        """Raises what creating this pod would raise, quotas included; stores nothing."""
        ...

    async def patch_pod(
        self, namespace: str, name: str, patch: Mapping[str, Any], *, strategic: bool = False
    ) -> PodView: ...

    async def delete_pod(self, namespace: str, name: str, uid: str, resource_version: str | None) -> PodView | None:
        """Graceful delete of exactly this pod; returns what is left of it while it terminates."""
        ...

    async def get_service(self, namespace: str, name: str) -> ServiceView | None: ...

    async def create_service(self, namespace: str, manifest: Mapping[str, Any]) -> ServiceView: ...

    async def patch_service(self, namespace: str, name: str, patch: Mapping[str, Any]) -> ServiceView: ...

    async def delete_service(self, namespace: str, name: str, uid: str) -> None: ...

    async def list_records(self, kind: Kind, namespace: str | None) -> list[Record]:
        """Every object of the kind that the operator watches, in one namespace or in all (None)."""
        ...

    async def list_identities(self, kind: Kind, namespace: str | None) -> list[Identity]:
        """As `list_records`, but metadata only: cheap enough to run every minute or two."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """One pod whose engine and worker can be asked."""

    uid: str
    namespace: str
    name: str
    ip: str
    created_at: float
    peak_window: str = "10s"
    """Which `kv_usage_peak_ratio` window covers one sampling interval (the engine's own clock)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """`readings` by pod uid; `problem` when the source as a whole failed (Prometheus down)."""

    readings: Mapping[str, Reading] = field(default_factory=dict)
    problem: str | None = None


class Metrics(Protocol):
    name: str

    async def sample(self, targets: Sequence[Target]) -> Sample:
        """The newest counters of each target. Never raises for a target, never waits beyond the adapter's time-outs."""
        ...


class WorkerAdmin(Protocol):
    """Admin API of the workers. Every method raises WorkerError."""

    async def push(self, ip: str, config: WorkerConfig, token: str | None) -> int:
        """Hand over the document; returns the generation that the worker has applied now."""
        ...

    async def state(self, ip: str) -> WorkerState: ...

    async def lengths(self, ip: str) -> WorkerLengths: ...


class Tokens(Protocol):
    async def admin_token(self, namespace: str, secret: str, key: str) -> str:
        """Raises TokenUnavailable."""
        ...


class Events(Protocol):
    def post(self, pool: PoolRecord, *, warning: bool, reason: str, message: str) -> None:
        """Queue one Event about the pool; never blocks, repeats are counted up instead of posted again."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """`renewed_at` and `acquired_at` are RFC 3339 micro times of the holder's clock: shown, never compared."""

    holder: str
    duration_seconds: int
    acquired_at: str
    renewed_at: str
    transitions: int
    resource_version: str | None = None


class Leases(Protocol):
    """One Lease object. Every method raises ApiError."""

    async def get(self) -> LeaseRecord | None: ...

    async def create(self, record: LeaseRecord) -> LeaseRecord: ...

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        """PUT with the record's resourceVersion: a conflict means that somebody else wrote in between."""
        ...
