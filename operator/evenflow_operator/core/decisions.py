"""Making, merging and recording decisions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.api.names import MAX_DECISIONS
from evenflow_operator.core.plan import Decision
from evenflow_operator.core.times import parse_time, rfc3339

MAX_MESSAGE = 1024
ADVICE = "would: "
"""How the message of a decision begins that Advisory mode only proposes."""
BUDGET_WINDOW_SECONDS = 3600.0
"""For so long a move counts against the budget of moves."""
KEPT_SCALINGS = 2
"""Writes of the autoscaler that stand in the record for its waits' sake."""
KEPT_MOVES = 13
"""Moves that stand in the record for the budget's sake when newer decisions of other kinds would push them out."""
SLOTS_INPUT = "slots"
"""Input of a recorded decision: the numbers of the slots it is about, separated by commas."""
REPLICAS_INPUT = "replicas"
"""Input of a decision to write `spec.replicas`: the new number. It alone makes advice news, whatever the load."""
SERVICE_INPUT = "service"
"""Input of a decision about a Service: its name."""


def decision(
    kind: DecisionType, reason: DecisionReason, message: str, *, slot: int | None = None, **inputs: object
) -> Decision:
    """A decision with its figures as short strings; figures that are None are left out."""
    shown = {name: _short(value) for name, value in inputs.items() if value is not None}
    return Decision(kind.value, reason.value, message, shown, slot)


def merged(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """The same act on several slots becomes one decision that names them, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Decision]] = {}
    for one in decisions:
        key = (one.type, one.reason, one.message, tuple(sorted(one.inputs.items())), one.slot is None)
        groups.setdefault(key, []).append(one)
    return tuple(_with_slots(group) for group in groups.values())


def _with_slots(group: Sequence[Decision]) -> Decision:
    first = group[0]
    slots = sorted({one.slot for one in group if one.slot is not None})
    if not slots:
        return first
    numbers = ",".join(str(slot) for slot in slots)
    if len(slots) == 1:
        name = f"slot {numbers}"
    elif len(slots) > 8:
        name = f"{len(slots)} slots from {slots[0]} to {slots[-1]}"
    else:
        name = f"slots {numbers}"
    inputs = {**first.inputs, SLOTS_INPUT: numbers[:1000]}
    return replace(first, message=f"{name}: {first.message}", inputs=inputs, slot=slots[0] if len(slots) == 1 else None)


def proposed(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """The decisions as Advisory mode reports them."""
    return tuple(replace(one, message=f"{ADVICE}{one.message}") for one in decisions)


def identity(one: Decision) -> tuple[str, str, str]:
    """What makes a decision news: its figures alone don't."""
    return one.type, one.reason, one.inputs.get(REPLICAS_INPUT, one.message[:MAX_MESSAGE])


def unadvised(
    recorded: Sequence[Mapping[str, Any]], advised: frozenset[tuple[str, str, str]], decisions: Iterable[Decision]
) -> tuple[Decision, ...]:
    """Advice that was neither recorded nor given in the last pass: Advisory mode comes to the same again and again."""
    known = {_recorded_identity(record) for record in recorded} | advised
    return tuple(one for one in decisions if identity(one) not in known)


def _recorded_identity(record: Mapping[str, Any]) -> tuple[str, str, str]:
    inputs, message = record.get("inputs", {}), record.get("message", "")
    # What was carried out in mode Active is no advice, so that the same may be advised again.
    number = inputs.get(REPLICAS_INPUT) if message.startswith(ADVICE) else None
    return record["type"], record["reason"], number or message


def recorded(
    before: Sequence[Mapping[str, Any]], decisions: Iterable[Decision], now: float
) -> tuple[Mapping[str, Any], ...]:
    """`status.decisions` with the new ones added, the oldest dropped: moves that the budget counts go last."""
    time = rfc3339(now)
    new = [
        {
            "time": time,
            "type": one.type,
            "reason": one.reason,
            "message": one.message[:MAX_MESSAGE],
            "inputs": dict(one.inputs),
        }
        for one in decisions
    ]
    return _newest((*before, *new), now)


def counts_as_move(record: Mapping[str, Any], now: float) -> bool:
    """Whether a recorded decision counts against the budget of moves."""
    if (record["type"], record["reason"]) != (DecisionType.PLACE.value, DecisionReason.SEVERITY_REDUCED.value):
        return False
    time = parse_time(record["time"])
    advice = str(record.get("message", "")).startswith(ADVICE)
    return time is not None and now - time < BUDGET_WINDOW_SECONDS and not advice


def is_scaling(record: Mapping[str, Any]) -> bool:
    """Whether it records that the autoscaler wrote replicas."""
    written = record["type"] == DecisionType.SCALE.value and record["reason"] != DecisionReason.SCALE_DOWN.value
    return written and not str(record.get("message", "")).startswith(ADVICE)


def scaled_at(records: Sequence[Mapping[str, Any]]) -> float | None:
    """When the autoscaler last wrote replicas, as far as the record goes back."""
    times = [parse_time(record["time"]) for record in records if is_scaling(record)]
    return max((time for time in times if time is not None), default=None)


def scaled_to(records: Sequence[Mapping[str, Any]]) -> int | None:
    """The replicas that the autoscaler wrote last, as far as the record goes back."""
    written = [record.get("inputs", {}).get(REPLICAS_INPUT, "") for record in records if is_scaling(record)]
    return int(written[-1]) if written and written[-1].isdecimal() else None


def _newest(records: tuple[Mapping[str, Any], ...], now: float) -> tuple[Mapping[str, Any], ...]:
    surplus = len(records) - MAX_DECISIONS
    if surplus <= 0:
        return records
    kept = [index for index, record in enumerate(records) if counts_as_move(record, now)][-KEPT_MOVES:]
    kept += [index for index, record in enumerate(records) if is_scaling(record)][-KEPT_SCALINGS:]
    going = set([index for index in range(len(records)) if index not in kept][:surplus])
    return tuple(record for index, record in enumerate(records) if index not in going)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:200]
