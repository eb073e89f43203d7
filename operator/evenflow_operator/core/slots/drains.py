"""Taking pods out of service: user's drains, rollout and scale-down (docs/design.md §5.1).

A drained pod first loses its `serving` label, then may be deleted once it runs nothing or its time is over. One
disruptive command per pool at a time; only a rollout may have more slots under way, up to maxUnavailable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.core.decisions import decision
from evenflow_operator.core.plan import Decision, DeletePod
from evenflow_operator.core.readings.facts import in_flight
from evenflow_operator.core.slots.broken import CRASHED, corrections, serves_nobody
from evenflow_operator.core.slots.dry_run import Standing, standing
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView

SETTLE_SECONDS = 3.0
"""Endpoint changes take up to 2 s to reach every client: an engine that looks idle earlier may still get a request."""

STUCK_SECONDS = 1800.0
"""A new revision that takes longer to load than this is taken for broken."""

ROLLOUT_REASONS = frozenset({DecisionReason.REVISION_CHANGED.value, DecisionReason.RESTART_REQUESTED.value})


@dataclass(frozen=True, slots=True)
class Drains:
    """`start` maps slots whose drain begins now to the decision; `cancel` are those that go back into service."""

    start: Mapping[int, Decision] = field(default_factory=dict)
    cancel: frozenset[int] = frozenset()
    deletes: tuple[DeletePod, ...] = ()
    rollout_stuck: str | None = None
    """Why the rollout takes no further slot although there are some to take."""
    standing: Standing = field(default_factory=Standing)
    """Where the pool's revision stands with the API server; it is asked now if that is due."""

    @property
    def disruptive(self) -> bool:
        return bool(self.start or self.deletes)


SlotLoss = Callable[[int], tuple[float, ...]]
"""How much the loss of a slot hurts the placement: the smaller the better the victim."""


def drains(situation: Situation, loss: SlotLoss) -> Drains:
    asked = standing(situation)
    cancel = _cancelled(situation, asked)
    under_way = {
        slot: pod
        for slot, pod in situation.filling.items()
        if pod.drain_started is not None and slot not in cancel and situation.settled(slot)
    }
    deletes = tuple(
        command
        for slot, pod in under_way.items()
        # A rollout that goes on to yet another revision waits for word of it, too.
        if (asked.allowed or pod.drain_reason not in ROLLOUT_REASONS)
        and (command := _finished(situation, slot, pod)) is not None
    )
    stuck = _stuck(situation) if asked.refusal is None else f"the API server refuses pods of {asked.refusal.revision}"
    corrected = corrections(situation)
    if corrected:
        return Drains({}, cancel, (*deletes, *corrected), stuck, replace(asked, due=None))
    for policy in _policies(asked):
        found = policy(situation, under_way, cancel, loss)
        if found is None:
            continue
        pod = situation.filling[found.slot]
        if serves_nobody(pod):
            message = f"delete {pod.name}: it serves nobody; {found.because}"
            why = decision(DecisionType.DELETE_POD, found.reason, message, slot=found.slot, pod=pod.name)
            return Drains({}, cancel, (*deletes, _delete(found.slot, pod, why)), stuck, asked)
        message = f"drain {pod.name}: {found.because}"
        why = decision(found.kind, found.reason, message, slot=found.slot, pod=pod.name)
        return Drains({found.slot: why}, cancel, deletes, stuck, asked)
    return Drains({}, cancel, deletes, stuck, asked)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The slot that is to be emptied next, the type of the decision to drain it, and why."""

    slot: int
    kind: DecisionType
    reason: DecisionReason
    because: str


_Policy = Callable[[Situation, Mapping[int, PodView], frozenset[int], SlotLoss], _Candidate | None]


def _policies(asked: Standing) -> tuple[_Policy, ...]:
    """In their order. No pod is given up for one that the API server may refuse; a scale-down needs none."""
    if asked.allowed:
        return (_users_drain, _rollout, _scale_down)
    return () if asked.due == 0 else (_scale_down,)


def _users_drain(
    situation: Situation, under_way: Mapping[int, PodView], cancel: frozenset[int], loss: SlotLoss
) -> _Candidate | None:
    """A user asks for it with the annotation `evenflow.dev/drain-reason` on the pod."""
    if under_way:
        return None
    for slot, pod in situation.filling.items():
        if pod.drain_reason is not None and pod.drain_started is None and situation.settled(slot):
            return _Candidate(slot, DecisionType.DRAIN, DecisionReason.USER_DRAIN, pod.drain_reason[:200])
    return None


def _rollout(
    situation: Situation, under_way: Mapping[int, PodView], cancel: frozenset[int], loss: SlotLoss
) -> _Candidate | None:
    if any(pod.drain_reason not in ROLLOUT_REASONS for pod in under_way.values()) or _stuck(situation) is not None:
        return None
    outdated = {
        slot: pod
        for slot, pod in situation.filling.items()
        if pod.revision != situation.revision and pod.drain_started is None and situation.settled(slot)
    }
    if not outdated:
        return None
    unavailable = situation.unavailable_slots()
    # An outdated pod that serves nobody costs nothing to replace, so only the others count against the budget.
    in_the_way = unavailable - set(outdated)
    slot = min(outdated, key=lambda number: (situation.available(outdated[number]), number))
    pod = outdated[slot]
    counted = unavailable if situation.available(pod) else in_the_way
    if len(counted) >= situation.spec.rollout.max_unavailable:
        return None
    because = f"revision {pod.revision} becomes {situation.revision}"
    return _Candidate(slot, DecisionType.ROLLOUT, DecisionReason.REVISION_CHANGED, because)


def _scale_down(
    situation: Situation, under_way: Mapping[int, PodView], cancel: frozenset[int], loss: SlotLoss
) -> _Candidate | None:
    slot = None if under_way or situation.surplus == 0 else scale_down_victim(situation, loss)
    if slot is None:
        return None
    because = f"{situation.spec.replicas} replicas wanted, {len(situation.slots)} slots"
    return _Candidate(slot, DecisionType.SCALE, DecisionReason.SCALE_DOWN, because)


def scale_down_victim(situation: Situation, loss: SlotLoss) -> int | None:
    """The slot that goes first when there are too many; None when there is none to choose from."""
    filling = situation.filling
    candidates = [slot for slot, pod in filling.items() if pod.drain_started is None and situation.settled(slot)]
    return min(
        candidates,
        key=lambda number: (
            situation.available(filling[number]),
            loss(number),
            filling[number].revision == situation.revision,
            -number,
        ),
        default=None,
    )


def _stuck(situation: Situation) -> str | None:
    """A pod of the current revision that doesn't come up stops the rollout, whatever maxUnavailable allows."""
    if all(pod.revision == situation.revision for pod in situation.filling.values()):
        return None
    for slot, pod in situation.filling.items():
        if pod.revision != situation.revision or pod.ready:
            continue
        if pod.waiting_reason in CRASHED:
            return f"slot {slot}: {pod.name} of the new revision doesn't start ({pod.waiting_reason})"
        if situation.now - pod.created_at > STUCK_SECONDS:
            return f"slot {slot}: {pod.name} of the new revision isn't ready after {STUCK_SECONDS / 60:.0f} minutes"
    return None


