"""What a decision asks for: commands for the engine to carry out, a status to write, a memory to keep.

Commands carry the uid and resourceVersion they were decided on; the engine checks them again before it acts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.core.memory import PoolMemory


@dataclass(frozen=True, slots=True)
class Decision:
    """One act of the operator: becomes an Event, a line in `status.decisions` and a metric label.

    `type` and `reason` are constants of `api.conditions`; `inputs` are the figures it was taken from, as short strings.
    """

    type: str
    reason: str
    message: str
    inputs: Mapping[str, str]
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class CreatePod:
    slot: int
    manifest: Mapping[str, Any]
    decision: Decision


@dataclass(frozen=True, slots=True)
class DryRunPod:
    """Ask the API server whether it would take this pod of a new revision; nothing is stored and nothing decided."""

    revision: str
    generation: int
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeletePod:
    slot: int
    name: str
    uid: str
    resource_version: str | None
    decision: Decision


@dataclass(frozen=True, slots=True)
class PatchPod:
    """Merge patch of a pod's labels and annotations (None removes a key).

    With a `config`, the annotation `evenflow.dev/worker-config` is set to it in the same patch, and it is pushed to the
    worker once the patch has succeeded. `adopt` sets the controller ownerReference.
    """

    slot: int
    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str | None]
    annotations: Mapping[str, str | None]
    config: WorkerConfig | None = None
    adopt: bool = False
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class PushConfig:
    """Push the annotation's document again: the worker has not applied it yet."""

    name: str
    uid: str
    ip: str
    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class PutService:
    """Create the Service, or bring an own one to this manifest (`uid` and `resource_version` set)."""

    manifest: Mapping[str, Any]
    uid: str | None = None
    resource_version: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteService:
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ScalePool:
    """Write `spec.replicas` through the scale subresource, if the pool is still the one that was decided on."""

    replicas: int
    decision: Decision


Command = CreatePod | DryRunPod | DeletePod | PatchPod | PushConfig | PutService | DeleteService | ScalePool


@dataclass(frozen=True, slots=True)
class ScalingFigures:
    """What the autoscaler sees, for metrics: shares of each resource (1.0 is full), and replicas called for."""

    loads: Mapping[str, float]
    replicas: int
    drain_seconds: float


@dataclass(frozen=True, slots=True)
class Notice:
    """A failure that a condition says has begun or become another (`warning`), or is over: an Event and a log line."""

    condition: str
    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    commands: tuple[Command, ...]
    decisions: tuple[Decision, ...]
    """Every decision of this pass, those of the commands included, in order; already part of `status`."""
    status: Mapping[str, Any] | None
    """The whole status to write, or None when what stands there is still true (or the minute has not passed)."""
    memory: PoolMemory
    """Keep it as it is, or `memory.status_lost()` when writing the status failed."""
    requeue_after: float | None
    """Seconds until this pool must be looked at again even if nothing changes; None: only on an event."""
    notices: tuple[Notice, ...] = ()
    scaling: ScalingFigures | None = None
    """None while there is no autoscaling, or the load isn't known."""
