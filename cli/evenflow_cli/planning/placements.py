"""Candidate placements with their severities, and the operator's own choice among them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from evenflow_cli.planning.subject import NOW, POOL_UID, Subject, snapshot_of
from evenflow_model.congestion import eviction_free_rate
from evenflow_model.lengths import LengthMix
from evenflow_model.spectrum import critical_prompt_length
from evenflow_operator.api.enums import PlacementStrategy
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.core.memory import ObservedClass, PoolMemory
from evenflow_operator.core.placement.assign import Assignment, assign, problem_of
from evenflow_operator.core.placement.search import (
    Placement,
    Problem,
    changed_slots,
    everything,
    figures_of,
    imbalance_of,
    mix_of,
    slot_counts,
)
from evenflow_operator.core.placement.severity_cache import MixFigures, MixKey, SeverityCache, length_mix
from evenflow_operator.core.slots.survey import Situation, survey
from evenflow_operator.core.snapshot import PodView

ROUNDS = 50
"""Passes until the operator's placement must have come to rest; two or three are usual."""
NO_BUDGET = 1000
"""Moves an hour that let every move happen at once."""
SEGREGATED = "one class per slot"


@dataclass(frozen=True, slots=True)
class Group:
    """Slots that serve the same classes."""

    classes: tuple[str, ...]
    slots: tuple[int, ...]
    figures: MixFigures
    mix: LengthMix
    kv_tokens: int

    @property
    def critical_prompt(self) -> float:
        """Mean prompt (tokens) from which on the rhythm dies out; inf where lengths share a divisor."""
        return _critical_prompt(self.mix)

    @property
    def token_rate(self) -> float:
        """x*, volumes counted in tokens; `figures.rate` counts them in blocks."""
        return eviction_free_rate(self.mix, self.kv_tokens)


@dataclass(frozen=True, slots=True)
class Candidate:
    """`note` says why it couldn't be used, or what is special about it."""

    name: str
    placement: Placement
    groups: tuple[Group, ...]
    imbalance: float
    feasible: bool = True
    note: str | None = None

    @property
    def severity(self) -> float:
        return self.worst.figures.severity

    @property
    def worst(self) -> Group:
        return max(self.groups, key=lambda group: group.figures.severity)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator would come to: where it starts, where it ends, and why it goes no further."""

    candidate: Candidate
    moves: int
    blocked: str | None
    unplaced: tuple[str, ...]
    overfull: tuple[int, ...]


class Placements:
    """The operator asked about one subject; answers are remembered."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._cache = SeverityCache()

    def chosen(self, replicas: int | None = None) -> Choice:
        """What the operator would do with the pool as its file says, or with another number of replicas."""
        return self._choice(self._subject.pool.spec.placement.strategy, replicas)

    def everywhere(self) -> Candidate:
        """Every class on every slot, allowed or not."""
        return self._all(self._problem())

    def candidates(self) -> tuple[Candidate, ...]:
        """All, what Balanced comes to, Static where the file has one, and one class per slot."""
        problem = self._problem()
        found = [self._all(problem)]
        if len(problem.demands) > 1:
            balanced = self._choice(PlacementStrategy.BALANCED).candidate
            same = dict(balanced.placement) == dict(found[0].placement)
            found.append(replace(balanced, note="= All") if same else balanced)
        if self._subject.pool.spec.placement.static:
            found.append(self._choice(PlacementStrategy.STATIC).candidate)
        if len(problem.demands) > 1:
            found.append(self._segregated(problem))
        return tuple(found)

    def _problem(self) -> Problem:
        situation = _situation(self._subject.pool, self._subject.observed, {})
        return problem_of(situation, situation.slots, self._subject.observed)

    def _all(self, problem: Problem) -> Candidate:
        limit = problem.max_classes
        allowed = len(problem.demands) <= limit
        note = None if allowed else f"limit {limit}"
        return replace(self._candidate("All", problem, everything(problem)), feasible=allowed, note=note)

    def _choice(self, strategy: PlacementStrategy, replicas: int | None = None) -> Choice:
        subject = self._subject
        pool = _with(subject.pool, strategy, replicas)
        first: Mapping[int, tuple[str, ...]] | None = None
        now: Mapping[int, tuple[str, ...]] = {}
        for _ in range(ROUNDS):
            situation = _situation(pool, subject.observed, now)
            found = assign(situation, frozenset(), subject.observed, self._cache)
            first = found.classes if first is None else first
            if found.classes == now:
                break
            now = found.classes
        problem = problem_of(situation, situation.slots, subject.observed)
        candidate = self._candidate(strategy.value, problem, _sets(found))
        moves = (
            0
            if first is None
            else changed_slots({slot: frozenset(names) for slot, names in first.items()}, _sets(found))
        )
        blocked = None if found.blocked is None else found.blocked[1]
        return Choice(candidate, moves, blocked, found.unplaced, found.overfull)

    def _segregated(self, problem: Problem) -> Candidate:
        """Slots by KV volume, at least one for each class; more slots than there are if it takes them."""
        names = sorted(problem.demands)
        wanted = max(len(names), len(problem.slots))
        volumes = {name: problem.demands[name].loads[0] for name in names}
        count = dict.fromkeys(names, 1)
        while sum(count.values()) < wanted:
            count[max(names, key=lambda name: volumes[name] / count[name])] += 1
        flat = [name for name in names for _ in range(count[name])]
        placement = {slot: frozenset((name,)) for slot, name in enumerate(flat)}
        missing = wanted - len(problem.slots)
        if missing:
            kv, block = self._subject.memory.tokens, self._subject.memory.block_size
            problem = replace(
                problem, kv_tokens=dict.fromkeys(placement, kv), block_sizes=dict.fromkeys(placement, block)
            )
        note = f"needs {wanted} slots" if missing else None
        return replace(self._candidate(SEGREGATED, problem, placement), feasible=not missing, note=note)

    def _candidate(self, name: str, problem: Problem, placement: Placement) -> Candidate:
        figures, counts = figures_of(problem, placement, self._cache), slot_counts(placement)
        by_set: dict[frozenset[str], list[int]] = {}
        for slot in figures:
            by_set.setdefault(placement.get(slot, frozenset()), []).append(slot)
        everywhere = tuple(demand.name for demand in problem.everywhere)
        groups = []
        for names, slots in by_set.items():
            mix = _length_mix(mix_of(problem, names, counts), problem.max_output)
            groups.append(
                Group(
                    classes=(*sorted(names), *everywhere),
                    slots=tuple(slots),
                    figures=figures[slots[0]],
                    mix=mix,
                    kv_tokens=problem.kv_tokens[slots[0]],
                )
            )
        return Candidate(name, placement, tuple(groups), imbalance_of(problem, placement))


