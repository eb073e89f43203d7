"""Evictions and recomputed tokens per engine, over whole windows of about a minute."""

from collections.abc import Iterable
from dataclasses import replace

from evenflow_operator.api.status import PER_THOUSAND_MAX
from evenflow_operator.core.memory import Rates
from evenflow_operator.core.readings.facts import counters_of, finite
from evenflow_operator.core.snapshot import PodView, Snapshot

WINDOW_SECONDS = 60.0


def renewed_rates(snapshot: Snapshot, pods: Iterable[PodView]) -> dict[str, Rates]:
    """Per pod uid. A reset starts a new window; a sample with a missing figure changes nothing."""
    renewed: dict[str, Rates] = {}
    for pod in pods:
        before = snapshot.memory.rates.get(pod.uid)
        after = _renewed(snapshot, pod, before)
        if after is not None:
            renewed[pod.uid] = after
    return renewed


def _renewed(snapshot: Snapshot, pod: PodView, before: Rates | None) -> Rates | None:
    reading = snapshot.readings.get(pod.uid)
    counters = counters_of(reading)
    evictions, completed = finite(counters.evictions), finite(counters.completed)
    if reading is None or evictions is None or completed is None:
        return before
    recomputed, generated = finite(counters.recomputed_tokens), finite(counters.generated_tokens)
    at = reading.taken_at
    fresh = Rates(at, evictions, completed, recomputed, generated, at)
    if before is None:
        return fresh
    if at <= before.seen_at:
        return before
    if evictions < before.evictions or completed < before.completed:
        return fresh
    if at - before.began_at < WINDOW_SECONDS:
        return before
    return replace(
        fresh,
        evicted=evictions - before.evictions,
        finished=completed - before.completed,
        recomputed_tokens=_increase(before.recomputed, recomputed),
        generated_tokens=_increase(before.generated, generated),
    )


def _increase(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before


def per_thousand(part: float | None, whole: float | None) -> int | None:
    """`part` per thousand of `whole` to two digits; None when nothing was measured."""
    if part is None or whole is None or (part == 0 and whole == 0):
        return None
    ratio = round(float(f"{1000 * part / max(whole, 1.0):.2g}"))
    return min(max(1, ratio), PER_THOUSAND_MAX) if part > 0 else 0
