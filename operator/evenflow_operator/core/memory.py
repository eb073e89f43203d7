"""What the operator remembers of a pool between two decisions.

All of it may be lost at any moment: `restore` rebuilds what matters from the status and the pods' annotations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SlotBackoff:
    """Failures in a row of one slot's pods, and until when (seconds since the epoch) the slot stays empty."""

    failures: int
    until: float


@dataclass(frozen=True, slots=True)
class PoolMemory:
    backoff: Mapping[int, SlotBackoff] = field(default_factory=dict)
    caps: Mapping[str, Any] = field(default_factory=dict)
    """Per pod uid: the state of its cap controller (core.caps)."""
    written_status: Mapping[str, Any] = field(default_factory=dict)
    status_written_at: float = 0.0
