"""Conditions about slots and their pods: Ready, Progressing, Degraded, ScalingLimited."""

from evenflow_operator.api.conditions import DegradedReason, ProgressingReason, ReadyReason, ScalingLimitedReason
from evenflow_operator.api.enums import Mode
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.readings.facts import applied_generation
from evenflow_operator.core.slots.broken import broken, failure
from evenflow_operator.core.slots.dry_run import told
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.status.verdict import Verdict, false, slot_list, true
from evenflow_operator.core.times import parse_time

CONFIG_LATE_SECONDS = 60.0


def ready(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    wanted = situation.spec.replicas
    available = [pod for pod in situation.filling.values() if situation.available(pod)]
    count = f"{len(available)} of {wanted} slots serve"
    if wanted == 0 and not available:
        return false(ReadyReason.SCALED_TO_ZERO, "spec.replicas is 0")
    if not available:
        return false(ReadyReason.NO_READY_SLOTS, count)
    served = frozenset().union(*(pod.classes for pod in available))
    unserved = [entry.name for entry in situation.spec.traffic_classes if entry.name not in served]
    if unserved:
        return false(ReadyReason.CLASS_UNSERVED, f"{count}; no slot serves {', '.join(unserved)}")
    if len(available) < wanted:
        return false(ReadyReason.SOME_SLOTS_READY, count)
    return true(ReadyReason.ALL_SLOTS_READY, count)


def progressing(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = ProgressingReason
    mode = situation.spec.mode
    if mode is Mode.PAUSED:
        return false(reason.PAUSED, "spec.mode is Paused: nothing is decided")
    if mode is Mode.ADVISORY:
        return false(reason.ADVISORY, "spec.mode is Advisory: status.decisions says what would be done")
    filling = situation.filling
    draining = [slot for slot, pod in filling.items() if pod.drain_started is not None]
    draining = sorted({*draining, *outcome.drains.start} - outcome.drains.cancel)
    outdated = [slot for slot, pod in filling.items() if pod.revision != situation.revision]
    empty = sorted(slot for slot in situation.slots if slot not in filling)
    waiting = sorted(situation.unavailable_slots() - set(empty) - set(draining))
    if outdated and outcome.drains.rollout_stuck is not None:
        return false(
            reason.ROLLOUT_STUCK, f"{outcome.drains.rollout_stuck}; {len(outdated)} slots are left as they are"
        )
    if outdated:
        done = f"{len(filling) - len(outdated)} of {len(situation.slots)} slots have revision {situation.revision}"
        unanswered = outcome.drains.standing.unanswered
        return true(reason.ROLLING_OUT, f"{done}; not known yet if it is taken: {unanswered}" if unanswered else done)
    if situation.surplus > 0:
        return true(reason.SCALING_DOWN, f"{len(situation.slots)} slots, {situation.spec.replicas} wanted")
    if draining:
        return true(reason.DRAINING, f"requests still finish on {slot_list(draining)}")
    if empty:
        return true(reason.CREATING_PODS, f"no pod yet for {slot_list(empty)}")
    if waiting:
        return true(reason.WAITING_FOR_PODS, f"not serving yet: {slot_list(waiting)}")
    moving = sorted(
        slot for slot, pod in filling.items() if pod.classes != frozenset(outcome.assignment.classes.get(slot, ()))
    )
    if moving:
        return true(reason.REBALANCING, f"classes change on {slot_list(moving)}")
    return false(reason.STABLE, f"{len(filling)} slots are as wanted")


def degraded(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = DegradedReason
    snapshot, filling = situation.snapshot, situation.filling
    lost = [pod for pod in situation.dead if pod.node is not None and pod.node in snapshot.lost_nodes]
    if lost:
        return true(reason.NODE_LOST, f"{lost[0].name} was on node {lost[0].node}, which is lost")
    if situation.dead:
        return true(reason.POD_FAILED, f"{situation.dead[0].name} ended in phase {situation.dead[0].phase}")
    crashed = next((pod for pod in filling.values() if broken(pod)), None)
    if crashed is not None:
        return true(reason.POD_FAILED, f"{crashed.name}: {failure(crashed)}")
    refused = {slot: why for slot, why in snapshot.create_refusals.items() if slot in situation.slots}
    if refused:
        slot, message = min(refused.items())
        return true(reason.CREATE_REFUSED, f"slot {slot}: {message[:500]}")
    if outcome.drains.standing.refusal is not None:
        return true(reason.CREATE_REFUSED, told(outcome.drains.standing.refusal))
    if outcome.refill.backing_off:
        return true(reason.BACK_OFF, f"waiting after failures: {slot_list(sorted(outcome.refill.backing_off))}")
    stalled = sorted(slot for slot, pod in filling.items() if situation.stalled(pod))
    if stalled:
        return true(reason.ENGINE_STALLED, f"{slot_list(stalled)}: requests wait, but the engine doesn't iterate")
    unplaced = [pod for pod in filling.values() if pod.unschedulable is not None]
    if unplaced:
        return true(reason.INSUFFICIENT_ACCELERATORS, f"{unplaced[0].name}: {unplaced[0].unschedulable}"[:1000])
    conflicts = outcome.services.conflicts
    if conflicts:
        names = ", ".join(conflicts)
        return true(reason.SERVICE_CONFLICT, f"not this pool's, so requests to it reach somebody else: Service {names}")
    late = _late_configs(situation, memory)
    if late:
        return true(reason.CONFIG_NOT_APPLIED, f"worker config not applied for a minute: {slot_list(late)}")
    if outcome.refill.waiting_for_gpus:
        slots = slot_list(sorted(outcome.refill.waiting_for_gpus))
        return true(reason.WAITING_FOR_GPUS, f"terminating pods still hold the GPUs for {slots}")
    return false(reason.AS_EXPECTED, "nothing is wrong")


def scaling_limited(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = ScalingLimitedReason
    if any(pod.unschedulable is not None for pod in situation.filling.values()):
        return true(reason.INSUFFICIENT_ACCELERATORS, "the cluster has no room for every replica that is wanted")
    if outcome.scaling is None:
        return false(reason.DISABLED, "spec.autoscaling is absent: replicas are yours to set")
    refusal = situation.snapshot.scale_refusal
    if refusal is not None and outcome.scaling.command is not None:
        cure = "let the operator patch llmservingpools/scale, or set replicas yourself, without spec.autoscaling"
        return true(reason.WRITE_REFUSED, f"{refusal[:500]}; {cure}")
    limited, why, message = outcome.scaling.limited
    return true(why, message) if limited else false(why, message)


def _late_configs(situation: Situation, memory: PoolMemory) -> list[int]:
    """Slots that lag behind their annotation, once CapsConverged has been false for long enough."""
    status, since = memory.conditions.get("CapsConverged", ("", ""))
    time = parse_time(since)
    if status != "False" or time is None or situation.now - time < CONFIG_LATE_SECONDS:
        return []
    late = []
    for slot, pod in situation.filling.items():
        applied = applied_generation(situation.snapshot.readings.get(pod.uid))
        if pod.ready and pod.worker_config is not None and applied is not None:
            late += [slot] if applied < pod.worker_config.generation else []
    return late
