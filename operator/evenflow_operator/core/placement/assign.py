"""Which classes each slot serves: every class on every slot, unless something speaks against it (docs/design.md §5.2).

Sticky: a placement that is valid stays. It changes at once when classes, slots or the strategy leave no choice, and
within the budget of moves when it is synchronised and another one is clearly less so.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evenflow_contract.names import DEFAULT_CLASS
from evenflow_model.lengths import LONGEST_SPREAD, MAX_TOKENS
from evenflow_operator.api.conditions import DecisionReason, RebalanceBlockedReason
from evenflow_operator.api.enums import DecisionType, PlacementStrategy
from evenflow_operator.core.decisions import SLOTS_INPUT, counts_as_move, decision
from evenflow_operator.core.memory import ObservedClass
from evenflow_operator.core.placement.lengths import class_shares, law_of, observed_law
from evenflow_operator.core.placement.search import (
    OK_BELOW,
    Demand,
    Placement,
    Problem,
    best,
    everything,
    figures_of,
    is_valid,
    score,
    slot_counts,
)
from evenflow_operator.core.placement.severity_cache import MixFigures, SeverityCache
from evenflow_operator.core.plan import Decision
from evenflow_operator.core.readings.facts import block_size, usable_kv_tokens
from evenflow_operator.core.slots.survey import Situation

SYNCHRONISED_ABOVE = 0.01
"""Severity from which classes may move."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Wanted classes per slot and what to expect of them."""

    classes: Mapping[int, tuple[str, ...]]
    figures: Mapping[int, MixFigures]
    decisions: tuple[Decision, ...] = ()
    blocked: tuple[RebalanceBlockedReason, str] | None = None
    """Why a placement that would be better isn't taken."""
    unplaced: tuple[str, ...] = ()
    """Classes that no slot serves."""
    overfull: tuple[int, ...] = ()
    """Slots that serve more classes than maxClassesPerReplica, because otherwise some would have none."""


def classes_joining(
    situation: Situation, assignment: Assignment, leaving: frozenset[int], count: int
) -> tuple[frozenset[str], ...]:
    """Classes of the next `count` slots, in the order in which they would come: those that are leaving would stay."""
    free = (number for number in itertools.count() if number not in situation.slots)
    numbers = [*sorted(leaving), *itertools.islice(free, count)][:count]
    placed = {slot: frozenset(names) for slot, names in assignment.classes.items()}
    problem = problem_of(situation, {*placed, *numbers}, situation.snapshot.memory.observed)
    target = _prescribed(situation, problem)
    if target is None:
        target = _with_new_slots(problem, placed)
        if not is_valid(problem, target):
            # It will be placed anew, wherever the load is.
            target = everything(problem)
    return tuple(target[number] for number in numbers)


def problem_of(situation: Situation, slots: Iterable[int], observed: Mapping[str, ObservedClass]) -> Problem:
    spec, readings = situation.spec, situation.snapshot.readings
    shares = class_shares(spec, observed)
    demands = {
        entry.name: Demand(entry.name, shares[entry.name], law_of(entry, observed), entry.min_replicas)
        for entry in spec.traffic_classes
    }
    everywhere: tuple[Demand, ...] = ()
    if DEFAULT_CLASS in shares:
        everywhere = (Demand(DEFAULT_CLASS, shares[DEFAULT_CLASS], observed_law(observed[DEFAULT_CLASS]), 1),)
    by_slot = {slot: situation.filling.get(slot) for slot in slots}
    reading = {slot: None if pod is None else readings.get(pod.uid) for slot, pod in by_slot.items()}
    return Problem(
        demands=demands,
        kv_tokens={slot: usable_kv_tokens(reading[slot], spec.engine.kv_cache_tokens) for slot in by_slot},
        block_sizes={slot: block_size(reading[slot]) for slot in by_slot},
        max_classes=spec.placement.max_classes_per_replica,
        max_output=min(spec.model.max_model_len or LONGEST_SPREAD, MAX_TOKENS),
        everywhere=everywhere,
    )


def assign(
    situation: Situation, leaving: frozenset[int], observed: Mapping[str, ObservedClass], cache: SeverityCache
) -> Assignment:
    """The placement of the slots that stay; those that are `leaving` keep theirs but count for nothing."""
    staying = situation.slots - leaving
    problem = problem_of(situation, staying, observed)
    before = {slot: frozenset(names) for slot, names in situation.snapshot.memory.placement.items()}
    current = {slot: frozenset(before[slot] & problem.demands.keys()) for slot in staying if slot in before}
    reason, blocked, target = _target(situation, problem, current, cache)
    figures = figures_of(problem, target, cache)
    counts = slot_counts(target)
    kept = {slot: tuple(sorted(before.get(slot, frozenset()))) for slot in situation.slots & leaving}
    return Assignment(
        classes={**{slot: tuple(sorted(names)) for slot, names in target.items()}, **kept},
        figures=figures,
        decisions=_decisions(reason, before, target, figures),
        blocked=blocked,
        unplaced=tuple(name for name in problem.demands if staying and counts.get(name, 0) == 0),
        overfull=_overfull(situation, problem, target),
    )


Outcome = tuple[DecisionReason, tuple[RebalanceBlockedReason, str] | None, Placement]


def _target(situation: Situation, problem: Problem, current: Placement, cache: SeverityCache) -> Outcome:
    remembered = {name for names in situation.snapshot.memory.placement.values() for name in names}
    changed = DecisionReason.STRATEGY_CHANGED
    if remembered != problem.demands.keys():
        changed = DecisionReason.CLASSES_CHANGED
    prescribed = _prescribed(situation, problem)
    if prescribed is not None:
        return changed, None, prescribed
    if not problem.slots:
        return changed, None, {}
    extended = _with_new_slots(problem, current)
    if is_valid(problem, extended):
        return _rebalanced(situation, problem, extended, cache)
    if len(problem.demands) <= problem.max_classes:
        return changed, None, everything(problem)
    return changed, None, best(problem, current, cache)[0]