def _cancelled(situation: Situation, asked: Standing) -> frozenset[int]:
    cancelled = set()
    scaling = []
    for slot, pod in situation.filling.items():
        if pod.drain_started is None or not situation.settled(slot):
            continue
        if pod.drain_reason == DecisionReason.SCALE_DOWN.value:
            scaling.append(slot)
        elif pod.drain_reason is None or (
            pod.drain_reason in ROLLOUT_REASONS and (asked.refusal is not None or pod.revision == situation.revision)
        ):
            cancelled.add(slot)
    scaling.sort(reverse=True)
    return frozenset(cancelled | set(scaling[situation.surplus :]))


def _finished(situation: Situation, slot: int, pod: PodView) -> DeletePod | None:
    """Unknown is not zero: without a reading from after the drain began, only the timeout ends it, unless the engine's
    container doesn't run at all."""
    assert pod.drain_started is not None
    waited = situation.now - pod.drain_started
    limit = situation.spec.rollout.drain_timeout_seconds
    reading = situation.snapshot.readings.get(pod.uid)
    left = 0.0 if pod.engine_waiting else in_flight(reading, pod.drain_started + SETTLE_SECONDS)
    out_of_service = not pod.serving and pod.uid not in situation.snapshot.routable
    if out_of_service and left == 0:
        message = f"delete {pod.name}: drained in {waited:.0f} s"
        reason = DecisionReason.DRAINED
    elif waited >= limit:
        running = "an unknown number of" if left is None else f"{left:.0f}"
        message = f"delete {pod.name}: drain timeout of {limit} s over, {running} requests left"
        reason = DecisionReason.DRAIN_TIMED_OUT
    else:
        return None
    why = decision(DecisionType.DELETE_POD, reason, message, slot=slot, pod=pod.name, waited=waited, left=left)
    return _delete(slot, pod, why)


def _delete(slot: int, pod: PodView, why: Decision) -> DeletePod:
    return DeletePod(slot, pod.name, pod.uid, pod.resource_version, why)
