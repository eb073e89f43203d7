"""Integer output lengths for a lognormal or an over-long histogram, without inventing a period that isn't there."""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MAX_LENGTHS = 2000
"""Distinct output lengths of one mix: fine enough for every statistic, cheap enough for severity."""

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def lognormal_pmf(
    mean: float, variation: float, budget: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Lengths ≥ 1 and masses of a lognormal with the given mean (tokens) and coefficient of variation.

    Every whole length gets its own mass while they fit the budget; otherwise equal steps in the logarithm do, each
    represented by a length placed irregularly inside its step: an even grid would show up as a common divisor.
    Masses beyond `limit` are put on it.
    """
    sigma = math.sqrt(math.log1p(variation * variation))
    location = math.log(mean) - sigma * sigma / 2.0
    # The second moment, which volume needs, lives two sigma further out than the mass does.
    reach = max(5.0, 3.5 + 2.0 * sigma)
    high = min(limit, math.ceil(math.exp(min(location + reach * sigma, 700.0))))
    low = min(high, max(1, math.floor(math.exp(location - 5.0 * sigma))))
    if high - low < budget:
        lengths = np.arange(low, high + 1)
        edges = (lengths[:-1] + 0.5).tolist()
    else:
        whole = max(1, budget // 4)
        head = np.arange(low, min(low + whole, high))
        steps = np.exp(np.linspace(math.log(head[-1] + 0.5), math.log(high + 0.5), budget - whole + 1))
        offsets = np.modf(np.arange(1, len(steps)) * _GOLDEN)[0]
        tail = np.rint(steps[:-1] + offsets * np.diff(steps)).astype(np.int64)
        lengths = np.concatenate([head, np.clip(tail, head[-1] + 1, high)])
        edges = [*(head[:-1] + 0.5).tolist(), *steps[:-1].tolist()]
    cdf = [0.0, *(_normal_cdf((math.log(edge) - location) / sigma) for edge in edges), 1.0]
    masses = np.array([b - a for a, b in pairwise(cdf)])
    positive = masses > 0.0
    return lengths[positive], masses[positive]


def coarsen(
    lengths: NDArray[np.int64], masses: NDArray[np.float64], budget: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """At most `budget` lengths: the heaviest half stay exact, the rest merge in runs of equal mass at their mean."""
    present = masses > 0.0
    lengths, masses = lengths[present], masses[present]
    if len(lengths) <= budget:
        return lengths, masses
    heavy = np.zeros(len(lengths), dtype=bool)
    heavy[np.argsort(-masses, kind="stable")[: budget // 2]] = True
    light_lengths, light = lengths[~heavy], masses[~heavy]
    runs = max(1, budget - budget // 2)
    run = np.minimum((np.cumsum(light) / light.sum() * runs).astype(np.int64), runs - 1)
    mass = np.bincount(run, weights=light, minlength=runs)
    centre = np.bincount(run, weights=light * light_lengths, minlength=runs)
    used = mass > 0.0
    merged = np.rint(centre[used] / mass[used]).astype(np.int64)
    return np.concatenate([lengths[heavy], merged]), np.concatenate([masses[heavy], mass[used]])


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
