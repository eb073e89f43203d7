"""Which conditions are told as Events: when a failure begins, becomes another, or ends; never while it stays."""

from collections.abc import Iterable, Mapping
from typing import Any

from evenflow_operator.api.conditions import ConditionType, DegradedReason, ScalingLimitedReason
from evenflow_operator.api.enums import ConditionStatus
from evenflow_operator.core.plan import Notice

FAILING: Mapping[str, str] = {
    ConditionType.DEGRADED.value: ConditionStatus.TRUE.value,
    ConditionType.SPEC_VALID.value: ConditionStatus.FALSE.value,
    ConditionType.METRICS_AVAILABLE.value: ConditionStatus.FALSE.value,
    ConditionType.SCHEDULER_ACTIVE.value: ConditionStatus.FALSE.value,
    ConditionType.SCALING_LIMITED.value: ConditionStatus.TRUE.value,
}
UNTOLD = frozenset(
    {
        (ConditionType.DEGRADED.value, DegradedReason.WAITING_FOR_GPUS.value),
        *(
            (ConditionType.SCALING_LIMITED.value, reason.value)
            for reason in ScalingLimitedReason
            if reason is not ScalingLimitedReason.OTHER_WRITER
        ),
    }
)
"""Part of every replacement of a pod, or of every day, or told by another condition: no failure begins with it, and
none ends."""


def failures(conditions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The reason of each condition that says a failure."""
    return {
        str(entry["type"]): str(entry["reason"])
        for entry in conditions
        if {"type", "status", "reason"} <= set(entry) and _failing(entry)
    }


def notices(
    conditions: Iterable[Mapping[str, Any]], told: Mapping[str, str]
) -> tuple[tuple[Notice, ...], Mapping[str, str]]:
    """What there is to tell, and the failures (condition type to reason) that have been told then.

    A condition that becomes Unknown ends nothing: the failure is told again only when it comes back as another.
    """
    found = []
    after = dict(told)
    for entry in conditions:
        kind, reason, message = entry["type"], entry["reason"], entry["message"]
        if kind not in FAILING or entry["status"] == ConditionStatus.UNKNOWN.value:
            continue
        if entry["status"] == FAILING[kind] and (kind, reason) in UNTOLD:
            continue
        before = told.get(kind)
        if _failing(entry):
            after[kind] = reason
            if reason != before:
                found.append(Notice(kind, True, reason, message))
        elif before is not None:
            del after[kind]
            found.append(Notice(kind, False, reason, f"{before} is over: {message}"))
    return tuple(found), after


def _failing(entry: Mapping[str, Any]) -> bool:
    return FAILING.get(entry["type"]) == entry["status"] and (entry["type"], entry["reason"]) not in UNTOLD
