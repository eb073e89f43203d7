"""Rates of a greedy server with bounded KV memory, and its dynamics (congestion paper; docs/theory.md §3).

`ContinuousModel` divides requests at will and is exact; `IntegerEngine` and `simulate` move whole ones.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from evenflow_model._checks import check_int, check_real
from evenflow_model._continuous import ContinuousModel, FlowClass, FlowStep, Mass, State
from evenflow_model._integer import GREEDY, Actuators, CapMode, FlowTrace, IntegerEngine, simulate, smooth_order
from evenflow_model.lengths import FloatArray, LengthMix

__all__ = [
    "GREEDY",
    "Actuators",
    "CapMode",
    "ContinuousModel",
    "FlowClass",
    "FlowStep",
    "FlowTrace",
    "IntegerEngine",
    "Mass",
    "State",
    "cycle_rate",
    "eviction_free_rate",
    "pulse_cycle_rate",
    "safe_rate",
    "simulate",
    "smooth_order",
    "worst_cycle_loss",
]


def eviction_free_rate(mix: LengthMix, kv_tokens: float, block_size: int = 1) -> float:
    """x* = M/E[volume]: admissions per engine iteration that `kv_tokens` of KV memory sustain (eq. B.2).

    With block_size > 1 volumes are counted in whole blocks, x*_b = M / E[Σ_j B·ceil((l0+1+j)/B)], as paged engines hold
    them. Raises ValueError unless kv_tokens > 0 is finite and block_size is an integer ≥ 1.
    """
    return check_real("kv_tokens", kv_tokens, 0.0, exclusive=True) / mix.mean_volume(block_size)


def pulse_cycle_rate(mix: LengthMix, kv_tokens: float) -> float:
    """Completions per iteration of the pulse cycle at the mix's length gcd g: T_g = M/(g·Σ_{i≥1} W_{ig-1}) (B.3).

    W_j = E[(l0+1+j)·1{l>j}]. With g = 1 this is x*; the gap to x* is the throughput that synchronised lengths cost a
    greedy server. Raises ValueError unless kv_tokens > 0 is finite.
    """
    kv = check_real("kv_tokens", kv_tokens, 0.0, exclusive=True)
    g = mix.gcd()
    pulses = mix.outputs // g
    held = float(mix.shares @ (pulses * mix.prompts + g * (pulses * (pulses + 1) / 2.0)))
    return kv / (g * held)


def cycle_rate(gaps: Sequence[int], prompt_tokens: int, kv_tokens: int | Fraction) -> Fraction:
    """Completions per iteration T(g) = M/(l0·l + (l² + Σ g²)/2) of one class's equilibrium cycle, exact (eq. B.3).

    `gaps` are the distances between the stages that hold requests, around the cycle; they sum to the output length l.
    All ones is the even flow, x*; one gap of l is the worst cycle. Raises ValueError unless gaps are integers ≥ 1,
    prompt_tokens is an integer ≥ 0 and kv_tokens > 0.
    """
    if not gaps:
        raise ValueError("gaps must have at least one entry, found none: pass [output length] for the worst cycle")
    checked = [check_int(f"gaps[{index}]", gap, 1) for index, gap in enumerate(gaps)]
    prompt, output = check_int("prompt_tokens", prompt_tokens, 0), sum(checked)
    check_real("kv_tokens", kv_tokens, 0.0, exclusive=True)
    return Fraction(kv_tokens) / (prompt * output + Fraction(output * output + sum(g * g for g in checked), 2))


def worst_cycle_loss(prompt_tokens: int, output_tokens: int) -> Fraction:
    """Share of x* that the worst cycle of one class loses: 1 - (l0+(l+1)/2)/(l0+l), < 1/2, exact (docs/theory.md §3).

    Raises ValueError unless prompt_tokens ≥ 0 and output_tokens ≥ 1 are integers.
    """
    prompt, output = check_int("prompt_tokens", prompt_tokens, 0), check_int("output_tokens", output_tokens, 1)
    return 1 - (prompt + Fraction(output + 1, 2)) / (prompt + output)


def safe_rate(mix: LengthMix, kv_tokens: float, z: float = 3.0) -> float:
    """Admissions per iteration that leave room for z standard deviations of a random mix: x·V1 + z·√(x·V2) = M (D.3).

    V1 = Σ W_j is the mean volume, V2 = Σ_j Var((l0+1+j)·1{l>j}) the variance that one admission per iteration brings.
    z = 0 is x*; with 2 or 3 a static cap of random classes is free of evictions. Raises ValueError unless kv_tokens > 0
    and z ≥ 0 are finite.
    """
    kv = check_real("kv_tokens", kv_tokens, 0.0, exclusive=True)
    reserve = check_real("z", z, 0.0)
    longest = int(mix.outputs[-1])
    stage = np.arange(longest, dtype=np.float64)
    alive, prompt, square = (_beyond(mix, longest, mix.shares * mix.prompts**power) for power in range(3))
    mean = prompt + (stage + 1.0) * alive
    second = square + 2.0 * (stage + 1.0) * prompt + (stage + 1.0) ** 2 * alive
    v1, v2 = float(mean.sum()), max(0.0, float((second - mean * mean).sum()))
    root = (math.sqrt(reserve * reserve * v2 + 4.0 * v1 * kv) - reserve * math.sqrt(v2)) / (2.0 * v1)
    return root * root


def _beyond(mix: LengthMix, longest: int, weights: FloatArray) -> FloatArray:
    """Weight of the outputs longer than j, for j = 0..longest-1."""
    mass: FloatArray = np.bincount(mix.outputs, weights=weights, minlength=longest + 1).astype(np.float64)
    return np.cumsum(mass[::-1])[::-1][1:]
