"""Which rhythms a mix of lengths can sustain, and up to which prompt length they are unstable (docs/theory.md §3).

Without evictions the admissions a_n of a full server obey Σ_j W_j·a_{n-j} = M with W_j = E[(l0+1+j)·1{l>j}]. On the
unit circle its characteristic function is s·R(u) + Q(u), s the mean prompt, with R_j = E[(l0/s)·1{l>j}] and
Q_j = (j+1)·P(l>j). A rhythm of period 2π/w crosses from unstable to stable at s = -Re(Q/R), where Im(Q/R) = 0.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evenflow_model._roots import smallest_modulus, zeros_inside
from evenflow_model.lengths import FloatArray, LengthMix

ComplexArray = NDArray[np.complex128]

_STENCIL = np.arange(-3, 5)
"""Grid points around a sign change that the spectra are interpolated from; it lies between points 0 and 1."""

_LAGRANGE = np.linalg.inv(np.vander(_STENCIL.astype(np.float64), increasing=True))
"""Rows: polynomial coefficients, lowest first, per value at a stencil point."""

_MAX_ITERATIONS = 40
"""Of the root search; about eight are used."""

_GRID = ((4096, 16), (65_536, 8), (1 << 62, 4))
"""Grid points per token of the longest output, up to which length; critical points are told apart from 4 on."""


@dataclass(frozen=True, slots=True, eq=False)
class Modes:
    """Rhythms of a mix: `periods` in iterations and, for each, the mean prompt in tokens below which it is unstable."""

    periods: FloatArray
    thresholds: FloatArray


def critical_prompt_length(mix: LengthMix) -> float:
    """l0_crit: mean prompt length in tokens from which on the mix is stable (docs/theory.md §3).

    Prompts of different classes are scaled together, so the result compares with `mix.mean_prompt()`. inf iff the
    output lengths share a divisor; 0 where no rhythm is ever unstable.
    """
    if mix.gcd() > 1:
        return math.inf
    omega, thresholds = _critical_points(mix)
    best = float(thresholds.max())
    if best <= 0.0:
        return 0.0
    # The interpolated values lose digits in proportion to themselves; the ones that may be the largest are made exact.
    top = np.argsort(-thresholds)[:16]
    top = top[thresholds[top] >= 0.5 * best]
    return max(0.0, float(_polish(mix, omega[top]).max()))


def growth_per_lifetime(mix: LengthMix) -> float:
    """gamma = rho^E[l]: growth of the least stable rhythm in one mean lifetime; above 1 it takes over (C.1).

    rho is the largest modulus among the roots of the admission recurrence. 0.0 where no rhythm is within 0.5 of the
    unit circle: perturbations are gone within a few iterations.
    """
    modulus = smallest_modulus(_admission_weights(mix))
    return 0.0 if modulus is None else modulus ** -mix.mean_output()


def unstable_root_count(mix: LengthMix) -> int | Literal["undecided"]:
    """Roots of the admission recurrence outside the unit circle: the rhythms that grow (two roots each).

    "undecided" where a root is so close to the circle that rounding can't tell its side, as at the critical prompt
    length itself; `critical_prompt_length` then has the verdict. Theory C.1, C.3.
    """
    count = zeros_inside(_admission_weights(mix))
    return "undecided" if count is None else count


def critical_modes(mix: LengthMix) -> Modes:
    """All rhythms of the mix with the mean prompt length at which each becomes stable (docs/theory.md §3).

    A common divisor g of the output lengths adds the period g with threshold inf.
    """
    omega, thresholds = _critical_points(mix)
    periods = 2.0 * math.pi / omega
    if (g := mix.gcd()) > 1:
        periods, thresholds = np.append(periods, float(g)), np.append(thresholds, math.inf)
    return Modes(periods, thresholds)


def _admission_weights(mix: LengthMix) -> FloatArray:
    """W_j = E[(l0+1+j)·1{l>j}] in tokens, j = 0..longest-1: the memory that an admission j iterations ago holds."""
    longest = int(mix.outputs[-1])
    steps = np.arange(1, longest + 1)
    held: FloatArray = _survival(mix, mix.shares * mix.prompts, longest) + steps * _survival(mix, mix.shares, longest)
    return held


def _critical_points(mix: LengthMix) -> tuple[FloatArray, FloatArray]:
    """Angles w in (0, π] with Im(Q/R) = 0 and -Re(Q/R) there, except the zeros of R that a common divisor makes."""
    longest = int(mix.outputs[-1])
    n = _grid_size(longest)
    q, r = _spectra(mix, longest, n)
    # Both ends of (0, π) are roots by symmetry: 0 is no rhythm, π always is one.
    omega, values = _cell_roots(_mirrored(q), _mirrored(r), longest, math.pi / n)
    omega, values = np.append(omega, math.pi), np.append(values, _threshold(q[n:], r[n:]))
    if (g := mix.gcd()) > 1:
        turns = omega * (g / (2.0 * math.pi))
        apart = np.abs(turns - np.rint(turns)) * (2.0 * math.pi / g) > 0.01 / longest
        omega, values = omega[apart], values[apart]
    return omega, values


def _grid_size(longest: int) -> int:
    """Points on (0, π], rounded up to a size that transforms fast."""
    wanted = max(64, longest * next(points for length, points in _GRID if longest <= length))
    power = 1 << (wanted - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= wanted else power


def _spectra(mix: LengthMix, longest: int, n: int) -> tuple[ComplexArray, ComplexArray]:
    """Q and R at w = -πm/n for m = 0..n, which differs from w by conjugation only."""
    ratios = _prompt_ratios(mix)
    survival = _survival(mix, mix.shares, longest)
    weighted = survival if ratios is None else _survival(mix, mix.shares * ratios, longest)
    steps = np.arange(1, longest + 1)
    return np.fft.rfft(steps * survival, 2 * n), np.fft.rfft(weighted, 2 * n)


def _survival(mix: LengthMix, weights: FloatArray, longest: int) -> FloatArray:
    """Weight of the outputs longer than j, for j = 0..longest-1."""
    mass: FloatArray = np.bincount(mix.outputs, weights=weights, minlength=longest + 1).astype(np.float64)
    return np.cumsum(mass[::-1])[::-1][1:]


def _prompt_ratios(mix: LengthMix) -> FloatArray | None:
    """Prompts relative to their mean; None where all are equal."""
    if (mix.prompts == mix.prompts[0]).all():
        return None
    ratios: FloatArray = mix.prompts / mix.mean_prompt()
    return ratios


def _mirrored(spectrum: ComplexArray) -> ComplexArray:
    """The spectrum with the points that a stencil reaches beyond either end: a real sequence's is conjugate-even."""
    before, after = -_STENCIL[0], _STENCIL[-1]
    return np.concatenate([spectrum[before:0:-1].conj(), spectrum, spectrum[-2 : -2 - after : -1].conj()])


