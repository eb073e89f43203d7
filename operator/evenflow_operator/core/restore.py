"""What an operator that has just started knows of a pool: read back from its status."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from evenflow_operator.api.base import ApiModel
from evenflow_operator.api.conditions import DegradedReason
from evenflow_operator.api.enums import SlotPhase
from evenflow_operator.api.status import DecisionRecord, LLMServingPoolStatus
from evenflow_operator.core.memory import DryRun, PoolMemory, Progress, SlotBackoff
from evenflow_operator.core.slots import dry_run
from evenflow_operator.core.snapshot import PodView
from evenflow_operator.core.status.notices import failures
from evenflow_operator.core.times import parse_time


def restore(status: Mapping[str, Any], pods: Iterable[PodView] = ()) -> PoolMemory:
    """The memory of an operator that has just started, from the status that stands in the cluster and the pool's pods.

    Slots, placement, back-off, a refused revision, stalled engines, budgets (by the decisions)
    and the times of conditions come back; caps continue from the pods' annotations. A status that isn't ours to read,
    or parts of it, count as absent.
    """
    known = _known(status)
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
        dry_run=_refusal(_objects(status, "conditions")),
        progress=progress,
        decisions=tuple(known.get("decisions", ())),
        conditions={
            str(entry["type"]): (str(entry.get("status")), str(entry.get("lastTransitionTime")))
            for entry in _objects(status, "conditions")
            if "type" in entry
        },
        told=failures(_objects(status, "conditions")),
        written_status=known if _objects(status, "conditions") else {},
        restored=bool(_objects(status, "conditions")),
    )


def _refusal(conditions: Iterable[Mapping[str, Any]]) -> DryRun | None:
    """What Degraded says of a revision that the API server refuses."""
    said = (str(one.get("message")) for one in conditions if one.get("reason") == DegradedReason.CREATE_REFUSED.value)
    return next((refusal for message in said if (refusal := dry_run.restored(message)) is not None), None)


def _known(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parts that this release may write again: after a rollback, what a newer one wrote would be refused, and the
    rest of the status with it."""
    records = [record for record in _objects(status, "decisions") if _reads(DecisionRecord, record)]
    known = {**status, "decisions": records} if "decisions" in status else status
    try:
        LLMServingPoolStatus.model_validate(known)
    except ValidationError as error:
        unknown = {key for fault in error.errors() for key in fault["loc"][:1]}
        return {key: part for key, part in known.items() if key not in unknown}
    return known


def _reads(model: type[ApiModel], value: object) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


def _objects(status: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = status.get(key)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _slot_number(name: object) -> int | None:
    number = name.rpartition("-")[2] if isinstance(name, str) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) < 7 else None
