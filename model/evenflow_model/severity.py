"""Severity: evictions per completion to expect from output lengths that finish in step (docs/theory.md §4)."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evenflow_model._checks import check_real
from evenflow_model.congestion import eviction_free_rate
from evenflow_model.lengths import LengthMix
from evenflow_model.spectrum import critical_modes

WATCH_ABOVE = 0.005
ACT_ABOVE = 0.05


@dataclass(frozen=True, slots=True)
class Severity:
    """`value`: expected evictions per completion on a greedy server; a ranking and a threshold more than a forecast.

    `period`: iterations of the rhythm behind it, None when every rhythm dies out or the watermark absorbs it.
    `margin`: mean prompt over critical prompt length; stable from 1 on, with a reserve from 1.3; inf when nothing is
    ever unstable, 0 when output lengths share a divisor.
    """

    value: float
    period: float | None
    margin: float


def severity(mix: LengthMix, kv_tokens: float, watermark_tokens: float = 0) -> Severity:
    """Severity of a mix on an engine with `kv_tokens` of KV memory of which admission leaves `watermark_tokens` free.

    Maximum over unstable rhythms i of E(τ_i)·(1 - l0/l_i) with E(τ) = E[l]/(l0+1)·(1-1/τ)·max(0, 1-wm/(N(τ-1))),
    N = x*·E[l] resident requests, l0 the mean prompt (docs/theory.md §4). Raises ValueError unless kv_tokens > 0 and
    0 ≤ watermark_tokens < kv_tokens.
    """
    kv = check_real("kv_tokens", kv_tokens, 0.0, exclusive=True)
    watermark = check_real("watermark_tokens", watermark_tokens, 0.0)
    if watermark >= kv:
        raise ValueError(f"watermark_tokens must be below kv_tokens ({kv:g}), found {watermark:g}: leave room to admit")
    modes = critical_modes(mix)
    prompt, output = mix.mean_prompt(), mix.mean_output()
    critical = max(0.0, float(modes.thresholds.max(initial=0.0)))
    margin = prompt / critical if critical > 0.0 else math.inf
    unstable = modes.thresholds > prompt
    if not unstable.any():
        return Severity(0.0, None, margin)
    periods = modes.periods[unstable]
    resident = eviction_free_rate(mix, kv) * output
    absorbed = watermark / (resident * (periods - 1.0))
    pulse = output / (prompt + 1.0) * (1.0 - 1.0 / periods) * np.maximum(0.0, 1.0 - absorbed)
    values = pulse * (1.0 - prompt / modes.thresholds[unstable])
    worst = int(values.argmax())
    if values[worst] <= 0.0:
        return Severity(0.0, None, margin)
    return Severity(float(values[worst]), float(periods[worst]), margin)


def eviction_free_watermark(mix: LengthMix, kv_tokens: float) -> float:
    """KV tokens to leave free on admission so that no unstable rhythm evicts: max N·(τ-1) (docs/theory.md §5).

    N = x*·E[l] resident requests, τ the periods of the unstable rhythms: with a length gcd g alone it is N·(g-1). At
    this watermark severity is 0. 0.0 where nothing is unstable; inf where even the whole memory would not be enough.
    Raises ValueError unless kv_tokens > 0 is finite.
    """
    kv = check_real("kv_tokens", kv_tokens, 0.0, exclusive=True)
    modes = critical_modes(mix)
    unstable = modes.periods[modes.thresholds > mix.mean_prompt()]
    needed = eviction_free_rate(mix, kv) * mix.mean_output() * (float(unstable.max(initial=1.0)) - 1.0)
    return needed if needed < kv else math.inf


def severity_level(value: float) -> Literal["ok", "watch", "act"]:
    """What to make of a severity: below .005 ok, above .05 act, watch between. Raises ValueError unless it is ≥ 0."""
    found = check_real("value", value, 0.0)
    if found < WATCH_ABOVE:
        return "ok"
    return "act" if found > ACT_ABOVE else "watch"
