"""Admission per slot: where the cap starts, how evictions move it, and the watermark (docs/design.md §5.3).

The controller works in multiples of x* whatever the unit: in Volume that is the multiple of M itself, in Requests it
is multiplied by x*.
"""

import math
from dataclasses import dataclass, replace

from evenflow_contract.worker_config import MAX_PER_ITERATION, MIN_PER_ITERATION, Admission
from evenflow_contract.worker_config import AdmissionUnit as UnitName
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import AdmissionMode, AdmissionUnit, DecisionType
from evenflow_operator.api.names import MICRO
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.aimd import AimdSample, AimdSettings, AimdState, aimd_step
from evenflow_operator.core.decisions import SLOTS_INPUT
from evenflow_operator.core.memory import CapState, PoolMemory
from evenflow_operator.core.placement.search import OK_BELOW
from evenflow_operator.core.placement.severity_cache import MixFigures
from evenflow_operator.core.readings.facts import counters_of, fresh_reading, iterations, waiting_requests
from evenflow_operator.core.snapshot import PodView, Reading, Snapshot
from evenflow_operator.core.times import parse_time

ACT_ABOVE = 0.05
"""Severity (docs/theory.md §4) of tiers; below OK_BELOW lengths are wide, between the two it is judged case by case."""
TIGHT_START = 1.0
LOOSE_START = 2.5
TIGHTEST = 0.5
LOOSEST = 2.5
"""Bounds of the cap in multiples of x*."""
WIDE_WATERMARK = 0.05
TIER_WATERMARK = 0.01
ALPHA = 0.06
"""Step of an increase in multiples of x*."""
WRITE_STEP = 0.05
RAISE_SECONDS = 30.0
GAP_INTERVALS = 3
SHORTEST_PERIOD = 0.5
"""Samples that follow each other within this part of a metric interval are too short a period to judge."""
USUAL_COOLDOWN = 2


@dataclass(frozen=True, slots=True)
class CapOutcome:
    admission: Admission
    state: CapState | None = None
    """None outside mode Auto."""


def admission_for(
    snapshot: Snapshot,
    spec: LLMServingPoolSpec,
    slot: int,
    pod: PodView | None,
    figures: MixFigures | None,
    *,
    warming: bool = False,
) -> CapOutcome:
    """Wanted admission of a slot; `figures` are those of its mix, None while it serves no class.

    While `warming`, what the pod's annotation says stays.
    """
    control = spec.admission
    given = control.watermark_percent
    unit: UnitName = control.unit.value
    if control.mode is AdmissionMode.OFF:
        return CapOutcome(Admission("Off", unit, None, _share(given, 0.0)))
    if control.mode is AdmissionMode.FIXED:
        assert control.cap_micro is not None
        return CapOutcome(Admission("Limited", unit, control.cap_micro / MICRO, _share(given, 0.0)))
    present = pod.worker_config.admission if pod is not None and pod.worker_config is not None else None
    if warming and present is not None and present.mode == "Limited" and present.unit == unit:
        return CapOutcome(replace(present, watermark=_share(given, present.watermark)))
    if figures is None and control.unit is AdmissionUnit.REQUESTS:
        # Nothing is known of the lengths, so there is no x* to be a multiple of.
        return CapOutcome(Admission("Off", unit, None, _share(given, WIDE_WATERMARK)))
    severity = 0.0 if figures is None else figures.severity
    scale = 1.0 if control.unit is AdmissionUnit.VOLUME or figures is None else figures.rate
    state = _started(snapshot.memory, spec, slot, pod, severity, scale)
    state = _judged(state, severity)
    if pod is not None:
        state = _stepped(snapshot, spec, pod, figures, state)
    wanted = _rounded(state.aimd.cap * scale)
    value, raised = _written(snapshot.now, spec, pod, wanted, state)
    state = replace(state, raised_at=snapshot.now) if raised else state
    watermark = WIDE_WATERMARK if state.wide else TIER_WATERMARK
    return CapOutcome(Admission("Limited", unit, value, _share(given, watermark)), state)


def start_for(severity: float) -> float:
    """Where the cap starts, in multiples of x*: 1.0 above .05, 2.5 below .005, log-linear between."""
    if severity >= ACT_ABOVE:
        return TIGHT_START
    if severity <= OK_BELOW:
        return LOOSE_START
    depth = math.log(severity / OK_BELOW) / math.log(ACT_ABOVE / OK_BELOW)
    return LOOSE_START + depth * (TIGHT_START - LOOSE_START)


def is_wide(severity: float, before: bool) -> bool:
    """The regime: wide below .005, tiers above .05; between them it stays as it was, so that nothing flaps."""
    if severity < OK_BELOW:
        return True
    return before and severity <= ACT_ABOVE


def starts_wide(severity: float) -> bool:
    """The regime of a slot without a past: the thresholds' geometric mean divides them."""
    return severity < math.sqrt(OK_BELOW * ACT_ABOVE)


