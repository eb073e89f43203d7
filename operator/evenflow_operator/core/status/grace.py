"""The first moments after a restart of the operator: what isn't measured again yet stands as it was last written.

Otherwise every restart would write that nothing is known, and a moment later what was known before.
"""

from collections.abc import Mapping
from typing import Any

from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.readings.rates import WINDOW_SECONDS

MEASURED_OF_SLOT = (
    "usableKvTokens",
    "appliedGeneration",
    "appliedCapMicro",
    "evictionsPerThousand",
    "recomputedTokensPerThousand",
)
MEASURED_OF_CLASS = ("observedPromptTokens", "observedOutputTokens", "loadPercent")
MEASURED_CONDITIONS = frozenset({"MetricsAvailable", "SchedulerActive", "CapsConverged", "ClassLengthDrift"})
WINDOW_CONDITIONS = frozenset({"EvictionFree"})
SILENT_REASONS = frozenset({"MetricsMissing", "Waiting", "Holding"})


def carried_over(status: dict[str, Any], memory: PoolMemory, now: float, *, warming: bool) -> dict[str, Any]:
    """The status with what is not known again yet taken from the last written one.

    `warming`: engines haven't all answered since the start.
    """
    before = memory.written_status
    measuring = memory.restored and now - memory.began_at < 2 * WINDOW_SECONDS + 1
    if not before or not (warming or measuring):
        return status
    carried = dict(status)
    if "evictionsPerThousand" in before:
        carried.setdefault("evictionsPerThousand", before["evictionsPerThousand"])
    old_slots = {(slot["name"], slot.get("pod")): slot for slot in before.get("slots", ())}
    carried["slots"] = [_slot(slot, old_slots.get((slot["name"], slot.get("pod")))) for slot in status["slots"]]
    if warming:
        old_classes = {row["name"]: row for row in before.get("classes", ())}
        carried["classes"] = [
            _filled(row, old_classes.get(row["name"]), MEASURED_OF_CLASS) for row in status["classes"]
        ]
    kinds = WINDOW_CONDITIONS | (MEASURED_CONDITIONS if warming else frozenset())
    old = {entry["type"]: entry for entry in before.get("conditions", ()) if entry["type"] in kinds}
    carried["conditions"] = [_condition(entry, old.get(entry["type"])) for entry in status["conditions"]]
    return carried


def _slot(slot: dict[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
    same = old is not None and old.get("configGeneration") == slot.get("configGeneration")
    return _filled(slot, old if same else None, MEASURED_OF_SLOT)


def _filled(entry: dict[str, Any], old: Mapping[str, Any] | None, keys: tuple[str, ...]) -> dict[str, Any]:
    if old is None:
        return entry
    return {**entry, **{key: old[key] for key in keys if key not in entry and key in old}}


def _condition(entry: dict[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
    silent = entry["status"] == "Unknown" or entry["reason"] in SILENT_REASONS
    if old is None or not silent:
        return entry
    return {**old, "observedGeneration": entry["observedGeneration"]}
