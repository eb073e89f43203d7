"""When a status is written: at once for counts, phases, decisions and conditions; measured figures once a minute."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenflow_operator.api.conditions import DegradedReason
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.status.conditions import transitions

MEASURED_SECONDS = 60.0

MEASURED = frozenset({"severityMicro", "severity", "evictionsPerThousand"})
MEASURED_OF_SLOT = frozenset(
    {
        "message",
        "lengthGcd",
        "severityMicro",
        "usableKvTokens",
        "evictionFreeRateMicro",
        "evictionsPerThousand",
        "recomputedTokensPerThousand",
    }
)
MEASURED_OF_CLASS = frozenset({"observedPromptTokens", "observedOutputTokens", "loadPercent", "requestSharePercent"})
MEASURED_OF_CONDITION = frozenset({"message"})
PROMPT_REASONS = frozenset({DegradedReason.CREATE_REFUSED.value})
"""The message is what the API server said, which is waited for after a change of the spec."""


def throttled(status: Mapping[str, Any], memory: PoolMemory, now: float) -> tuple[Mapping[str, Any] | None, PoolMemory]:
    """The status if it is to be written now, else None; and the memory that knows what was written.

    A status that isn't written for want of news keeps the transitions of its conditions in mind all the same.
    """
    memory = replace(memory, conditions=transitions(list(status["conditions"])))
    before = memory.written_status
    if status == before and not memory.status_unknown:
        return None, memory
    late = now - memory.status_written_at >= MEASURED_SECONDS
    if memory.status_unknown or not before or late or _prompt(status) != _prompt(before):
        return status, replace(memory, written_status=status, status_unknown=False, status_written_at=now)
    return None, memory


def next_write(status: Mapping[str, Any], memory: PoolMemory, now: float) -> float | None:
    """Seconds until measured figures that differ may be written; None when nothing waits."""
    if status == memory.written_status:
        return None
    return max(0.0, memory.status_written_at + MEASURED_SECONDS - now)


def _prompt(status: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a status whose every change is written at once."""
    parts = {"conditions": MEASURED_OF_CONDITION, "classes": MEASURED_OF_CLASS, "slots": MEASURED_OF_SLOT}
    return {
        key: [_without(entry, parts[key]) for entry in value] if key in parts else value
        for key, value in status.items()
        if key not in MEASURED
    }


def _without(entry: Mapping[str, Any], keys: frozenset[str]) -> Mapping[str, Any]:
    if entry.get("reason") in PROMPT_REASONS:
        return entry
    return {key: value for key, value in entry.items() if key not in keys}