def _started(
    memory: PoolMemory, spec: LLMServingPoolSpec, slot: int, pod: PodView | None, severity: float, scale: float
) -> CapState:
    """The remembered state; else the cap that the pod's annotation has, so that a restart changes nothing."""
    state = memory.caps.get(pod.uid) if pod is not None else None
    if state is not None:
        return state
    cap, wide = start_for(severity), starts_wide(severity)
    written = pod.worker_config.admission if pod is not None and pod.worker_config is not None else None
    if written is not None and written.per_iteration is not None and written.unit == spec.admission.unit.value:
        cap = min(LOOSEST, max(TIGHTEST, written.per_iteration / scale))
        if spec.admission.watermark_percent is None:
            wide = written.watermark > math.sqrt(WIDE_WATERMARK * TIER_WATERMARK)
    return CapState(AimdState(cap), wide=wide, raised_at=_last_raise(memory, slot))


def _judged(state: CapState, severity: float) -> CapState:
    """The regime by now. Lengths that turn out to be tiers start again where tiers start: until the evictions had
    told, several waves of them would have passed. The other way evictions allow it soon enough."""
    wide = is_wide(severity, state.wide)
    if state.wide and not wide:
        return replace(state, wide=False, aimd=replace(state.aimd, cap=min(state.aimd.cap, start_for(severity))))
    return replace(state, wide=wide)


def _stepped(
    snapshot: Snapshot, spec: LLMServingPoolSpec, pod: PodView, figures: MixFigures | None, state: CapState
) -> CapState:
    """One step of the controller for each distinct, fresh sample; without one everything holds."""
    interval, known = spec.metrics.interval_seconds, snapshot.readings
    reading = fresh_reading(snapshot, pod, spec.metrics.stale_after_seconds)
    if snapshot.metrics_source_problem is not None:
        return replace(state, reason="hold_source")
    if reading is None or reading.counters is None:
        return replace(state, reason="hold_missing" if reading is not None or pod.uid not in known else "hold_stale")
    if reading.taken_at <= state.seen_at or pod.drain_started is not None or not pod.serving:
        return state
    previous = state.aimd.previous
    if previous is not None and previous.at is not None and reading.taken_at - previous.at < SHORTEST_PERIOD * interval:
        return state
    now_iterations = iterations(reading)
    settings = AimdSettings(
        nominal=1.0,
        gap=GAP_INTERVALS * float(interval),
        cooldown=_cooldown(state.iterations, now_iterations, figures),
        low=TIGHTEST,
        high=LOOSEST,
        alpha=ALPHA,
    )
    aimd, reason = aimd_step(state.aimd, _sample(reading), settings)
    return replace(state, aimd=aimd, seen_at=reading.taken_at, iterations=now_iterations, reason=reason)


def _sample(reading: Reading) -> AimdSample:
    counters = counters_of(reading)
    return AimdSample(
        reading.taken_at, counters.evictions, counters.admitted, counters.kv_peak_ratio, waiting_requests(reading)
    )


def _cooldown(before: float | None, now: float | None, figures: MixFigures | None) -> int:
    """Periods until what a cut admitted has finished: ceil(longest output / iterations per period)."""
    if before is None or now is None or figures is None or now <= before:
        return USUAL_COOLDOWN
    return max(1, math.ceil(figures.longest_output / (now - before)))


def _written(
    now: float, spec: LLMServingPoolSpec, pod: PodView | None, wanted: float, state: CapState
) -> tuple[float, bool]:
    """The value to write and whether it is a raise: small differences wait, cuts don't, raises keep their distance."""
    written = None if pod is None or pod.worker_config is None else pod.worker_config.admission
    if written is None or written.per_iteration is None or written.unit != spec.admission.unit.value:
        return wanted, False
    old = written.per_iteration
    within_bounds = spec.admission.unit is AdmissionUnit.REQUESTS or TIGHTEST <= old <= LOOSEST
    if within_bounds and abs(wanted - old) < WRITE_STEP * old:
        return old, False
    if wanted > old:
        return (old, False) if 0 <= now - state.raised_at < RAISE_SECONDS and within_bounds else (wanted, True)
    return wanted, False


def _last_raise(memory: PoolMemory, slot: int) -> float:
    times = [
        parse_time(record["time"]) or 0.0
        for record in memory.decisions
        if record["type"] == DecisionType.CAP.value
        and record["reason"] == DecisionReason.CAP_RAISED.value
        and str(slot) in record.get("inputs", {}).get(SLOTS_INPUT, "").split(",")
    ]
    return max(times, default=0.0)


def _share(percent: int | None, default: float) -> float:
    return default if percent is None else percent / 100


def _rounded(value: float) -> float:
    return min(MAX_PER_ITERATION, max(MIN_PER_ITERATION, float(f"{value:.4g}")))
