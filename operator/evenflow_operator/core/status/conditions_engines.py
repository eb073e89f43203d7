"""Conditions about what the engines report: MetricsAvailable, SchedulerActive, CapsConverged, EvictionFree."""

import math

from evenflow_operator.api.conditions import (
    CapsConvergedReason,
    EvictionFreeReason,
    MetricsAvailableReason,
    SchedulerActiveReason,
)
from evenflow_operator.api.enums import AdmissionMode
from evenflow_operator.core.caps import RAISE_SECONDS
from evenflow_operator.core.memory import PoolMemory, Rates
from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.readings.facts import applied_generation, finite
from evenflow_operator.core.readings.rates import per_thousand
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView, Reading
from evenflow_operator.core.status.verdict import Verdict, false, slot_list, true, unknown

FEW_PER_THOUSAND = 5
GRACE_INTERVALS = 3
"""So many metric intervals after a pod became ready, silence is no news yet."""

HOLDS = {
    "hold_invalid": "samples are invalid",
    "hold_reset": "counters were reset",
    "hold_gap": "samples are too far apart",
    "hold_source": "the metric source is unavailable",
    "hold_stale": "samples are stale",
    "hold_missing": "samples are missing",
}


def metrics_available(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = MetricsAvailableReason
    snapshot, metrics = situation.snapshot, situation.spec.metrics
    pods = {slot: pod for slot, pod in situation.filling.items() if pod.ready}
    if not pods:
        return unknown(reason.NO_READY_SLOTS, "no slot is ready")
    source = snapshot.extra.get("metrics_source", metrics.source.value)
    if snapshot.metrics_source_problem is not None:
        return false(reason.SOURCE_UNAVAILABLE, f"{source}: {snapshot.metrics_source_problem}; caps hold")
    believed = GRACE_INTERVALS * metrics.interval_seconds
    verdict = None
    for slot, pod in pods.items():
        wrong = _unreadable(snapshot.readings.get(pod.uid), snapshot.now, believed, metrics.stale_after_seconds)
        if wrong is None:
            continue
        if pod.ready_since is None or snapshot.now - pod.ready_since > believed:
            return false(wrong[0], f"slot {slot}: {wrong[1]}; its cap holds")
        verdict = unknown(reason.METRICS_MISSING, f"slot {slot} has only just become ready")
    if verdict is not None:
        return verdict
    return true(reason.METRICS_FRESH, f"{len(pods)} engines are read by {source}")


def scheduler_active(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    states = {
        slot: reading.state
        for slot, pod in situation.filling.items()
        if (reading := situation.snapshot.readings.get(pod.uid)) is not None and reading.state is not None
    }
    for slot, state in states.items():
        if state.scheduler != "evenflow":
            return false(SchedulerActiveReason.STOCK_SCHEDULER, f"slot {slot}: {state.engine}: {state.reason}")
    silent = sorted(slot for slot, pod in situation.filling.items() if pod.ready and slot not in states)
    if not states or silent:
        return unknown(
            SchedulerActiveReason.UNKNOWN, f"{len(states)} of {len(situation.filling)} workers report a scheduler"
        )
    return true(SchedulerActiveReason.ACTIVE, f"{len(states)} engines run the evenflow scheduler")


def caps_converged(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    """Whether every engine runs with the cap that is wanted; its reason says what moves caps."""
    reason = CapsConvergedReason
    ready = {slot: pod for slot, pod in situation.filling.items() if pod.ready}
    if not ready:
        return unknown(reason.WAITING, "no slot is ready")
    late = sorted(slot for slot, pod in ready.items() if not _applied(situation, pod))
    if late:
        return false(reason.WAITING, f"wanted settings not yet reported as applied: {slot_list(late)}")
    mode = situation.spec.admission.mode
    if mode is AdmissionMode.OFF:
        return true(reason.OFF, "spec.admission.mode is Off")
    if mode is AdmissionMode.FIXED:
        return true(reason.FIXED, "spec.admission.mode is Fixed")
    states = {slot: memory.caps[pod.uid] for slot, pod in ready.items() if pod.uid in memory.caps}
    if any(state.seen_at == 0.0 for state in states.values()):
        return unknown(reason.WAITING, "caps stand at their starting points; there are too few samples yet")
    for slot, state in states.items():
        if state.reason in HOLDS:
            return false(reason.HOLDING, f"slot {slot}: {HOLDS[state.reason]}; caps stay as they are")
    if any(s.aimd.cooldown > 0 or situation.now - s.raised_at < 2 * RAISE_SECONDS for s in states.values()):
        return true(reason.ADJUSTING, "settings are applied; caps follow the evictions")
    return true(reason.CONVERGED, "settings are applied; caps are steady")


def eviction_free(situation: Situation, outcome: Outcome, memory: PoolMemory) -> Verdict:
    reason = EvictionFreeReason
    windows = _windows(situation, memory)
    if not windows:
        return unknown(reason.UNKNOWN, "no whole minute was measured yet")
    if all(window.evicted == 0 for window in windows):
        return true(reason.NO_EVICTIONS, "no evictions in the last whole minute")
    rate = pool_evictions_per_thousand(situation, memory) or 0
    message = f"{rate} evictions per 1000 completed requests"
    return true(reason.FEW_EVICTIONS, message) if rate < FEW_PER_THOUSAND else false(reason.EVICTIONS_OBSERVED, message)


def pool_evictions_per_thousand(situation: Situation, memory: PoolMemory) -> int | None:
    windows = _windows(situation, memory)
    if not windows:
        return None
    return per_thousand(math.fsum(w.evicted or 0 for w in windows), math.fsum(w.finished or 0 for w in windows))


def _windows(situation: Situation, memory: PoolMemory) -> list[Rates]:
    known = (memory.rates.get(pod.uid) for pod in situation.filling.values())
    return [rates for rates in known if rates is not None and rates.evicted is not None]


def _applied(situation: Situation, pod: PodView) -> bool:
    applied = applied_generation(situation.snapshot.readings.get(pod.uid))
    return pod.worker_config is not None and applied is not None and applied >= pod.worker_config.generation


def _unreadable(
    reading: Reading | None, now: float, believed: float, stale_after: float
) -> tuple[MetricsAvailableReason, str] | None:
    """What is wrong with a reading; one failed sample alone is not."""
    reason = MetricsAvailableReason
    if reading is None or reading.counters is None:
        problem = reading.problem if reading is not None else None
        return reason.METRICS_MISSING, problem or "nothing was read yet"
    age, why = now - reading.taken_at, reading.problem or "no newer one came"
    if age > stale_after:
        return reason.METRICS_STALE, f"the last sample is over {stale_after:g} s old: {why}"
    counters = reading.counters
    needed = {
        "evictions": counters.evictions,
        "admissions": counters.admitted,
        "waiting requests": counters.waiting,
        "peak KV use": counters.kv_peak_ratio,
    }
    bad = [name for name, value in needed.items() if finite(value) is None]
    if bad:
        return reason.METRICS_INVALID, f"{', '.join(bad)} missing or not a number"
    if reading.problem is not None and age > believed:
        return reason.METRICS_MISSING, reading.problem
    return None
