"""The load of a pool: how many slots' worth of each resource its requests take, and how many slots that calls for.

Slots that serve the same classes form a group, because only among them is a class's load spread evenly. All loads are
counted at the iteration time of the target load: with fewer requests an engine iterates faster, so what runs now
understates what the same requests would take of fewer slots (docs/design.md §5.4).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evenflow_operator.core.scaling.engine import RESOURCES, Engine, Resource, counted_ms, highest_share
from evenflow_operator.core.scaling.samples import Pace, Usage

DRAIN_SECONDS = 300.0
"""Waiting requests should be served within this time, by what the replicas have left over."""
TOLERANCE = 0.1
"""A load within this part of the target is on target, as in Kubernetes' HPA; fewer slots stay below by as much."""
NOISE = 2.0
"""So many standard deviations of a Poisson count are taken for chance before a replica is added."""
SATURATED_FROM = 0.8
"""From this part of the target on, an engine with a lasting queue is taken for full. With less load its queue has other
reasons: a prompt that waits for much memory at once."""
MOST_PACES = 64
"""So many measured iteration times are enough for a median."""
CALIBRATED = 50.0
"""Measured iteration times beyond so many times the modelled ones, or so many times below, aren't believed."""


@dataclass(frozen=True, slots=True)
class SlotUse:
    """A slot that is to stay. `usage` is None where it isn't known: on its way, or silent."""

    slot: int
    classes: frozenset[str]
    engine: Engine | None
    """None while nothing is known of the lengths of its requests."""
    max_seqs: int
    serving: bool
    usage: Usage | None = None
    kv_peak: float | None = None
    """Peak use of KV memory, 0 to 1: the measure where lengths are unknown."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """A group's demand in slots: 1.0 is one slot in full use."""

    slots: frozenset[int]
    classes: frozenset[str]
    arriving: Mapping[Resource, float]
    """Of arriving requests; of running ones where arrivals aren't counted."""
    resident: Mapping[Resource, float]
    """Of running requests."""
    queued: Mapping[Resource, float]
    """Of waiting requests, spread over DRAIN_SECONDS."""
    certain: float
    """Share of the demand that isn't chance, 0 to 1."""
    serving: int
    silent: tuple[int, ...]
    """Slots that serve, and of which nothing is known."""

    @property
    def binding(self) -> Resource:
        return max(RESOURCES, key=self.demand)

    def demand(self, resource: Resource) -> float:
        """Of all requests. What runs counts as far as it is more than what arrives: after a surge."""
        return max(self.arriving[resource], self.resident[resource]) + self.queued[resource]

    def more(self, target: float) -> int:
        """Slots that the load calls for, or those there are when these do.

        By what arrives and what waits: what runs already is no reason for another slot. The queue counts once every
        slot serves: those on their way will take it.
        """
        now = len(self.slots)
        steady = max(self.arriving.values())
        called = now
        if self.certain * steady > (1 + TOLERANCE) * target * now:
            # Not for the chance in a short sample: what is missing then follows with the next.
            called = max(called, now + 1, _slots((1 + self.certain) / 2 * steady / target))
        surely = max(self.certain * self.arriving[name] + self.queued[name] for name in RESOURCES)
        if self.serving >= now and surely > now:
            called = max(called, _slots(max(self.arriving[name] + self.queued[name] for name in RESOURCES)))
        return called

    def called_for(self, target: float) -> int:
        """As `more`, or fewer if these keep the load clearly below the target."""
        now, more = len(self.slots), self.more(target)
        if more > now or self.silent:
            return more
        steady = max(max(self.arriving[name], self.resident[name]) for name in RESOURCES)
        full = max(self.demand(name) for name in RESOURCES)
        return min(now, max(1, _slots(steady / ((1 - TOLERANCE) * target)), _slots(full)))


@dataclass(frozen=True, slots=True)
class PoolLoad:
    groups: tuple[GroupLoad, ...]
    waiting: float
    arrivals: float | None
    """Requests per second."""

    @property
    def known(self) -> bool:
        return any(group.serving > len(group.silent) for group in self.groups)

    @property
    def silent(self) -> tuple[int, ...]:
        return tuple(sorted(slot for group in self.groups for slot in group.silent))

    @property
    def fullest(self) -> GroupLoad:
        return max(self.groups, key=lambda group: _per_slot(group, group.binding))

    def share(self, resource: Resource) -> float:
        """Of the fullest group, 0 to 1 and above, with every slot that is to stay in service."""
        return max(_per_slot(group, resource) for group in self.groups)

    @property
    def slots(self) -> int:
        return sum(len(group.slots) for group in self.groups)

    def more(self, target: float) -> int:
        return sum(group.more(target) for group in self.groups)

    def called_for(self, target: float) -> int:
        """As `more`, if any group calls for more: what another one could spare is no help to it."""
        more = self.more(target)
        return more if more > self.slots else sum(group.called_for(target) for group in self.groups)

    @property
    def drain_seconds(self) -> float:
        """Until what waits is served by what serving slots have left over; infinite if they have nothing."""
        return max(_drain_seconds(group) for group in self.groups)


def pool_load(slots: Sequence[SlotUse], target: float, scale: float) -> PoolLoad:
    """`target`: share of the binding resource to aim at, 0 to 1; `scale`: wall seconds per modelled second."""
    groups: dict[frozenset[str], list[SlotUse]] = {}
    for one in slots:
        groups.setdefault(one.classes, []).append(one)
    known = [one.usage for one in slots if one.usage is not None]
    arrivals = [usage.arrivals for usage in known if usage.arrivals is not None]
    return PoolLoad(
        tuple(_group(members, target, scale) for members in groups.values()),
        math.fsum(usage.waiting for usage in known),
        math.fsum(arrivals) if arrivals else None,
    )


