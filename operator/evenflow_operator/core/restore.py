"""What an operator that has just started knows of a pool: read back from its status."""

from collections.abc import Iterable, Mapping
from typing import Any

from evenflow_operator.api.enums import SlotPhase
from evenflow_operator.core.memory import PoolMemory, Progress, SlotBackoff
from evenflow_operator.core.snapshot import PodView
from evenflow_operator.core.status.notices import failures
from evenflow_operator.core.times import parse_time


def restore(status: Mapping[str, Any], pods: Iterable[PodView] = ()) -> PoolMemory:
    """The memory of an operator that has just started, from the status that stands in the cluster and the pool's pods.

    Slots, placement, back-off, stalled engines, budgets (by the decisions)
    and the times of conditions come back; caps continue from the pods' annotations. A status that isn't ours to read,
    or parts of it, count as absent.
    """
    uids = {pod.name: pod.uid for pod in pods}
    slots: set[int] = set()
    placement: dict[int, tuple[str, ...]] = {}
    backoff: dict[int, SlotBackoff] = {}
    progress: dict[str, Progress] = {}
    for entry in _objects(status, "slots"):
        slot = _slot_number(entry.get("name"))
        if slot is None:
            continue
        slots.add(slot)
        classes = entry.get("classes")
        if isinstance(classes, list) and classes:
            placement[slot] = tuple(str(name) for name in classes)
        attempts = entry.get("attempts")
        if isinstance(attempts, int) and attempts > 1:
            backoff[slot] = SlotBackoff(attempts - 1, parse_time(entry.get("nextAttemptTime")) or 0.0)
        uid = uids.get(str(entry.get("pod")))
        if uid is not None and entry.get("phase") == SlotPhase.STALLED.value:
            progress[uid] = Progress(0.0, 0.0, 0.0, 0, True)
    return PoolMemory(
        slots=frozenset(slots),
        placement=placement,
        backoff=backoff,
        progress=progress,
        decisions=tuple(
            record for record in _objects(status, "decisions") if {"time", "type", "reason"} <= set(record)
        ),
        conditions={
            str(entry["type"]): (str(entry.get("status")), str(entry.get("lastTransitionTime")))
            for entry in _objects(status, "conditions")
            if "type" in entry
        },
        told=failures(_objects(status, "conditions")),
        written_status=status if _objects(status, "conditions") else {},
        restored=bool(_objects(status, "conditions")),
    )


def _objects(status: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = status.get(key)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _slot_number(name: object) -> int | None:
    number = name.rpartition("-")[2] if isinstance(name, str) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) < 7 else None
