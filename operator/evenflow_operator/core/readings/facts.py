"""What is known of one engine right now: fresh figures or None, never a guess and never a stale one."""

import math

from evenflow_contract.worker_config import MAX_GENERATION
from evenflow_operator.api.names import MAX_KV_TOKENS
from evenflow_operator.core.snapshot import EngineCounters, PodView, Reading, Snapshot

DEFAULT_BLOCK_SIZE = 16
"""vLLM's; used until the engine says its own."""


def fresh_reading(snapshot: Snapshot, pod: PodView, stale_after: float) -> Reading | None:
    """The pod's reading, unless there is none or it is older than `stale_after` seconds."""
    reading = snapshot.readings.get(pod.uid)
    if reading is None or snapshot.now - reading.taken_at > stale_after:
        return None
    return reading


def finite(value: float | None) -> float | None:
    """The value, or None when it is missing, NaN, infinite or negative."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def counters_of(reading: Reading | None) -> EngineCounters:
    return reading.counters if reading is not None and reading.counters is not None else EngineCounters()


def in_flight(reading: Reading | None, since: float) -> float | None:
    """Requests running and waiting, as known at or after `since`; the larger of what state and metrics say.

    None when neither is known: unknown is not zero.
    """
    if reading is None:
        return None
    known: list[float] = []
    state_at = reading.taken_at if reading.state_at is None else reading.state_at
    if reading.state is not None and state_at >= since:
        known.append(float(reading.state.running + reading.state.waiting))
    counters = counters_of(reading)
    running, waiting = finite(counters.running), finite(counters.waiting)
    if running is not None and waiting is not None and reading.taken_at >= since:
        known.append(running + waiting)
    return max(known, default=None)


def waiting_requests(reading: Reading | None) -> float | None:
    waiting = finite(counters_of(reading).waiting)
    if waiting is None and reading is not None and reading.state is not None:
        return float(reading.state.waiting)
    return waiting


def iterations(reading: Reading | None) -> float | None:
    """None where nothing counts them: the worker's own count stays at zero under stock scheduling."""
    count = finite(counters_of(reading).iterations)
    if count is None and reading is not None and reading.state is not None and reading.state.scheduler == "evenflow":
        return float(reading.state.iterations)
    return count


def applied_generation(reading: Reading | None) -> int | None:
    if reading is not None and reading.state is not None:
        return reading.state.applied_generation
    applied = finite(counters_of(reading).applied_generation)
    return None if applied is None or applied > MAX_GENERATION else int(applied)


def usable_kv_tokens(reading: Reading | None, expected: int) -> int:
    """M as the engine reports it, however old the report (it is fixed at the engine's start), else the spec's."""
    if reading is not None and reading.state is not None and reading.state.kv_capacity_tokens > 0:
        return min(reading.state.kv_capacity_tokens, MAX_KV_TOKENS)
    reported = finite(counters_of(reading).kv_capacity_tokens)
    return int(min(reported, MAX_KV_TOKENS)) if reported is not None and reported >= 1 else expected


def block_size(reading: Reading | None) -> int:
    return reading.state.block_size if reading is not None and reading.state is not None else DEFAULT_BLOCK_SIZE
