"""Conditions about lengths and placement: LengthsDesynchronized, ClassLengthDrift, RebalanceBlocked."""

import math

from evenflow_operator.api.conditions import (
    ClassLengthDriftReason,
    LengthsDesynchronizedReason,
    RebalanceBlockedReason,
)
from evenflow_operator.core.caps import ACT_ABOVE
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.placement.lengths import known_enough
from evenflow_operator.core.placement.search import OK_BELOW
from evenflow_operator.core.readings.facts import usable_kv_tokens
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.status.figures import two_digits
from evenflow_operator.core.status.verdict import Verdict, false, true, unknown

DRIFT_SHARE = 0.3
"""Observed means that differ by more than this part of the declared ones are reported."""


def lengths_desynchronized(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = LengthsDesynchronizedReason
    figures = outcome.assignment.figures
    if not figures:
        none = not situation.spec.traffic_classes
        return (
            unknown(reason.NO_CLASSES, "no traffic classes are declared")
            if none
            else unknown(reason.UNKNOWN, "there are no slots to judge")
        )
    slot = max(figures, key=lambda number: (figures[number].severity, -number))
    worst = figures[slot]
    period = "" if worst.period is None else f", period {worst.period:.3g} iterations"
    message = f"slot {slot}: severity {two_digits(worst.severity):g}, length gcd {worst.gcd}{period}"
    if worst.severity < OK_BELOW:
        return true(reason.DESYNCHRONIZED, message)
    message += _cure(situation, outcome.assignment.classes.get(slot, ()))
    if worst.severity > ACT_ABOVE:
        return false(reason.SYNCHRONIZED, message)
    return unknown(reason.BORDERLINE, message)


def class_length_drift(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = ClassLengthDriftReason
    classes = situation.spec.traffic_classes
    if not classes:
        return false(reason.NO_CLASSES, "no traffic classes are declared")
    known = [entry for entry in classes if known_enough(memory, entry.name)]
    if not known:
        return unknown(reason.TOO_FEW_REQUESTS, "no class has completed 500 requests yet")
    drifted = []
    for entry in known:
        seen = memory.observed[entry.name]
        for name, observed, declared in (
            ("prompts", seen.prompt_tokens, entry.prompt_tokens),
            ("outputs", seen.output_tokens, entry.output_tokens),
        ):
            if abs(observed - declared) > DRIFT_SHARE * declared:
                drifted.append(f"{entry.name}: {name} of {two_digits(observed):g} tokens, declared {declared}")
    if drifted:
        return true(reason.DRIFTED, "; ".join(drifted))
    return false(reason.AS_DECLARED, f"{len(known)} of {len(classes)} classes have enough requests to judge")


def rebalance_blocked(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = RebalanceBlockedReason
    if outcome.assignment.overfull:
        return true(reason.INFEASIBLE, "there are too few slots for maxClassesPerReplica")
    if outcome.assignment.blocked is not None:
        why, message = outcome.assignment.blocked
        return true(why, message)
    return false(reason.NOT_BLOCKED, "no better placement is held back")


def too_large_class(situation: Situation) -> str | None:
    """Why requests of a class can't fit into the KV memory that an engine reports."""
    spec, readings = situation.spec, situation.snapshot.readings
    for slot, pod in situation.filling.items():
        usable = usable_kv_tokens(readings.get(pod.uid), spec.engine.kv_cache_tokens)
        for index, entry in enumerate(spec.traffic_classes):
            size = entry.prompt_tokens + entry.output_tokens
            if size > usable:
                return (
                    f"spec.trafficClasses[{index}]: {size} tokens of prompt and output, but slot {slot} has "
                    f"{usable} tokens of KV memory; lower them or use more GPUs per replica"
                )
    return None


def _cure(situation: Situation, names: tuple[str, ...]) -> str:
    """What would end the rhythm of fixed lengths: the smallest tier whose trim by one token breaks the gcd."""
    fixed = sorted(
        entry.output_tokens
        for entry in situation.spec.traffic_classes
        if entry.name in names and entry.output_spread_percent == 0
    )
    if len(fixed) < len(names) or math.gcd(*fixed) == 1:
        return "; an admission cap near x* (mode Auto) ends the waves"
    for length in fixed:
        others = list(fixed)
        others.remove(length)
        if length > 1 and math.gcd(length - 1, *others) == 1:
            return f"; trim {length} to {length - 1} tokens for gcd 1, or cap admissions near x* (mode Auto)"
    return "; cap admissions near x* (mode Auto)"
