"""Filling slots: what to create, and which dead or surplus pods to delete (docs/design.md §5.1)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from evenflow_contract import labels
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.core.decisions import decision
from evenflow_operator.core.memory import PoolMemory, SlotBackoff
from evenflow_operator.core.plan import CreatePod, DeletePod
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView

FIRST_BACKOFF_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 300.0
FORGIVEN_AFTER_SECONDS = 600.0
"""A slot that was ready for so long starts over at the first back-off."""


@dataclass(frozen=True, slots=True)
class Refill:
    """Commands that fill slots, and why the slots that stay empty do."""

    deletes: tuple[DeletePod, ...]
    creates: tuple[int, ...]
    """Slots to make a pod for."""
    backing_off: frozenset[int]
    waiting_for_gpus: frozenset[int]
    backoff: Mapping[int, SlotBackoff]


def refill(situation: Situation) -> Refill:
    backoff = _backoff(situation)
    deletes = (*_dead_pods(situation), *_duplicates(situation))
    going = {command.uid for command in deletes}
    vacant = sorted(slot for slot in situation.slots if slot not in situation.filling and situation.settled(slot))
    backing_off = frozenset(slot for slot in vacant if slot in backoff and backoff[slot].until > situation.now)
    # A failed pod's object is deleted first: its replacement must not race with it for the node's GPUs.
    blocked = {pod.slot for pod in situation.dead if pod.uid in going and pod.node not in situation.snapshot.lost_nodes}
    coming = situation.snapshot.unsettled_slots - set(situation.filling) - set(situation.terminating)
    room = situation.spec.replicas - situation.holding_gpus - len(coming)
    # Quota, admission and permissions are rarely about one pod only.
    refusal = any(backoff[slot].refused for slot in backing_off)
    ready = [] if refusal else [slot for slot in vacant if slot not in backing_off and slot not in blocked]
    creates = tuple(ready[: max(room, 0)])
    return Refill(deletes, creates, backing_off, frozenset(ready[len(creates) :]), backoff)


def failures_of(backoff: Mapping[int, SlotBackoff], slot: int) -> int:
    return backoff[slot].failures if slot in backoff else 0


def refused(memory: PoolMemory, creates: Iterable[CreatePod], now: float) -> PoolMemory:
    """The memory after the API server refused these creates, or their names were taken by pods that fill no slot.

    They are tried again after a back-off, as the next attempts, which have other names.
    """
    backoff = dict(memory.backoff)
    for command in creates:
        tags = command.manifest["metadata"]["labels"]
        before = backoff.get(command.slot, SlotBackoff(0, 0.0))
        failures = max(before.failures + 1, int(tags.get(labels.ATTEMPT, "1")))
        revision = tags.get(labels.REVISION, "")
        backoff[command.slot] = SlotBackoff(failures, now + pause_after(before.failures), before.pod_uid, revision)
    return replace(memory, backoff=backoff)


def create_decision_reason(situation: Situation, slot: int) -> DecisionReason:
    remembered = situation.snapshot.memory.slots
    return DecisionReason.SCALE_UP if remembered and slot not in remembered else DecisionReason.SLOT_EMPTY


def create_command(situation: Situation, slot: int, manifest: Mapping[str, object], failures: int) -> CreatePod:
    """`failures` are those in a row of the slot's pods before this one."""
    reason = create_decision_reason(situation, slot)
    why = decision(DecisionType.CREATE_POD, reason, f"create a pod of revision {situation.revision}", slot=slot)
    if failures:
        why = decision(
            DecisionType.CREATE_POD,
            reason,
            f"create a pod of revision {situation.revision}, attempt {failures + 1}",
            slot=slot,
            attempt=failures + 1,
        )
    return CreatePod(slot, manifest, why)


def _backoff(situation: Situation) -> dict[int, SlotBackoff]:
    # No longer than the longest, whatever clock the date was taken from.
    latest = situation.now + LONGEST_BACKOFF_SECONDS
    remembered = situation.snapshot.memory.backoff.items()
    backoff = {
        slot: replace(it, until=min(it.until, latest))
        for slot, it in remembered
        if slot in situation.slots and it.refused in ("", situation.revision)
    }
    for slot, pod in situation.filling.items():
        ready_for = situation.now - pod.ready_since if pod.ready and pod.ready_since is not None else 0.0
        if ready_for >= FORGIVEN_AFTER_SECONDS:
            backoff.pop(slot, None)
    for pod in situation.dead:
        if pod.slot is None or not situation.settled(pod.slot):
            continue
        before = backoff.get(pod.slot, SlotBackoff(0, 0.0))
        if before.pod_uid == pod.uid:
            continue
        backoff[pod.slot] = SlotBackoff(before.failures + 1, situation.now + pause_after(before.failures), pod.uid)
    return backoff


def pause_after(failures: int) -> float:
    """Seconds to wait after a failure that so many others in a row came before."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 30))


def _dead_pods(situation: Situation) -> tuple[DeletePod, ...]:
    return tuple(
        _delete(pod, *_why_dead(situation, pod))
        for pod in situation.dead
        if pod.slot is not None and situation.settled(pod.slot)
    )


def _why_dead(situation: Situation, pod: PodView) -> tuple[DecisionType, DecisionReason, str]:
    if pod.node is not None and pod.node in situation.snapshot.lost_nodes:
        return DecisionType.REPLACE_POD, DecisionReason.NODE_LOST, f"replace {pod.name}: node {pod.node} is lost"
    reason = DecisionReason.POD_SUCCEEDED if pod.phase == "Succeeded" else DecisionReason.POD_FAILED
    cause = f" ({pod.waiting_reason})" if pod.waiting_reason else ""
    return DecisionType.REPLACE_POD, reason, f"replace {pod.name}: its phase is {pod.phase}{cause}"


def _duplicates(situation: Situation) -> tuple[DeletePod, ...]:
    commands = []
    for pod in situation.duplicates:
        if pod.slot is None or not situation.settled(pod.slot):
            continue
        kept = situation.filling[pod.slot].name
        message = f"delete {pod.name}: {kept} fills the slot"
        commands.append(_delete(pod, DecisionType.DELETE_POD, DecisionReason.DUPLICATE_IN_SLOT, message))
    return tuple(commands)


def _delete(pod: PodView, kind: DecisionType, reason: DecisionReason, message: str) -> DeletePod:
    assert pod.slot is not None
    why = decision(kind, reason, message, slot=pod.slot, pod=pod.name)
    return DeletePod(pod.slot, pod.name, pod.uid, None, why)
