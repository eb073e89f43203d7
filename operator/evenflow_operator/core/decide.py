"""One decision about one pool: policies in the order of docs/design.md §5, from a snapshot to a plan. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from evenflow_contract.worker_config import Admission
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import Mode
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.caps import CapOutcome, admission_for
from evenflow_operator.core.decisions import identity, merged, proposed, recorded, unadvised
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.placement.assign import Assignment, assign, classes_joining, loss_of
from evenflow_operator.core.placement.lengths import observe
from evenflow_operator.core.placement.severity_cache import SeverityCache
from evenflow_operator.core.plan import (
    Command,
    CreatePod,
    Decision,
    DryRunPod,
    Notice,
    PatchPod,
    Plan,
    PushConfig,
)
from evenflow_operator.core.pods.config import base_config, slot_config
from evenflow_operator.core.pods.patches import patches, pushes
from evenflow_operator.core.pods.render import PodRequest, render_pod
from evenflow_operator.core.readings.rates import renewed_rates
from evenflow_operator.core.requeue import requeue_after
from evenflow_operator.core.scaling.policy import Scaling, scaled
from evenflow_operator.core.scaling.samples import newest, renewed_history
from evenflow_operator.core.scaling.slots import nominal_calibration, slot_uses
from evenflow_operator.core.scaling.state import ScalingState
from evenflow_operator.core.services import services
from evenflow_operator.core.slots.drains import Drains, drains
from evenflow_operator.core.slots.refill import Refill, create_command, failures_of, refill
from evenflow_operator.core.slots.stalls import renewed_progress
from evenflow_operator.core.slots.survey import Situation, survey, warming
from evenflow_operator.core.snapshot import Snapshot
from evenflow_operator.core.status.grace import carried_over
from evenflow_operator.core.status.notices import notices
from evenflow_operator.core.status.pool import invalid_status, pool_status
from evenflow_operator.core.status.throttle import next_write, throttled


def decide(snapshot: Snapshot, cache: SeverityCache) -> Plan:
    """What to do about the pool now. A spec that can't be read, or a pool that is being deleted, is left alone."""
    if snapshot.pool is None:
        invalid = invalid_status(snapshot)
        news, memory = _told(invalid, snapshot.memory)
        status, memory = throttled(invalid, memory, snapshot.now)
        return Plan((), (), status, memory, None, news)
    if snapshot.pool.metadata.deletion_timestamp is not None:
        return Plan((), (), None, snapshot.memory, None)
    spec = snapshot.pool.spec
    situation = survey(_perceived(snapshot, spec), spec)
    outcome = _outcome(situation, cache)
    if spec.mode is Mode.PAUSED:
        outcome = replace(outcome, commands=(), decisions=())
        return _plan(situation, outcome, situation.snapshot.memory)
    if spec.mode is Mode.ADVISORY:
        advice = proposed(outcome.decisions)
        told = unadvised(snapshot.memory.decisions, snapshot.memory.advised, advice)
        outcome = replace(outcome, commands=(), decisions=told)
        memory = replace(_remember_advice(situation, outcome), advised=frozenset(map(identity, advice)))
        return _plan(situation, outcome, memory)
    return _plan(situation, outcome, _remember(situation, outcome))


def _perceived(snapshot: Snapshot, spec: LLMServingPoolSpec) -> Snapshot:
    """The snapshot with what its readings add to the memory."""
    own = [pod for pod in snapshot.pods if pod.slot is not None and pod.owner_uid in (snapshot.uid, None)]
    memory = replace(snapshot.memory, began_at=snapshot.memory.began_at or snapshot.now)
    snapshot = replace(snapshot, memory=memory)
    # The lengths of the engines that answered first must not stand for the pool's.
    known = memory.observed, memory.observed_at
    observed, observed_at = known if warming(snapshot, spec, own) else observe(snapshot)
    memory = replace(
        memory,
        progress=renewed_progress(snapshot, own, spec.metrics.interval_seconds),
        rates=renewed_rates(snapshot, own),
        observed=observed,
        observed_at=observed_at,
        scaling=ScalingState()
        if spec.autoscaling is None
        else replace(memory.scaling, history=renewed_history(snapshot, own, spec.metrics)),
    )
    return replace(snapshot, memory=memory)


def _outcome(situation: Situation, cache: SeverityCache) -> Outcome:
    filled = refill(situation)
    drained = drains(situation, lambda slot: loss_of(situation, slot))
    leaving = _leaving(situation, drained)
    assignment = assign(situation, leaving, situation.snapshot.memory.observed, cache)
    caps = _caps(situation, assignment)
    admissions = {slot: outcome.admission for slot, outcome in caps.items()}
    deletes = (*filled.deletes, *drained.deletes)
    deleted = frozenset(command.uid for command in deletes)
    patched = patches(situation, assignment, drained, admissions, deleted)
    served = services(situation)
    creates = _creates(situation, filled, assignment, admissions)
    scaling = _scaling(situation, assignment, leaving)
    pushed = pushes(situation, deleted | {patch.command.uid for patch in patched})
    commands: tuple[Command, ...] = (
        *served.commands,
        *deletes,
        *creates,
        *(patch.command for patch in patched),
        *pushed,
        *_dry_run(situation, filled, drained, assignment, admissions),
    )
    if scaling is not None and scaling.command is not None:
        commands = (*commands, scaling.command)
    decisions: list[Decision] = [*served.decisions, *assignment.decisions]
    decisions += [command.decision for command in deletes]
    decisions += [command.decision for command in creates]
    decisions += [one for patch in patched for one in patch.decisions]
    decisions += [scaling.command.decision] if scaling is not None and scaling.command is not None else []
    return Outcome(filled, drained, assignment, caps, served, scaling, commands, merged(decisions))