def calibration_of(slots: Iterable[SlotUse], nominal: float, before: float | None) -> float | None:
    """Measured over modelled iteration time: the median over engines that are busy and not overloaded, and their
    samples. Without any what was known `before` stays, or else overloaded ones have to do; None without these, too."""
    measured = [
        (one.engine, pace)
        for one in slots
        if one.usage is not None and one.engine is not None
        for pace in one.usage.paces
    ]
    calm = [entry for entry in measured if entry[1].calm]
    if not calm and (before is not None or not measured):
        return before
    taken = calm or measured
    every = math.ceil(len(taken) / MOST_PACES)
    ratios = [1000.0 / pace.iterations / _modelled_ms(engine, pace) for engine, pace in taken[::every]]
    return min(CALIBRATED * nominal, max(nominal / CALIBRATED, statistics.median(ratios)))


def _group(members: Sequence[SlotUse], target: float, scale: float) -> GroupLoad:
    known = [one for one in members if one.usage is not None]
    return GroupLoad(
        frozenset(one.slot for one in members),
        members[0].classes,
        _summed(_arriving(one, target, scale) for one in known),
        _summed(_resident(one, target) for one in known),
        _summed(_queued(one, target, scale) for one in known),
        _certain([one.usage for one in known if one.usage is not None]),
        sum(1 for one in members if one.serving),
        tuple(one.slot for one in members if one.serving and one.usage is None),
    )


def _certain(usages: Sequence[Usage]) -> float:
    """A queue that never empties says that the load is no chance, however few the requests."""
    if usages and all(usage.queued for usage in usages):
        return 1.0
    counted = math.fsum(usage.arrived for usage in usages)
    return max(0.0, 1 - NOISE / math.sqrt(counted)) if counted > 0 else 0.0


def _arriving(one: SlotUse, target: float, scale: float) -> dict[Resource, float]:
    """Shares of one slot that the requests that come to it take, at the iteration time of the target load."""
    usage, engine = one.usage, one.engine
    assert usage is not None
    if engine is None or usage.arrivals is None:
        return _resident(one, target)
    shares = engine.shares(usage.arrivals * scale * counted_ms(engine, target) / 1000.0)
    binding = max(RESOURCES, key=lambda name: shares[name])
    if usage.queued and usage.admitted and shares[binding] >= SATURATED_FROM * target * usage.present:
        # What it admits from a queue that never empties is the most it can, whatever the model says.
        measured = highest_share(target) * usage.present * max(1.0, usage.arrivals / usage.admitted)
        shares[binding] = max(shares[binding], measured)
    return shares


def _resident(one: SlotUse, target: float) -> dict[Resource, float]:
    """Shares of one slot that what runs in it takes; at the iteration time of the target load if that is longer."""
    usage, engine = one.usage, one.engine
    assert usage is not None
    if engine is None:
        return _unmodelled(one, usage)
    admitted = usage.running / _lifetime(engine)
    now = engine.step_ms(min(admitted, engine.most_admitted))
    longer = max(1.0, counted_ms(engine, target) / now)
    shares = engine.shares(usage.present * admitted * longer)
    return {**shares, "sequences": max(shares["sequences"], usage.present * usage.running / one.max_seqs)}


def _queued(one: SlotUse, target: float, scale: float) -> dict[Resource, float]:
    usage, engine = one.usage, one.engine
    assert usage is not None
    if engine is None:
        return dict.fromkeys(RESOURCES, 0.0)
    step_s = scale * counted_ms(engine, target) / 1000.0
    return engine.shares(usage.waiting / DRAIN_SECONDS * step_s)


def _unmodelled(one: SlotUse, usage: Usage) -> dict[Resource, float]:
    """Without lengths: what is in use, and as much again for as many requests as wait."""
    requests = (usage.running + usage.waiting) / max(usage.running, 1.0)
    return {
        "kv": (one.kv_peak or 0.0) * requests,
        "stepBudget": 0.0,
        "sequences": (usage.running + usage.waiting) / one.max_seqs,
    }


def _modelled_ms(engine: Engine, pace: Pace) -> float:
    admitted = pace.running / _lifetime(engine) if pace.admitted is None else pace.admitted / pace.iterations
    return engine.step_ms(min(admitted, engine.most_admitted))


def _lifetime(engine: Engine) -> float:
    """Iterations that a request runs: those that generate, and those of its prefill."""
    return engine.mean_output + engine.mean_prompt / engine.step_budget


def _summed(parts: Iterable[Mapping[Resource, float]]) -> dict[Resource, float]:
    listed = list(parts)
    return {name: math.fsum(part[name] for part in listed) for name in RESOURCES}


def _per_slot(group: GroupLoad, resource: Resource) -> float:
    return group.demand(resource) / len(group.slots)


def _drain_seconds(group: GroupLoad) -> float:
    seconds = 0.0
    heard = group.serving - len(group.silent)
    for name in RESOURCES:
        if group.queued[name] > 0:
            left = heard - group.arriving[name]
            seconds = max(seconds, group.queued[name] * DRAIN_SECONDS / left if left > 0 else math.inf)
    return seconds


def _slots(demand: float) -> int:
    return math.ceil(demand - 1e-9)
