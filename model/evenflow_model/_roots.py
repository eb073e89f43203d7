"""Zeros of Fhat(u) = Σ W_j·u^j next to the unit circle: which waves of a full server grow (docs/theory.md §3)."""

import math

import numpy as np
from numpy.typing import NDArray

from evenflow_model.lengths import FloatArray

ComplexArray = NDArray[np.complex128]

EIGENVALUES_UP_TO = 256
"""Longest output whose roots come from the companion matrix: a quarter of a second there, half a minute at 1,000."""

_ON_CIRCLE = 1e-9
"""Roots closer to the unit circle than this, relatively, are on neither side as far as rounding can tell."""

_MOST_POINTS = 1 << 22
"""Samples of the unit circle after which the winding number counts as undecided; about half a second."""

_REACH = 0.5
"""Newton's roots count where ||u|-1| is below this; further out nothing lasts longer than two iterations."""

_STEP = 0.02
"""Longest Newton step: an unclamped one leaves the circle where |Fhat| is flat."""


def smallest_modulus(weights: FloatArray) -> float | None:
    """Smallest |u| of a zero of Σ W_j·u^j; None where there is none within 0.5 of the unit circle."""
    if len(weights) <= 1:
        return None
    if len(weights) <= EIGENVALUES_UP_TO:
        largest = float(np.abs(np.roots(weights)).max())
        return 1.0 / largest if largest > 0.0 else None
    return _newton(weights)


def zeros_inside(weights: FloatArray) -> int | None:
    """Number of zeros of Σ W_j·u^j inside the unit circle; None where rounding can't tell."""
    if len(weights) <= 1:
        return 0
    if len(weights) <= EIGENVALUES_UP_TO:
        moduli = np.abs(np.roots(weights))
        if (np.abs(moduli - 1.0) < _ON_CIRCLE).any():
            return None
        return int((moduli > 1.0).sum())
    return winding_number(weights)


def winding_number(weights: FloatArray) -> int | None:
    """Turns of Σ W_j·u^j around 0 as u goes around the unit circle; None where even a fine grid doesn't follow it."""
    points = 1 << (16 * len(weights) - 1).bit_length()
    while points <= _MOST_POINTS:
        values = np.fft.rfft(weights, points)
        if np.abs(values).min() <= 1e-13 * weights.sum():
            return None
        steps = np.angle(values[1:] * values[:-1].conj())
        if np.abs(steps).max() < math.pi / 2.0:
            # The transform runs clockwise, over half of a circle whose other half mirrors it.
            return round(-float(steps.sum()) / math.pi)
        points *= 2
    return None


def _newton(weights: FloatArray) -> float | None:
    """Newton from the slowest angles, and from the dips of |Fhat| and of the first Newton step that promise most."""
    length = len(weights)
    points = 1 << (16 * length - 1).bit_length()
    value = np.fft.rfft(weights, points)
    # Fhat' turned by u, which leaves its size.
    slope = np.fft.rfft(np.arange(length) * weights, points)
    step = value / np.where(slope == 0.0, math.inf, slope)
    promise = np.abs(1.0 - step)
    budget = max(32, min(256, 4_000_000 // length))
    # At the slow end Fhat falls from its peak without a dip; roots are 2π/length apart or so.
    starts = [np.arange(1, 32) * points // (2 * length)]
    for size in (np.abs(value), np.abs(step)):
        dips = np.append(np.flatnonzero((size[1:-1] <= size[:-2]) & (size[1:-1] <= size[2:])) + 1, points // 2)
        starts.append(dips[np.argsort(promise[dips], kind="stable")[:budget]])
    angles = np.unique(np.concatenate(starts))
    roots = np.abs(_converge(weights, np.exp(-2j * math.pi * angles / points)))
    near = roots[np.abs(roots - 1.0) < _REACH]
    return float(near.min()) if near.size else None


def _converge(weights: FloatArray, start: ComplexArray) -> ComplexArray:
    """The zeros that clamped Newton iterations from `start` reach; those that don't converge are left out."""
    width = math.isqrt(len(weights)) + 1
    stage = np.arange(width)
    padded = np.zeros(width * width)
    padded[: len(weights)] = weights
    # Σ W_j·u^j as a sum of `width` short polynomials times powers of u^width: one matrix product for all u.
    values = padded.reshape(width, width).T
    slopes = (np.arange(width * width) * padded).reshape(width, width).T
    # Roots are 2π/length apart or so: a longer step would land next to another one.
    longest_step = min(_STEP, 1.0 / len(weights))
    found: list[ComplexArray] = []
    u = start
    for _ in range(25):
        logarithm = np.log(u)
        low, high = np.exp(np.outer(logarithm, stage)), np.exp(np.outer(logarithm, width * stage))
        derivative = ((low @ slopes) * high).sum(axis=1) / u
        step = ((low @ values) * high).sum(axis=1) / np.where(derivative == 0.0, math.inf, derivative)
        # Convergence is quadratic: the step after one this short is below rounding.
        settled = np.abs(step) < 1e-9
        found.append((u - step)[settled])
        step *= np.minimum(1.0, longest_step / np.maximum(np.abs(step), 1e-300))
        u = (u - step)[~settled]
        if not u.size:
            break
    return np.concatenate(found)
