"""What each engine did over the last few samples: arrivals, running and waiting requests, iterations."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evenflow_operator.core.readings.facts import counters_of, finite, iterations, waiting_requests
from evenflow_operator.core.scaling.state import Sample
from evenflow_operator.core.snapshot import PodView, Reading, Snapshot

WINDOW_INTERVALS = 4
SHORTEST_WINDOW_SECONDS = 10.0
SHORTEST_SPAN = 0.5
"""Samples that lie closer together than this part of a metric interval tell no rate."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One engine over a window; rates are per second of wall time."""

    running: float
    """Mean of the samples."""
    waiting: float
    """In the newest sample."""
    arrivals: float | None
    """Requests that came, waiting or admitted; None where admissions aren't counted."""
    arrived: float
    """How many they were: what their rate's noise is judged by. Where they aren't counted, those that run."""
    iterations: float | None


def window_seconds(interval: float) -> float:
    return max(SHORTEST_WINDOW_SECONDS, WINDOW_INTERVALS * interval)


def renewed_history(snapshot: Snapshot, pods: Iterable[PodView], interval: float) -> dict[str, tuple[Sample, ...]]:
    """Per pod uid. A sample without running or waiting requests adds nothing; a counter that fell starts anew."""
    renewed: dict[str, tuple[Sample, ...]] = {}
    for pod in pods:
        known = snapshot.memory.scaling.history.get(pod.uid, ())
        found = _sample(snapshot.readings.get(pod.uid))
        if found is not None and (not known or found.at > known[-1].at):
            known = () if known and _restarted(known[-1], found) else known
            known = (*(one for one in known if one.at >= found.at - window_seconds(interval)), found)
        if known:
            renewed[pod.uid] = known
    return renewed


def usage_of(history: Sequence[Sample], now: float, stale_after: float, interval: float) -> Usage | None:
    """None when nothing fresh is known, or too little to tell a rate."""
    if len(history) < 2 or now - history[-1].at > stale_after:
        return None
    first, last = history[0], history[-1]
    span = last.at - first.at
    if span < SHORTEST_SPAN * interval:
        return None
    running = statistics.fmean(sample.running for sample in history)
    admitted, iterated = _increase(first.admitted, last.admitted), _increase(first.iterations, last.iterations)
    arrived = None if admitted is None else max(0.0, admitted + last.waiting - first.waiting)
    return Usage(
        running=running,
        waiting=last.waiting,
        arrivals=None if arrived is None else arrived / span,
        arrived=running if arrived is None else arrived,
        iterations=None if iterated is None else iterated / span,
    )


def usages(
    history: Mapping[str, Sequence[Sample]], now: float, stale_after: float, interval: float
) -> dict[str, Usage]:
    """Per pod uid, of those whose usage is known."""
    known = {uid: usage_of(samples, now, stale_after, interval) for uid, samples in history.items()}
    return {uid: usage for uid, usage in known.items() if usage is not None}


def _sample(reading: Reading | None) -> Sample | None:
    counters, waiting = counters_of(reading), waiting_requests(reading)
    running = finite(counters.running)
    if reading is None or reading.counters is None or running is None or waiting is None:
        return None
    return Sample(reading.taken_at, running, waiting, finite(counters.admitted), iterations(reading))


def _restarted(before: Sample, after: Sample) -> bool:
    pairs = ((before.admitted, after.admitted), (before.iterations, after.iterations))
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _increase(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
