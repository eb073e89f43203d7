"""What each engine did over the last few samples: arrivals, running and waiting requests, iterations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from evenflow_operator.api.spec import Metrics
from evenflow_operator.core.readings.facts import counters_of, finite, iterations, waiting_requests
from evenflow_operator.core.scaling.state import Sample
from evenflow_operator.core.snapshot import PodView, Reading, Snapshot

WINDOW_INTERVALS = 4
SHORTEST_WINDOW_SECONDS = 10.0
BUSY_REQUESTS = 4.0
"""With fewer running requests, and none that wait, an engine may well have been idle in between two samples."""
SHORTEST_SPAN = 0.5
"""Samples that lie closer together than this part of a metric interval tell no rate."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a busy engine iterated between two samples; per second of wall time."""

    running: float
    admitted: float | None
    """Requests that began to run; None where they aren't counted."""
    iterations: float
    calm: bool = True
    """Nothing waited. Overloaded engines recompute what they evicted: their iterations are longer than modelled."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One engine over a window that is the same for all engines of its pool; rates are per second of wall time."""

    running: float
    """Mean of its samples."""
    present: float
    """Share of the window, 0 to 1, that its samples span: an engine that joined took the others' load only since."""
    waiting: float
    """In the newest sample."""
    arrivals: float | None
    """Requests that came, waiting or admitted; None where admissions aren't counted."""
    arrived: float
    """How many they were: what their rate's noise is judged by. Where they aren't counted, those that run."""
    admitted: float | None = None
    """Requests that began to run; None as arrivals."""
    queued: bool = False
    """Requests waited in each of several samples."""
    paces: tuple[Pace, ...] = ()


def window_seconds(interval: float) -> float:
    return max(SHORTEST_WINDOW_SECONDS, WINDOW_INTERVALS * interval)


def renewed_history(snapshot: Snapshot, pods: Iterable[PodView], metrics: Metrics) -> dict[str, tuple[Sample, ...]]:
    """Per pod uid. A sample without running or waiting requests adds nothing; a counter that fell starts anew."""
    window = window_seconds(metrics.interval_seconds)
    renewed: dict[str, tuple[Sample, ...]] = {}
    for pod in pods:
        known = snapshot.memory.scaling.history.get(pod.uid, ())
        found = _sample(snapshot.readings.get(pod.uid))
        if found is not None and (not known or found.at > known[-1].at):
            kept = tuple(one for one in known if one.at >= found.at - window)
            # Prometheus may sample more seldom than it is asked.
            if not kept and known and found.at - known[-1].at <= metrics.stale_after_seconds:
                kept = known[-1:]
            known = (found,) if kept and _restarted(kept[-1], found) else (*kept, found)
        if known:
            renewed[pod.uid] = known
    return renewed


def usages(
    history: Mapping[str, Sequence[Sample]], now: float, stale_after: float, interval: float
) -> dict[str, Usage]:
    """Per pod uid, of those of which something fresh is known, and enough to tell a rate."""
    known = {
        uid: samples
        for uid, samples in history.items()
        if now - samples[-1].at <= stale_after and _span(samples) >= SHORTEST_SPAN * interval
    }
    window = max(map(_span, known.values()), default=0.0)
    return {uid: _usage(samples, window) for uid, samples in known.items()}


def newest(history: Mapping[str, Sequence[Sample]], interval: float) -> dict[str, Sequence[Sample]]:
    """The end of each history, as short as a rate can be told from."""
    return {uid: _end(samples, interval) for uid, samples in history.items()}


def _usage(history: Sequence[Sample], window: float) -> Usage:
    first, last, span = history[0], history[-1], _span(history)
    running = sum([sample.running for sample in history]) / len(history)
    admitted = _increase(first.admitted, last.admitted)
    arrived = None if admitted is None else max(0.0, admitted + last.waiting - first.waiting)
    return Usage(
        running=running,
        present=span / window,
        waiting=last.waiting,
        arrivals=None if arrived is None else arrived / window,
        arrived=running if arrived is None else arrived,
        admitted=None if admitted is None else admitted / window,
        queued=len(history) >= WINDOW_INTERVALS and all(sample.waiting > 0 for sample in history),
        paces=tuple(pace for pair in pairwise(history) if (pace := _pace(*pair)) is not None),
    )


def _pace(before: Sample, after: Sample) -> Pace | None:
    """None for an engine that may have been idle in between: that would count as long iterations."""
    seconds, iterated = after.at - before.at, _increase(before.iterations, after.iterations)
    busy = all(sample.running >= BUSY_REQUESTS or sample.waiting > 0 for sample in (before, after))
    if not busy or not iterated or seconds <= 0:
        return None
    admitted = _increase(before.admitted, after.admitted)
    running = (before.running + after.running) / 2
    calm = before.waiting == after.waiting == 0
    return Pace(running, None if admitted is None else admitted / seconds, iterated / seconds, calm)


def _end(samples: Sequence[Sample], interval: float) -> Sequence[Sample]:
    start = next((n for n in range(len(samples) - 1, 0, -1) if _span(samples[n:]) >= SHORTEST_SPAN * interval), 0)
    return samples[start:]


def _span(samples: Sequence[Sample]) -> float:
    return samples[-1].at - samples[0].at


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