def _scaling(situation: Situation, assignment: Assignment, leaving: frozenset[int]) -> Scaling | None:
    spec = situation.spec
    if spec.autoscaling is None:
        return None
    classes = {slot: assignment.classes.get(slot, ()) for slot in situation.slots - leaving}
    history = situation.snapshot.memory.scaling.history
    slots, latest = (
        slot_uses(situation, classes, assignment.figures, part)
        for part in (history, newest(history, spec.metrics.interval_seconds))
    )
    loss, joining = partial(loss_of, situation), partial(classes_joining, situation, assignment, leaving)
    return scaled(situation, spec.autoscaling, slots, latest, nominal_calibration(spec), loss, joining)


def _leaving(situation: Situation, drained: Drains) -> frozenset[int]:
    """Slots on their way out for a scale-down: placement doesn't count on them."""
    scale_down = DecisionReason.SCALE_DOWN.value
    going = {
        slot
        for slot, pod in situation.filling.items()
        if pod.drain_started is not None and pod.drain_reason == scale_down and slot not in drained.cancel
    }
    starting = {slot for slot, why in drained.start.items() if why.reason == scale_down}
    deleted = {command.slot for command in drained.deletes if command.decision.reason == scale_down}
    return frozenset(going | starting | deleted)


def _caps(situation: Situation, assignment: Assignment) -> dict[int, CapOutcome]:
    snapshot, spec, warming = situation.snapshot, situation.spec, situation.warming
    return {
        slot: admission_for(
            snapshot,
            spec,
            slot,
            situation.filling.get(slot),
            assignment.figures.get(slot),
            warming=warming,
        )
        for slot in sorted(situation.slots)
    }


def _creates(
    situation: Situation, filled: Refill, assignment: Assignment, admissions: Mapping[int, Admission]
) -> tuple[CreatePod, ...]:
    commands = []
    for slot in filled.creates:
        manifest = _next_pod(situation, slot, filled, assignment, admissions)
        commands.append(create_command(situation, slot, manifest, failures_of(filled.backoff, slot)))
    return tuple(commands)


def _dry_run(
    situation: Situation, filled: Refill, drained: Drains, assignment: Assignment, admissions: Mapping[int, Admission]
) -> tuple[DryRunPod, ...]:
    """The question whether the API server would take the pod that the first outdated slot gets next, when it is due.

    A create in the same plan answers it, too.
    """
    outdated = [slot for slot, pod in situation.filling.items() if pod.revision != situation.revision]
    if drained.standing.due != 0 or filled.creates or not outdated:
        return ()
    manifest = _next_pod(situation, outdated[0], filled, assignment, admissions)
    return (DryRunPod(situation.revision, situation.snapshot.generation, manifest),)


def _next_pod(
    situation: Situation, slot: int, filled: Refill, assignment: Assignment, admissions: Mapping[int, Admission]
) -> dict[str, Any]:
    snapshot = situation.snapshot
    classes = assignment.classes.get(slot, ())
    request = PodRequest(
        pool=snapshot.name,
        namespace=snapshot.namespace,
        pool_uid=snapshot.uid,
        spec=situation.spec,
        slot=slot,
        attempt=1 + max(situation.highest_attempt.get(slot, 0), failures_of(filled.backoff, slot)),
        revision=situation.revision,
        config=slot_config(base_config(situation.spec), classes, admissions[slot], draining=False),
        worker_image=situation.worker_image,
        admin_open=snapshot.extra.get("admin_write") == "open",
    )
    return render_pod(request)


def _remember(situation: Situation, outcome: Outcome) -> PoolMemory:
    memory = situation.snapshot.memory
    pushed = {command.uid for command in outcome.commands if isinstance(command, PushConfig)}
    pushed |= {c.uid for c in outcome.commands if isinstance(c, PatchPod) and c.config is not None}
    present = {pod.uid for pod in situation.filling.values()}
    return replace(
        _remember_advice(situation, outcome),
        slots=situation.slots,
        placement=dict(outcome.assignment.classes),
        backoff=dict(outcome.refill.backoff),
        pushed_at={
            **{uid: at for uid, at in memory.pushed_at.items() if uid in present},
            **dict.fromkeys(pushed, situation.now),
        },
    )


def _remember_advice(situation: Situation, outcome: Outcome) -> PoolMemory:
    """What stays in mind when nothing is done: controllers go on watching, slots and placement stay as they are."""
    caps = {
        pod.uid: state
        for slot, pod in situation.filling.items()
        if slot in outcome.caps and (state := outcome.caps[slot].state) is not None
    }
    memory = situation.snapshot.memory
    scaling = memory.scaling if outcome.scaling is None else outcome.scaling.state
    return replace(
        memory,
        caps=caps,
        scaling=scaling,
        dry_run=outcome.drains.standing.known,
        decisions=recorded(memory.decisions, outcome.decisions, situation.now),
    )


def _plan(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Plan:
    now = situation.now
    complete = carried_over(pool_status(situation, outcome, memory), memory, now, warming=situation.warming)
    news, memory = _told(complete, memory)
    status, memory = throttled(complete, memory, now)
    again = requeue_after(situation, outcome, next_write(complete, memory, now))
    figures = None if outcome.scaling is None else outcome.scaling.figures
    return Plan(outcome.commands, outcome.decisions, status, memory, again, news, figures)


def _told(status: Mapping[str, Any], memory: PoolMemory) -> tuple[tuple[Notice, ...], PoolMemory]:
    news, told = notices(status["conditions"], memory.told)
    return news, replace(memory, told=told)