def _prescribed(situation: Situation, problem: Problem) -> Placement | None:
    """The placement where the spec leaves no choice."""
    placement = situation.spec.placement
    if placement.strategy is PlacementStrategy.ALL or not problem.demands:
        return everything(problem)
    if placement.strategy is PlacementStrategy.STATIC:
        listed = {entry.slot: frozenset(entry.classes) for entry in placement.static}
        every = frozenset(problem.demands)
        return {slot: listed.get(slot, every) for slot in problem.slots}
    return None


def _with_new_slots(problem: Problem, current: Placement) -> Placement:
    """A new slot serves what helps most: the class set whose classes are most heavily loaded per slot."""
    extended = dict(current)
    for slot in problem.slots:
        if extended.get(slot):
            continue
        counts = slot_counts(extended)
        sets = sorted({names for names in extended.values() if names}, key=lambda names: (-len(names), sorted(names)))
        if not sets:
            return extended
        per_slot = {names: max(problem.demands[name].loads[0] / counts[name] for name in names) for names in sets}
        extended[slot] = max(sets, key=lambda names: per_slot[names])
    return extended


def _rebalanced(situation: Situation, problem: Problem, current: Placement, cache: SeverityCache) -> Outcome:
    rebalance = situation.spec.placement.rebalance
    now = score(problem, current, cache)
    every = everything(problem)
    back = len(problem.demands) <= problem.max_classes and current != every
    reason = DecisionReason.SEVERITY_REDUCED
    if back and score(problem, every, cache).severity < OK_BELOW:
        target: Placement = every
    elif now.severity > SYNCHRONISED_ABOVE:
        target, found = best(problem, current, cache)
        wanted = now.severity * (1 - rebalance.min_improvement_percent / 100)
        if found.severity > wanted or target == current:
            message = f"severity {now.severity:.2g}; the best placement found has {found.severity:.2g}"
            return reason, (RebalanceBlockedReason.TOO_LITTLE_GAIN, message), current
    else:
        return reason, None, current
    if situation.warming:
        message = "the operator has just started and not every engine was heard yet"
        return reason, (RebalanceBlockedReason.METRICS_UNAVAILABLE, message), current
    if not rebalance.enabled:
        return reason, (RebalanceBlockedReason.DISABLED, "spec.placement.rebalance.enabled is false"), current
    unready = sorted(slot for slot in problem.slots if slot in situation.unavailable_slots())
    if unready:
        message = f"slots {', '.join(map(str, unready[:8]))} aren't serving"
        return reason, (RebalanceBlockedReason.SLOTS_NOT_READY, message), current
    budget = rebalance.max_moves_per_hour - _recent_moves(situation)
    if budget <= 0:
        message = f"{rebalance.max_moves_per_hour} moves within an hour are spent"
        return reason, (RebalanceBlockedReason.BUDGET_EXHAUSTED, message), current
    return reason, None, _within_budget(problem, current, target, budget)


def _within_budget(problem: Problem, current: Placement, target: Placement, budget: int) -> Placement:
    """As many slots changed as the budget allows; a change that would leave a class short waits."""
    reached = dict(current)
    for slot in problem.slots:
        if budget > 0 and reached[slot] != target[slot]:
            step = {**reached, slot: target[slot]}
            if is_valid(problem, step):
                reached, budget = step, budget - 1
    return reached


def _recent_moves(situation: Situation) -> int:
    moves = 0
    for record in situation.snapshot.memory.decisions:
        if counts_as_move(record, situation.now):
            moves += len(record.get("inputs", {}).get(SLOTS_INPUT, "0").split(","))
    return moves


def _overfull(situation: Situation, problem: Problem, target: Placement) -> tuple[int, ...]:
    if situation.spec.placement.strategy is not PlacementStrategy.BALANCED:
        return ()
    return tuple(slot for slot, names in target.items() if len(names) > problem.max_classes)


def _decisions(
    reason: DecisionReason, before: Placement, target: Placement, figures: Mapping[int, MixFigures]
) -> tuple[Decision, ...]:
    made = []
    for slot, names in sorted(target.items()):
        served = before.get(slot, frozenset())
        # A slot that joins a placed pool takes over what others serve: its pod's own decision says enough.
        if served == names or (before and slot not in before):
            continue
        known = figures.get(slot)
        suffix = "" if known is None else f" (severity {known.severity:.2g}, length gcd {known.gcd})"
        message = f"serve {', '.join(sorted(names)) or 'no class'}{suffix}"
        severity = None if known is None else known.severity
        moved = served or reason is not DecisionReason.SEVERITY_REDUCED
        why = reason if moved else DecisionReason.STRATEGY_CHANGED
        made.append(decision(DecisionType.PLACE, why, message, slot=slot, severity=severity))
    return tuple(made)


def loss_of(situation: Situation, slot: int) -> tuple[float, ...]:
    """How much losing a slot hurts: classes that fall below their minimum, then load that others must take over."""
    placement = situation.snapshot.memory.placement
    names = placement.get(slot, ())
    counts = slot_counts({number: frozenset(placement.get(number, ())) for number in situation.slots})
    minimum = {entry.name: entry.min_replicas for entry in situation.spec.traffic_classes}
    left = {name: counts[name] - 1 for name in names if name in minimum}
    short = sum(1 for name, count in left.items() if count < max(1, minimum[name]))
    moved = max((1 / count if count > 0 else 2.0 for count in left.values()), default=0.0)
    return float(short), round(moved, 6)
