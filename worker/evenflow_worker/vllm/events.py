"""What the engine's thread leaves for the admin thread: counters that only it writes, and events that are drained."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

HOOKS: Final = (
    *("register", "predict", "enqueue", "cached", "evict", "finish"),
    *("apply", "open", "gate", "close", "shutdown"),
)
"""Every guarded hook. Each has its series from the start: an alert on its increase would miss the first error else."""


@dataclass(frozen=True, slots=True)
class Completion:
    traffic_class: str
    prompt_tokens: int
    output_tokens: int
    predicted: float | None


@dataclass(frozen=True, slots=True)
class HookFailed:
    hook: str


@dataclass(frozen=True, slots=True)
class FellBack:
    """`count` requests stay with the class prior, because of `reason`."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class ModelAsked:
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Misrouted:
    """A request came for a class that this engine wasn't given, or while it drains."""


Event = Completion | HookFailed | FellBack | ModelAsked | Misrouted


@dataclass(slots=True)
class Counters:
    """Cumulative since the engine's start; written by the engine's thread alone."""

    iterations: int = 0
    recomputed_tokens: int = 0
    admitted_new: Counter[str] = field(default_factory=Counter)
    admitted_resumed: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    predictor_fallbacks: Counter[str] = field(default_factory=Counter)