def _cell_roots(q: ComplexArray, r: ComplexArray, longest: int, step: float) -> tuple[FloatArray, FloatArray]:
    """Roots of Im(Q·conj R) strictly inside (0, π) and -Re(Q/R) there, by local interpolation of degree 7."""
    before, after = -_STENCIL[0], _STENCIL[-1]
    phase = q.imag * r.real - q.real * r.imag
    sign = phase[before + 1 : -after - 1] < 0.0
    cells = np.flatnonzero(sign[:-1] != sign[1:]) + 1
    at = (cells + before)[:, None] + _STENCIL
    t = _illinois(phase[at] @ _LAGRANGE.T)
    # Turning the samples back by the middle of the support halves the bandwidth; the turn cancels in Q/R.
    turn = np.exp(0.5j * (longest - 1) * step * _STENCIL)
    weights = np.vander(t, len(_STENCIL), increasing=True) @ (_LAGRANGE * turn)
    values = _threshold(np.einsum("ij,ij->i", q[at], weights), np.einsum("ij,ij->i", r[at], weights))
    return (cells + t) * step, values


def _illinois(coefficients: FloatArray) -> FloatArray:
    """Root on [0, 1] of one polynomial per row: false position with the Illinois weight, never leaving its bracket."""
    columns = np.ascontiguousarray(coefficients.T)
    a, b = np.zeros(len(coefficients)), np.ones(len(coefficients))
    fa, fb = columns[0].copy(), columns.sum(axis=0)
    t = np.full(len(coefficients), 0.5)
    for _ in range(_MAX_ITERATIONS):
        gap = fb - fa
        level = gap == 0.0
        new = np.where(level, 0.5 * (a + b), b - fb * (b - a) / np.where(level, 1.0, gap))
        moved = np.abs(new - t).max(initial=0.0)
        t = new
        if moved < 1e-10:
            break
        ft = columns[-1] * t
        for column in columns[-2:0:-1]:
            ft = (ft + column) * t
        ft += columns[0]
        crossed = (ft < 0.0) != (fb < 0.0)
        a, fa = np.where(crossed, b, a), np.where(crossed, fb, 0.5 * fa)
        b, fb = t, ft
    root: FloatArray = np.clip(t, 0.0, 1.0)
    return root


def _threshold(q: ComplexArray, r: ComplexArray) -> FloatArray:
    """-Re(Q/R); inf where R is zero, as it is when lengths share a divisor."""
    zero = r == 0.0
    result: FloatArray = np.where(zero, math.inf, -(q / np.where(zero, 1.0, r)).real)
    return result


def _polish(mix: LengthMix, omega: FloatArray) -> FloatArray:
    """-Re(Q/R) at the roots of Im(Q/R) next to `omega`, by secant steps on the exact sums."""

    def phase(w: FloatArray) -> FloatArray:
        q, r = _exact(mix, w)
        return q.imag * r.real - q.real * r.imag

    before = np.maximum(omega - 1e-3 / int(mix.outputs[-1]), 0.5 * omega)
    f_before, w = phase(before), omega
    for _ in range(5):
        f = phase(w)
        slope = f - f_before
        step = np.where(slope != 0.0, f * (w - before) / np.where(slope != 0.0, slope, 1.0), 0.0)
        # At π the phase vanishes by symmetry: the root is the point itself.
        step = np.where(omega >= math.pi, 0.0, step)
        before, f_before, w = w, f, w - step
    return _threshold(*_exact(mix, w))


def _exact(mix: LengthMix, omega: FloatArray) -> tuple[ComplexArray, ComplexArray]:
    """Q and R from the closed forms of geometric sums, O(lengths) per angle."""
    ratios = _prompt_ratios(mix)
    u = np.exp(1j * omega)
    powers = np.exp(1j * np.outer(omega, mix.outputs))
    s = (1.0 - powers @ mix.shares) / (1.0 - u)
    q = s + (u * s - powers @ (mix.shares * mix.outputs)) / (1.0 - u)
    if ratios is None:
        return q, s
    weights = mix.shares * ratios
    return q, (weights.sum() - powers @ weights) / (1.0 - u)
