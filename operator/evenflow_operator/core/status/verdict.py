"""What a condition says: status, reason, message."""

from enum import StrEnum
from typing import NamedTuple

from evenflow_operator.api.enums import ConditionStatus


class Verdict(NamedTuple):
    status: ConditionStatus
    reason: str
    message: str


def true(reason: StrEnum, message: str) -> Verdict:
    return Verdict(ConditionStatus.TRUE, reason.value, message)


def false(reason: StrEnum, message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, reason.value, message)


def unknown(reason: StrEnum, message: str) -> Verdict:
    return Verdict(ConditionStatus.UNKNOWN, reason.value, message)


def slot_list(slots: list[int]) -> str:
    """`slot 3`, `slots 0, 1, 2`, or the first few and how many more."""
    shown = ", ".join(str(slot) for slot in slots[:8])
    more = f" and {len(slots) - 8} more" if len(slots) > 8 else ""
    return f"slot {shown}" if len(slots) == 1 else f"slots {shown}{more}"