@lru_cache(maxsize=1024)
def _length_mix(classes: MixKey, max_output: int) -> LengthMix:
    return length_mix(classes, max_output)


@lru_cache(maxsize=1024)
def _critical_prompt(mix: LengthMix) -> float:
    return critical_prompt_length(mix)


def _sets(found: Assignment) -> dict[int, frozenset[str]]:
    return {slot: frozenset(names) for slot, names in found.classes.items()}


def _with(pool: LLMServingPool, strategy: PlacementStrategy, replicas: int | None) -> LLMServingPool:
    """The pool with a strategy, and without the hourly budget: where the moves end is asked, not when."""
    placement = pool.spec.placement
    rebalance = placement.rebalance.model_copy(update={"max_moves_per_hour": NO_BUDGET})
    spec = pool.spec.model_copy(
        update={
            "replicas": pool.spec.replicas if replicas is None else replicas,
            "placement": placement.model_copy(update={"strategy": strategy, "rebalance": rebalance}),
        }
    )
    return pool.model_copy(update={"spec": spec})


def _situation(
    pool: LLMServingPool, observed: Mapping[str, ObservedClass], placement: Mapping[int, tuple[str, ...]]
) -> Situation:
    """The pool as it stands on a cluster, every slot ready."""
    slots = range(pool.spec.replicas)
    memory = PoolMemory(slots=frozenset(slots), placement=placement, observed=observed, observed_at=NOW, began_at=NOW)
    pods = tuple(_pod(slot, placement.get(slot, ())) for slot in slots)
    return survey(snapshot_of(pool, memory, pods=pods), pool.spec)


def _pod(slot: int, classes: tuple[str, ...]) -> PodView:
    return PodView(
        name=f"slot-{slot}",
        uid=f"slot-{slot}",
        resource_version="1",
        phase="Running",
        ready=True,
        ready_since=NOW,
        created_at=NOW,
        slot=slot,
        revision="",
        attempt=0,
        serving=True,
        classes=frozenset(classes),
        owner_uid=POOL_UID,
    )
