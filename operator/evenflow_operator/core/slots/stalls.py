"""Engines that hold waiting requests and no longer iterate: they take no part until they do again."""

from collections.abc import Iterable

from evenflow_operator.core.memory import Progress
from evenflow_operator.core.readings.facts import iterations, waiting_requests
from evenflow_operator.core.snapshot import PodView, Snapshot

STALL_SAMPLES = 3
STALL_INTERVALS = 3
STALL_SECONDS = 15.0
"""An engine is stalled after so many metric intervals and samples, and so long, without an iteration while requests
wait: a long prefill or a busy computer is no stall."""


def renewed_progress(snapshot: Snapshot, pods: Iterable[PodView], interval: float) -> dict[str, Progress]:
    """Per pod uid. Whatever is unknown leaves things as they are: silence is no stall, nor a recovery."""
    renewed: dict[str, Progress] = {}
    for pod in pods:
        before = snapshot.memory.progress.get(pod.uid)
        after = _renewed(snapshot, pod, before, interval)
        if after is not None:
            renewed[pod.uid] = after
    return renewed


def _renewed(snapshot: Snapshot, pod: PodView, before: Progress | None, interval: float) -> Progress | None:
    reading = snapshot.readings.get(pod.uid)
    count, waiting = iterations(reading), waiting_requests(reading)
    if reading is None or count is None or waiting is None:
        return before
    at = reading.taken_at
    if before is not None and at <= before.seen_at:
        return before
    if before is not None and before.samples == 0 and waiting > 0:
        # Restored after a restart of the operator: what it was, until it is seen to iterate.
        return Progress(count, at, at, 1, before.stalled)
    if before is None or count != before.iterations or waiting == 0:
        return Progress(count, at, at, 1)
    samples = before.samples + 1
    long_enough = at - before.since >= max(STALL_SECONDS, STALL_INTERVALS * interval)
    stalled = before.stalled or (samples > STALL_SAMPLES and long_enough)
    return Progress(count, before.since, at, samples, stalled)
