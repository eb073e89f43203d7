"""The cap controller (docs/design.md §5.3): additive increase, multiplicative decrease, from evictions per admission.

Pure and in general units: the cap may be in requests or in multiples of M per iteration, time in iterations or seconds.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

AimdReason = Literal[
    "hold_invalid",
    "hold_first",
    "hold_reset",
    "hold_gap",
    "hold_idle",
    "hold_band",
    "cooldown",
    "increase",
    "decrease",
]


@dataclass(frozen=True, slots=True)
class AimdSettings:
    """`nominal` is x̂; the bounds and the step `alpha` are multiples of it. `gap` is the longest believable time
    between two samples, `cooldown` the periods without a second cut: ceil(longest output / iterations per period).
    """

    nominal: float
    gap: float
    cooldown: int
    low: float = 0.5
    high: float = 2.5
    evictions_low: float = 0.002
    evictions_high: float = 0.02
    beta: float = 0.12
    alpha: float = 0.03
    peak_target: float = 0.965


@dataclass(frozen=True, slots=True)
class AimdSample:
    """Cumulative counters, peak KV use (0–1) and waiting requests at one moment; None is unknown, never zero."""

    at: float | None
    evictions: float | None
    admitted: float | None
    peak: float | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class AimdState:
    cap: float
    previous: AimdSample | None = None
    cooldown: int = 0


def aimd_step(state: AimdState, sample: AimdSample | None, settings: AimdSettings) -> tuple[AimdState, AimdReason]:
    """The state after one period and why (docs/design.md §5.3)."""
    figures = _valid(sample)
    cooled = max(state.cooldown - 1, 0)
    if figures is None:
        return replace(state, cooldown=cooled), "hold_invalid"
    at, evictions, admitted, peak, waiting = figures
    previous = _valid(state.previous)
    if previous is None:
        return replace(state, previous=sample), "hold_first"
    before, evictions_before, admitted_before = previous[:3]
    if at <= before:
        return replace(state, cooldown=cooled), "hold_invalid"
    if evictions < evictions_before or admitted < admitted_before:
        return replace(state, previous=sample, cooldown=settings.cooldown), "hold_reset"
    if at - before > settings.gap:
        return replace(state, previous=sample), "hold_gap"
    rate = (evictions - evictions_before) / max(admitted - admitted_before, 1.0)
    if rate > settings.evictions_high:
        if state.cooldown > 0:
            return AimdState(state.cap, sample, cooled), "cooldown"
        excess = min(rate / settings.evictions_high, 10.0)
        factor = 1.0 - min(0.3, settings.beta * (1.0 + excess / 10.0))
        cut = max(settings.low * settings.nominal, state.cap * factor)
        return AimdState(cut, sample, settings.cooldown), "decrease"
    held = AimdState(state.cap, sample, cooled)
    if waiting <= 0:
        return held, "hold_idle"
    if cooled > 0:
        return held, "cooldown"
    if rate > settings.evictions_low or peak >= settings.peak_target:
        return held, "hold_band"
    step = settings.alpha * settings.nominal * min(1.0, (settings.peak_target - peak) / 0.05)
    return replace(held, cap=min(settings.high * settings.nominal, state.cap + step)), "increase"


def _valid(sample: AimdSample | None) -> tuple[float, float, float, float, float] | None:
    if sample is None:
        return None
    figures = (sample.at, sample.evictions, sample.admitted, sample.peak, sample.waiting)
    if any(figure is None or not math.isfinite(figure) for figure in figures):
        return None
    at, evictions, admitted, peak, waiting = (float(figure) for figure in figures if figure is not None)
    if evictions < 0 or admitted < 0 or not 0 <= peak <= 1.5:
        return None
    return at, evictions, admitted, peak, waiting
