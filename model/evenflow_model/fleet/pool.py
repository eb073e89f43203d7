"""A whole pool: engines with clocks of their own behind a router, from event to event.

An engine's next event is the end of an iteration, or of a leap over many; an arrival cuts a leap short where it lands.
Same input, same seed, same result.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.leap import Leap
from evenflow_model.fleet.records import EngineRequest, FinishedRequest, RequestTooLarge
from evenflow_model.fleet.routing import Load, Router

_LONGEST_LEAP = 1 << 20


@dataclass(frozen=True, slots=True)
class IterationHook:
    """`call(index, engine)` after every `every` iterations of each engine: a controller beside the engine."""

    every: int
    call: Callable[[int, Engine], None]


@dataclass(frozen=True, slots=True)
class TimeHook:
    """`call(fleet, now_s)` every `every_s` seconds, from then on, as long as there is work: an operator's loop.

    An engine within an iteration has finished it: its `now` may lie beyond `now_s` by that much.
    """

    every_s: float
    call: Callable[["Fleet", float], None]


class _Member:
    __slots__ = ("busy", "engine", "finished", "hooked_at", "leap", "load", "version")

    def __init__(self, index: int, engine: Engine) -> None:
        self.engine = engine
        self.load = Load(index)
        self.leap: Leap | None = None
        self.finished: tuple[FinishedRequest, ...] = ()
        self.busy = False
        self.version = 0
        self.hooked_at = 0


class Fleet:
    """`placement` names the engines, by index, that serve each class; a class that isn't in it may go anywhere.

    Both it and the engines' settings may be changed by hooks. `refused` counts requests that no engine could hold.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        router: Router,
        *,
        placement: Mapping[str, Sequence[int]] | None = None,
        on_iterations: IterationHook | None = None,
        on_time: TimeHook | None = None,
    ) -> None:
        if not engines:
            raise ValueError("engines must have at least one, found none: a pool needs replicas")
        self.engines = tuple(engines)
        self.finished: list[FinishedRequest] = []
        self.refused = 0
        self._members = [_Member(index, engine) for index, engine in enumerate(engines)]
        self._all = [member.load for member in self._members]
        self._router = router
        self._on_iterations = on_iterations
        self._on_time = on_time
        self._events: list[tuple[float, int, int]] = []
        self._predicted: dict[str, float] = {}
        self.place(placement or {})

    def place(self, placement: Mapping[str, Sequence[int]]) -> None:
        """New requests of each class go to these engines. Raises ValueError for a class that none serves."""
        for name, indices in placement.items():
            if not indices or not all(0 <= index < len(self._members) for index in indices):
                raise ValueError(
                    f"placement[{name!r}] must name engines from 0 to {len(self._members) - 1}, found {list(indices)}"
                )
        self._placement = {name: [self._all[index] for index in indices] for name, indices in placement.items()}

    def run(
        self, requests: Iterable[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[FinishedRequest]:
        """Serve all requests, sorted by arrival, to the end; returns them as they finished.

        `progress` is told, after each arrival and each thousandth event, how many are finished. Raises ValueError if
        the arrivals aren't sorted.
        """
        tick = math.inf if self._on_time is None else self._on_time.every_s
        arrivals = iter(requests)
        request = next(arrivals, None)
        latest = -math.inf
        count = 0
        while request is not None or self._events:
            event_s = self._events[0][0] if self._events else math.inf
            arrival_s = math.inf if request is None else request.arrival_s
            if tick <= min(event_s, arrival_s):
                self._tick(tick)
                assert self._on_time is not None
                tick += self._on_time.every_s
            elif request is not None and arrival_s <= event_s:
                if arrival_s < latest:
                    raise ValueError(f"requests must be sorted by arrival, found {arrival_s} s after {latest} s")
                latest = arrival_s
                self._arrive(request)
                request = next(arrivals, None)
            else:
                _, index, version = heappop(self._events)
                member = self._members[index]
                if version == member.version:
                    self._event(member)
            count += 1
            if progress is not None and count % 1000 == 0:
                progress(len(self.finished))
        return self.finished

    def _arrive(self, request: EngineRequest) -> None:
        candidates = self._placement.get(request.traffic_class, self._all)
        load = self._router.choose(candidates)
        member = self._members[load.index]
        self._interrupt(member, request.arrival_s)
        if not member.engine.has_work:
            member.engine.advance_idle(request.arrival_s)
        try:
            predicted = member.engine.add(request)
        except RequestTooLarge:
            self.refused += 1
        else:
            load.add(request.prompt_tokens, predicted)
            self._predicted[request.request_id] = predicted
        if member.engine.has_work and not member.busy:
            self._schedule(member)

    def _interrupt(self, member: _Member, at_s: float) -> None:
        """End a leap with the iteration that runs at that moment."""
        if member.leap is None:
            return
        steps = member.leap.steps_started_before(at_s - member.engine.now)
        if steps:
            member.finished = member.engine.leap(member.leap, steps)
        member.leap = None
        self._schedule(member)

    def _event(self, member: _Member) -> None:
        """An iteration or a leap is over: hand out what finished and begin the next."""
        engine = member.engine
        member.busy = False
        if member.leap is not None:
            member.finished = engine.leap(member.leap, member.leap.steps)
            member.leap = None
        for done in member.finished:
            member.load.add(done.prompt_tokens, self._predicted.pop(done.request_id), -1)
            self.finished.append(done)
        member.finished = ()
        limit = _LONGEST_LEAP
        if self._on_iterations is not None:
            every, iterations = self._on_iterations.every, engine.counters.iterations
            if iterations % every == 0 and iterations > member.hooked_at:
                member.hooked_at = iterations
                self._on_iterations.call(member.load.index, engine)
            limit = every - iterations % every
        if not engine.has_work:
            return
        member.leap = engine.plan_leap(limit)
        if member.leap is None:
            member.finished = engine.iterate().done
        self._schedule(member)

    def _schedule(self, member: _Member) -> None:
        member.busy = True
        member.version += 1
        end = member.engine.now
        if member.leap is not None:
            end += member.leap.seconds(member.leap.steps)
        heappush(self._events, (end, member.load.index, member.version))

    def _tick(self, at_s: float) -> None:
        for member in self._members:
            self._interrupt(member, at_s)
        assert self._on_time is not None
        self._on_time.call(self, at_s)
