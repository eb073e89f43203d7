"""The pool's conditions: each a small judgement of what was observed, none of them a wish."""

from collections.abc import Callable, Mapping
from typing import Any

from evenflow_operator.api import conditions as reasons
from evenflow_operator.api.conditions import ConditionType
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.status import conditions_engines as engines
from evenflow_operator.core.status import conditions_lengths as lengths
from evenflow_operator.core.status import conditions_slots as slots
from evenflow_operator.core.status.verdict import Verdict, false, true
from evenflow_operator.core.times import rfc3339

MAX_MESSAGE = 4096


def spec_valid(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = reasons.SpecValidReason
    spec, snapshot = situation.spec, situation.snapshot
    conflicts = outcome.services.conflicts
    if conflicts:
        names = ", ".join(conflicts)
        return false(
            reason.NAME_CONFLICT,
            f"not this pool's, but named as it needs: Service {names}; rename the pool or the class, or delete it",
        )
    if snapshot.admin_token_problem is not None:
        return false(reason.TOKEN_UNAVAILABLE, f"spec.adminTokenSecretRef: {snapshot.admin_token_problem}")
    too_large = lengths.too_large_class(situation)
    if too_large is not None:
        return false(reason.CLASS_TOO_LARGE, too_large)
    assignment = outcome.assignment
    if assignment.unplaced:
        return false(
            reason.PLACEMENT_INFEASIBLE,
            f"no slot serves {', '.join(assignment.unplaced)}; list the class in spec.placement.static",
        )
    if assignment.overfull:
        limit = spec.placement.max_classes_per_replica
        return false(
            reason.PLACEMENT_INFEASIBLE,
            f"{len(spec.traffic_classes)} classes don't fit on {len(situation.slots)} slots of {limit} each; "
            "raise spec.replicas or spec.placement.maxClassesPerReplica",
        )
    return true(reason.VALID, "the spec can be acted on")


Judge = Callable[[Situation, Outcome, PoolMemory], Verdict]

JUDGES: Mapping[ConditionType, Judge] = {
    ConditionType.READY: slots.ready,
    ConditionType.PROGRESSING: slots.progressing,
    ConditionType.DEGRADED: slots.degraded,
    ConditionType.SPEC_VALID: spec_valid,
    ConditionType.METRICS_AVAILABLE: engines.metrics_available,
    ConditionType.SCHEDULER_ACTIVE: engines.scheduler_active,
    ConditionType.CAPS_CONVERGED: engines.caps_converged,
    ConditionType.LENGTHS_DESYNCHRONIZED: lengths.lengths_desynchronized,
    ConditionType.EVICTION_FREE: engines.eviction_free,
    ConditionType.CLASS_LENGTH_DRIFT: lengths.class_length_drift,
    ConditionType.SCALING_LIMITED: slots.scaling_limited,
    ConditionType.REBALANCE_BLOCKED: lengths.rebalance_blocked,
}


def judged(situation: Situation, outcome: Outcome, memory: PoolMemory) -> list[dict[str, Any]]:
    """All conditions, in a fixed order."""
    snapshot = situation.snapshot
    return [
        condition(kind, judge(situation, outcome, memory), memory, snapshot.generation, snapshot.now)
        for kind, judge in JUDGES.items()
    ]


def condition(kind: ConditionType, verdict: Verdict, memory: PoolMemory, generation: int, now: float) -> dict[str, Any]:
    """The time of the last transition moves only when the status flips."""
    status, since = memory.conditions.get(kind.value, ("", ""))
    if status != verdict.status.value:
        since = rfc3339(now)
    return {
        "type": kind.value,
        "status": verdict.status.value,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": verdict.reason,
        "message": verdict.message[:MAX_MESSAGE],
    }


def transitions(conditions: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {entry["type"]: (entry["status"], entry["lastTransitionTime"]) for entry in conditions}
