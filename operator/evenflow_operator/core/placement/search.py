"""Candidate placements and how good they are: severity, and balance of KV memory, step budget and sequences.

A Service spreads a class evenly over its slots, so a class's load on a slot is its load divided by their number.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evenflow_operator.core.placement.severity_cache import ClassLaw, MixFigures, MixKey, SeverityCache

Placement = Mapping[int, frozenset[str]]

TOLERATED_IMBALANCE = 1.25
"""Load of the fullest slot over the mean that any placement may have."""
MORE_GROUPS = 1
"""How many group counts beyond the smallest possible one are tried."""
OK_BELOW = 0.005
"""Severity below which a pod counts as desynchronised (docs/theory.md §4)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One class: its share of requests, its lengths, and its relative loads (KV volume, step tokens, sequences)."""

    name: str
    share: float
    law: ClassLaw
    min_slots: int

    @property
    def loads(self) -> tuple[float, float, float]:
        prompt, output = self.law.prompt_tokens, self.law.output_tokens
        volume = prompt * output + output * (output + 1) / 2
        return self.share * volume, self.share * (prompt + output), self.share * output


@dataclass(frozen=True, slots=True)
class Problem:
    demands: Mapping[str, Demand]
    kv_tokens: Mapping[int, int]
    """Usable KV memory per slot; its keys are the slots to place on."""
    block_sizes: Mapping[int, int]
    max_classes: int
    max_output: int
    everywhere: tuple[Demand, ...] = ()
    """Classes that every slot gets whatever the placement (`default`)."""

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(sorted(self.kv_tokens))

    def needed(self, name: str) -> int:
        """Slots that a class must have: two where there are two, its minReplicas where there are as many."""
        return min(len(self.kv_tokens), max(2, self.demands[name].min_slots))


@dataclass(frozen=True, slots=True)
class Score:
    severity: float
    imbalance: float


def everything(problem: Problem) -> Placement:
    names = frozenset(problem.demands)
    return dict.fromkeys(problem.slots, names)


def is_valid(problem: Problem, placement: Placement) -> bool:
    """Every slot has classes, only known ones and not too many; every class has the slots it needs."""
    if set(placement) != set(problem.kv_tokens):
        return False
    counts = slot_counts(placement)
    return all(
        0 < len(names) <= problem.max_classes and names <= problem.demands.keys() for names in placement.values()
    ) and all(counts.get(name, 0) >= problem.needed(name) for name in problem.demands)


def slot_counts(placement: Placement) -> dict[str, int]:
    counts: dict[str, int] = {}
    for names, slots in Counter(placement.values()).items():
        for name in names:
            counts[name] = counts.get(name, 0) + slots
    return counts


def mix_of(problem: Problem, names: Iterable[str], counts: Mapping[str, int]) -> MixKey:
    """The mix of a slot, in a form that equal slots share."""
    shares = [(problem.demands[name], problem.demands[name].share / max(1, counts.get(name, 1))) for name in names]
    shares += [(demand, demand.share / max(1, len(problem.kv_tokens))) for demand in problem.everywhere]
    total = math.fsum(share for _, share in shares)
    ordered = sorted(shares, key=lambda pair: pair[0].name)
    return tuple((float(f"{share / total:.3g}"), demand.law) for demand, share in ordered)


def figures_of(problem: Problem, placement: Placement, cache: SeverityCache) -> dict[int, MixFigures]:
    """Severity, x* and gcd per slot; slots without any class have none."""
    counts = slot_counts(placement)
    known: dict[tuple[frozenset[str], int, int], MixFigures] = {}
    figures: dict[int, MixFigures] = {}
    for slot in problem.slots:
        names = placement.get(slot, frozenset())
        if not names and not problem.everywhere:
            continue
        kv, block = problem.kv_tokens[slot], problem.block_sizes[slot]
        key = (names, kv, block)
        if key not in known:
            known[key] = cache.figures(mix_of(problem, names, counts), kv, block, problem.max_output)
        figures[slot] = known[key]
    return figures


def score(problem: Problem, placement: Placement, cache: SeverityCache) -> Score:
    worst = max((one.severity for one in figures_of(problem, placement, cache).values()), default=0.0)
    return Score(round(worst, 4), imbalance_of(problem, placement))


def best(problem: Problem, current: Placement, cache: SeverityCache) -> tuple[Placement, Score]:
    """The candidate with the least severity among those that balance well; ties go to balance, then to few changes.

    Severities below OK_BELOW are all the same, so the search ends at the first of them: severity is what takes time.
    """
    found = candidates(problem, current)
    imbalances = [imbalance_of(problem, candidate) for candidate in found]
    limit = max(TOLERATED_IMBALANCE, 1.1 * min(imbalances))
    order = sorted(
        (index for index in range(len(found)) if imbalances[index] <= limit),
        key=lambda index: (imbalances[index], changed_slots(current, found[index]), index),
    )
    chosen, chosen_score = order[0], score(problem, found[order[0]], cache)
    for index in order[1:]:
        if chosen_score.severity < OK_BELOW:
            break
        tried = score(problem, found[index], cache)
        if round(tried.severity, 3) < round(chosen_score.severity, 3):
            chosen, chosen_score = index, tried
    return found[chosen], chosen_score


def changed_slots(before: Placement, after: Placement) -> int:
    return sum(1 for slot, names in after.items() if before.get(slot) != names)


def candidates(problem: Problem, current: Placement) -> list[Placement]:
    """At least one placement; each is valid unless no placement can be."""
    names = sorted(problem.demands, key=lambda name: (problem.demands[name].law.output_tokens, name))
    slots = problem.slots
    found: list[Placement] = []
    if len(names) <= problem.max_classes:
        found.append(everything(problem))
    fewest = max(1, math.ceil(len(names) / problem.max_classes))
    for groups in range(max(2, fewest), min(len(names), len(slots) // 2, fewest + MORE_GROUPS) + 1):
        for split in _splits(problem, names, groups):
            placement = _place_groups(problem, split, current)
            if placement is not None and is_valid(problem, placement):
                found.append(placement)
    return found or [_spread(problem, names)]


def _splits(problem: Problem, names: Sequence[str], groups: int) -> Iterator[list[list[str]]]:
    """By length, interleaved, and by load."""
    size = math.ceil(len(names) / groups)
    if size <= problem.max_classes:
        edges = [round(index * len(names) / groups) for index in range(groups + 1)]
        yield [list(names[low:high]) for low, high in itertools.pairwise(edges)]
        yield [list(names[index::groups]) for index in range(groups)]
    loaded: list[list[str]] = [[] for _ in range(groups)]
    weight = [0.0] * groups
    for name in sorted(names, key=lambda one: (-_relative_load(problem, one), one)):
        open_groups = [index for index in range(groups) if len(loaded[index]) < problem.max_classes]
        lightest = min(open_groups, key=lambda index: (weight[index], index))
        loaded[lightest].append(name)
        weight[lightest] += _relative_load(problem, name)
    yield [group for group in loaded if group]


def _place_groups(problem: Problem, split: list[list[str]], current: Placement) -> Placement | None:
    """Slots for each group in proportion to its load, on the slots that have most of its classes already."""
    total = len(problem.kv_tokens)
    quota = [max(problem.needed(name) for name in group) for group in split]
    if sum(quota) > total:
        return None
    weights = [math.fsum(_relative_load(problem, name) for name in group) for group in split]
    while sum(quota) < total:
        fullest = max(range(len(split)), key=lambda index: (weights[index] / quota[index], -index))
        quota[fullest] += 1
    sets = [frozenset(group) for group in split]
    placement: dict[int, frozenset[str]] = {}
    for slot in problem.slots:
        present = current.get(slot, frozenset())
        choice = max(
            (index for index in range(len(sets)) if quota[index] > 0),
            key=lambda index: (len(sets[index] & present) - len(sets[index] ^ present) / 1000, quota[index], -index),
        )
        quota[choice] -= 1
        placement[slot] = sets[choice]
    return placement


def _spread(problem: Problem, names: Sequence[str]) -> Placement:
    """Too few slots for groups: every class on as many of the least loaded slots as it needs and fits.

    A class without any room goes over the limit of a slot rather than unserved.
    """
    load = dict.fromkeys(problem.slots, 0.0)
    placed: dict[int, set[str]] = {slot: set() for slot in problem.slots}
    by_load = sorted(names, key=lambda name: (-_relative_load(problem, name), name))
    for turn in range(max((problem.needed(name) for name in by_load), default=0)):
        for name in by_load:
            free = [slot for slot in problem.slots if name not in placed[slot]]
            roomy = [slot for slot in free if len(placed[slot]) < problem.max_classes]
            if turn >= problem.needed(name) or not free or (turn > 0 and not roomy):
                continue
            slot = min(roomy or free, key=lambda one: (len(placed[one]) if not roomy else 0, load[one], one))
            placed[slot].add(name)
            load[slot] += _relative_load(problem, name) / problem.needed(name)
    return {slot: frozenset(chosen) for slot, chosen in placed.items()}


def _relative_load(problem: Problem, name: str) -> float:
    """Largest share of the class in the pool's three loads."""
    totals = [math.fsum(one.loads[resource] for one in problem.demands.values()) or 1.0 for resource in range(3)]
    return max(load / total for load, total in zip(problem.demands[name].loads, totals, strict=True))


def imbalance_of(problem: Problem, placement: Placement) -> float:
    """Load of the fullest slot over the mean, of the worst of KV memory, step budget and sequences; 1 is perfect."""
    counts = slot_counts(placement)
    loads = {name: demand.loads for name, demand in problem.demands.items()}
    totals = [math.fsum(load[resource] for load in loads.values()) for resource in range(3)]
    if not placement or min(totals) <= 0:
        return 1.0
    size = len(placement)
    memory = sum(problem.kv_tokens[slot] for slot in placement)
    by_set: dict[frozenset[str], tuple[float, float, float]] = {}
    worst = 0.0
    for slot, names in placement.items():
        if names not in by_set:
            per_resource = [math.fsum(loads[name][r] / counts[name] for name in names) for r in range(3)]
            by_set[names] = (per_resource[0], per_resource[1], per_resource[2])
        kv, step, sequences = by_set[names]
        worst = max(
            worst,
            kv / totals[0] * memory / problem.kv_tokens[slot],
            step / totals[1] * size,
            sequences / totals[2] * size,
        )
    return round(worst, 3)
