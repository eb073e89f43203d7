"""How many replicas the pool should have: up at once, down slowly, never on figures that aren't there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenflow_operator.api.conditions import DecisionReason, ScalingLimitedReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.api.spec import Autoscaling, LLMServingPoolSpec
from evenflow_operator.core.decisions import REPLICAS_INPUT, decision, scaled_at
from evenflow_operator.core.plan import ScalePool, ScalingFigures
from evenflow_operator.core.scaling.growth import Joining, growth, on_their_way
from evenflow_operator.core.scaling.load import GroupLoad, PoolLoad, SlotUse, calibration_of, pool_load
from evenflow_operator.core.scaling.samples import window_seconds
from evenflow_operator.core.scaling.state import ScalingState
from evenflow_operator.core.scaling.window import highest, noted
from evenflow_operator.core.scaling.wording import (
    down_message,
    figures_of,
    load_words,
    stuck_message,
    up_message,
)
from evenflow_operator.core.scaling.writers import known_writers, noticed, other_writer
from evenflow_operator.core.slots.drains import SlotLoss, scale_down_victim
from evenflow_operator.core.slots.survey import Situation

STEP_FACTOR = 2
STEP_REPLICAS = 4
"""One step up ends at so many times the replicas, or so many more, whichever is higher (as in Kubernetes' HPA)."""
SAID_LOW_SECONDS = 60.0
"""The condition calls a load low that was so for this long: noise must not make it flap."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """`limited` is what the condition ScalingLimited says: whether, why, and a message."""

    state: ScalingState
    limited: tuple[bool, ScalingLimitedReason, str]
    command: ScalePool | None = None
    figures: ScalingFigures | None = None


def bounds_of(spec: LLMServingPoolSpec, autoscaling: Autoscaling) -> tuple[int, int]:
    """Fewest and most replicas. Classes ask for some whatever the load: their minReplicas, and room for all of them."""
    classes = spec.traffic_classes
    wanted = max((entry.min_replicas for entry in classes), default=1)
    room = math.ceil(len(classes) / spec.placement.max_classes_per_replica)
    high = autoscaling.max_replicas
    return min(high, max(autoscaling.min_replicas, wanted, room)), high


def scaled(
    situation: Situation,
    autoscaling: Autoscaling,
    slots: Sequence[SlotUse],
    latest: Sequence[SlotUse],
    nominal: float,
    loss: SlotLoss,
    joining: Joining,
) -> Scaling:
    """`slots` are those that stay, `latest` the same as of the last interval alone, where a surge shows at once;
    `nominal`: wall seconds per modelled engine second until measured; `joining`: what further slots would serve."""
    snapshot, replicas = situation.snapshot, situation.spec.replicas
    reason = ScalingLimitedReason
    records = snapshot.memory.decisions
    state = noticed(snapshot.memory.scaling, replicas, snapshot.replica_writers, records, situation.now)
    unknown = replace(state, recommended=(), complete_since=None)
    if replicas == 0:
        return Scaling(unknown, (False, reason.DISABLED, "spec.replicas is 0: the autoscaler leaves it there"))
    rival = other_writer(known_writers(state, snapshot.replica_writers), records, situation.now)
    if rival is not None:
        return Scaling(unknown, (True, reason.OTHER_WRITER, rival))
    low, high = bounds_of(situation.spec, autoscaling)
    if not low <= replicas <= high:
        return Scaling(unknown, *_into_bounds(situation, low, high))
    target = autoscaling.target_load_percent / 100
    measured = calibration_of(slots, nominal, state.calibration)
    load, surge = (pool_load(part, target, measured or nominal) for part in (slots, latest))
    problem = _unknown(situation, load)
    if problem is not None:
        return Scaling(unknown, (True, reason.METRICS_UNAVAILABLE, f"{problem}: replicas stay at {replicas}"))
    called, seen = load.called_for(target), load
    if surge.more(target) > max(called, replicas):
        called, seen = surge.more(target), surge
    window = float(autoscaling.scale_down_stabilization_seconds)
    state = replace(
        state,
        calibration=measured,
        recommended=noted(state.recommended, situation.now, called, max(window, SAID_LOW_SECONDS)),
        complete_since=state.complete_since or situation.now,
    )
    most = min(high, max(STEP_FACTOR * replicas, replicas + STEP_REPLICAS))
    grown = growth(seen, target, on_their_way(slots), joining, most - replicas)
    command = _up(situation, seen, min(most, seen.slots + grown.slots), called, target)
    limited = _limited(situation, load, called, state, (low, high), window)
    if grown.stuck is not None:
        limited = reason.PLACEMENT_LIMITS, stuck_message(grown.stuck, target, most - replicas)
    if command is None and limited is None:
        obstacle = _obstacle(situation, load, state, window, target, loss)
        if obstacle is None:
            command = _down(situation, load, target)
        else:
            limited = reason.STABILIZING, f"the load calls for {called} of {replicas}, but {obstacle}"
    return Scaling(state, _said(limited, load_words(seen, target)), command, figures_of(seen, called))


def _said(limited: tuple[ScalingLimitedReason, str] | None, words: str) -> tuple[bool, ScalingLimitedReason, str]:
    within = ScalingLimitedReason.WITHIN_LIMITS
    if limited is None or limited[0] is within:
        return False, within, words
    return True, limited[0], f"{limited[1]}; {words}"


def _limited(
    situation: Situation, load: PoolLoad, called: int, state: ScalingState, bounds: tuple[int, int], window: float
) -> tuple[ScalingLimitedReason, str] | None:
    """Why replicas don't move, or that they needn't; None when fewer would do and are allowed."""
    reason = ScalingLimitedReason
    low, high = bounds
    if called > high:
        return reason.AT_MAX_REPLICAS, f"the load calls for {called}, maxReplicas is {high}"
    if load.silent:
        silent = ", ".join(map(str, load.silent[:8]))
        return reason.METRICS_UNAVAILABLE, f"no usable figures of slot {silent}, so replicas don't fall"
    replicas = situation.spec.replicas
    if highest(state.recommended, situation.now - min(window, SAID_LOW_SECONDS)) >= replicas:
        return reason.WITHIN_LIMITS, ""
    if replicas <= low:
        return reason.AT_MIN_REPLICAS, f"the load calls for {called}, minReplicas or the classes for {low}"
    return None


def _into_bounds(
    situation: Situation, low: int, high: int
) -> tuple[tuple[bool, ScalingLimitedReason, str], ScalePool | None]:
    """Without a command within an interval of the last step: the pool may not yet show it."""
    replicas = situation.spec.replicas
    to = min(high, max(low, replicas))
    message = f"replicas {replicas} -> {to}: spec.autoscaling and the classes allow {low} to {high}"
    why = decision(DecisionType.SCALE, DecisionReason.OUT_OF_BOUNDS, message, **{REPLICAS_INPUT: to})
    waits = _scaled_within(situation, situation.spec.metrics.interval_seconds)
    return (False, ScalingLimitedReason.WITHIN_LIMITS, message), None if waits else ScalePool(to, why)


def _unknown(situation: Situation, load: PoolLoad) -> str | None:
    """Why nothing can be said about the load."""
    snapshot = situation.snapshot
    if snapshot.metrics_source_problem is not None:
        return f"the metric source is unavailable ({snapshot.metrics_source_problem[:200]})"
    if situation.warming:
        return "the operator has just started, and not every engine was heard"
    if not any(group.serving for group in load.groups):
        return "no slot serves long enough to tell the load"
    return None if load.known else "no engine gives usable figures"


def _up(situation: Situation, load: PoolLoad, to: int, called: int, target: float) -> ScalePool | None:
    """None when no further slot is of use, at the upper bound, and within an interval of the last step."""
    replicas = situation.spec.replicas
    if to <= replicas or _scaled_within(situation, situation.spec.metrics.interval_seconds):
        return None
    message = up_message(load, replicas, to, target)
    inputs = {"from": replicas, REPLICAS_INPUT: to, "calledFor": called, **_inputs(load, target)}
    return ScalePool(to, decision(DecisionType.SCALE, DecisionReason.LOAD_ABOVE_TARGET, message, slot=None, **inputs))


def _down(situation: Situation, load: PoolLoad, target: float) -> ScalePool:
    to = situation.spec.replicas - 1
    message = down_message(load, to, target)
    inputs = {"from": to + 1, REPLICAS_INPUT: to, **_inputs(load, target)}
    return ScalePool(to, decision(DecisionType.SCALE, DecisionReason.LOAD_BELOW_TARGET, message, slot=None, **inputs))


def _obstacle(
    situation: Situation, load: PoolLoad, state: ScalingState, window: float, target: float, loss: SlotLoss
) -> str | None:
    """Why no replica is taken away now although fewer would do."""
    replicas, now = situation.spec.replicas, situation.now
    if highest(state.recommended, now - window) >= replicas:
        return f"{highest(state.recommended, now - window)} were called for within {window:g} s"
    since = state.complete_since
    if since is None or now - since < window:
        return f"the load must be known for {window:g} s first"
    if situation.surplus > 0 or any(pod.drain_started is not None for pod in situation.filling.values()):
        return "a slot is still draining"
    if any(pod.revision != situation.revision for pod in situation.filling.values()):
        return "a rollout is under way"
    if _scaled_within(situation, window_seconds(situation.spec.metrics.interval_seconds)):
        return "the last change must show in the figures first"
    victim = scale_down_victim(situation, loss)
    group = next((one for one in load.groups if victim in one.slots), None)
    if group is None or not _can_spare(situation, group, victim, target):
        return f"slot {victim}, the next to go, is needed by the classes it serves"
    return None


def _can_spare(situation: Situation, group: GroupLoad, victim: int | None, target: float) -> bool:
    """A slot that doesn't serve can always go; of those that do, the others must stay below the target."""
    pod = None if victim is None else situation.filling.get(victim)
    return (pod is not None and not situation.available(pod)) or group.called_for(target) < len(group.slots)


def _scaled_within(situation: Situation, seconds: float) -> bool:
    at = scaled_at(situation.snapshot.memory.decisions)
    return at is not None and 0 <= situation.now - at < seconds


def _inputs(load: PoolLoad, target: float) -> dict[str, object]:
    return {
        "targetPercent": round(100 * target),
        "boundBy": load.fullest.binding,
        "kvPercent": 100 * load.share("kv"),
        "stepBudgetPercent": 100 * load.share("stepBudget"),
        "sequencesPercent": 100 * load.share("sequences"),
        "arrivalsPerMinute": None if load.arrivals is None else 60 * load.arrivals,
        "waiting": load.waiting,
        "drainSeconds": load.drain_seconds,
    }
