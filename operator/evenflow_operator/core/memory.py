"""What the operator remembers of a pool between two decisions.

All of it may be lost at any moment: core.restore rebuilds what matters from the status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evenflow_operator.core.aimd import AimdState
from evenflow_operator.core.scaling.state import ScalingState


@dataclass(frozen=True, slots=True)
class SlotBackoff:
    """Failures in a row of one slot's pods, and until when (seconds since the epoch) the slot stays empty."""

    failures: int
    until: float
    pod_uid: str = ""
    """The failed pod that was counted last, so that no pod counts twice."""
    refused: str = ""
    """The revision whose pod the API server refused last: one of another revision is tried at once."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the API server said when it was asked whether it would take a pod of a revision (core.slots.dry_run)."""

    revision: str
    generation: int
    """Of the spec that was asked about."""
    problem: str = ""
    """Why it would not, or why there was no answer; empty: it would."""
    refused: bool = False
    tries: int = 0
    """Tries in a row without a yes."""
    since: float = 0.0
    """When the first of those without an answer was made."""
    until: float = 0.0
    """It isn't asked again before, unless the spec changes."""


@dataclass(frozen=True, slots=True)
class CapState:
    """The cap controller of one pod. Its cap is a multiple of x* whatever the unit."""

    aimd: AimdState
    seen_at: float = 0.0
    """`taken_at` of the newest reading that was looked at: every sample counts once."""
    iterations: float | None = None
    raised_at: float = 0.0
    wide: bool = True
    """The regime that set the watermark: wide lengths (5 %) or tiers (1 %)."""
    reason: str = ""
    """Why the last step did what it did (core.aimd), or why there was none."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Whether a pod's engine iterates while requests wait."""

    iterations: float
    since: float
    """When the count was first seen with requests waiting."""
    seen_at: float
    samples: int
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Rates:
    """One pod's counters where the window began, and the figures of the last whole window."""

    began_at: float
    evictions: float
    completed: float
    recomputed: float | None
    generated: float | None
    """None where the engine has no such series."""
    seen_at: float
    evicted: float | None = None
    """Evictions, completions, recomputed and generated tokens within the last whole window; None before its end."""
    finished: float | None = None
    recomputed_tokens: float | None = None
    generated_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class ObservedClass:
    """Lengths of one class's completed requests over the whole pool (tokens); `weight` is the decayed count."""

    completed: int
    weight: float
    prompt_tokens: float
    output_tokens: float
    digest: str
    histogram: Mapping[int, float] = field(compare=False, repr=False)
    """Output lengths and their shares, quantised so that noise doesn't make a new law; `digest` stands for it."""


@dataclass(frozen=True, slots=True)
class PoolMemory:
    slots: frozenset[int] = frozenset()
    """The numbers of the pool's slots, those that no pod fills included."""
    placement: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    backoff: Mapping[int, SlotBackoff] = field(default_factory=dict)
    dry_run: DryRun | None = None
    caps: Mapping[str, CapState] = field(default_factory=dict)
    """Per pod uid, as the next three."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    rates: Mapping[str, Rates] = field(default_factory=dict)
    pushed_at: Mapping[str, float] = field(default_factory=dict)
    observed: Mapping[str, ObservedClass] = field(default_factory=dict)
    """Observed lengths by class, renewed at most once a minute."""
    observed_at: float = 0.0
    scaling: ScalingState = field(default_factory=ScalingState)
    decisions: tuple[Mapping[str, Any], ...] = ()
    """The last decisions as `status.decisions` has them, oldest first."""
    advised: frozenset[tuple[str, str, str]] = frozenset()
    """Type, reason and message of what Advisory mode came to in the last pass: advice is given once."""
    conditions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Per condition type: status and lastTransitionTime."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Failures that were told as Events and aren't over: condition type to reason."""
    written_status: Mapping[str, Any] = field(default_factory=dict)
    """The status that the last plan asked to write."""
    status_unknown: bool = False
    """Whether writing it failed, so that something else may stand there."""
    status_written_at: float = 0.0
    restored: bool = False
    """Whether this memory was read back after a restart of the operator (core.restore)."""
    began_at: float = 0.0
    """Time of the first pass with this memory."""

    def status_lost(self) -> "PoolMemory":
        """To be kept instead when writing the plan's status failed: the next plan writes a whole one."""
        return replace(self, status_unknown=True, status_written_at=0.0)
