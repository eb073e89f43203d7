"""Lengths per class: observed from completed requests where there are enough of them, else as declared."""

import hashlib
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from evenflow_contract.names import DEFAULT_CLASS
from evenflow_contract.weights import LengthWeights
from evenflow_contract.worker_state import ClassLengths
from evenflow_model.lengths import MAX_TOKENS
from evenflow_operator.api.spec import LLMServingPoolSpec, TrafficClass
from evenflow_operator.core.memory import ObservedClass, PoolMemory
from evenflow_operator.core.placement.severity_cache import ClassLaw
from evenflow_operator.core.snapshot import Snapshot

ENOUGH_REQUESTS = 500
"""Completed requests of a class from which its observed lengths are believed."""
RENEW_SECONDS = 60.0
SPIKE_SHARE = 0.02
"""A length with so large a share is a tier and stays exact."""
BIN_RATIO = 1.05
"""Other lengths are counted in bins of this relative width, and each bin's share is spread evenly over its lengths:
bins must not become tiers of their own."""
POINTS_PER_BIN = 32
SHARE_STEP = 1 / 200

FloatArray = NDArray[np.float64]


def observe(snapshot: Snapshot) -> tuple[Mapping[str, ObservedClass], float]:
    """Observed lengths of every class over the pool's engines, and when they were taken together."""
    memory = snapshot.memory
    if snapshot.now - memory.observed_at < RENEW_SECONDS:
        return memory.observed, memory.observed_at
    parts: dict[str, list[ClassLengths]] = {}
    for reading in snapshot.readings.values():
        if reading.lengths is not None:
            for name, lengths in reading.lengths.classes.items():
                parts.setdefault(name, []).append(lengths)
    if not parts:
        return memory.observed, memory.observed_at
    found = {name: pooled for name, lengths in sorted(parts.items()) if (pooled := _pooled(lengths)) is not None}
    return found, snapshot.now


def law_of(entry: TrafficClass, observed: Mapping[str, ObservedClass]) -> ClassLaw:
    seen = observed.get(entry.name)
    if seen is not None and seen.completed >= ENOUGH_REQUESTS:
        return observed_law(seen)
    return ClassLaw(float(entry.prompt_tokens), float(entry.output_tokens), float(entry.output_spread_percent))


def observed_law(seen: ObservedClass) -> ClassLaw:
    return ClassLaw(_two_digits(seen.prompt_tokens), _two_digits(seen.output_tokens), 0.0, seen.digest, seen.histogram)


def class_shares(spec: LLMServingPoolSpec, observed: Mapping[str, ObservedClass]) -> dict[str, float]:
    """Share of the pool's requests per class, to two digits: observed once enough requests completed, else declared.

    The class `default` is in it only when requests of it were observed.
    """
    names = [entry.name for entry in spec.traffic_classes]
    if sum(seen.completed for seen in observed.values()) >= ENOUGH_REQUESTS:
        weights = {name: observed[name].weight if name in observed else 0.0 for name in (*names, DEFAULT_CLASS)}
        total = math.fsum(weights.values())
        if total > 0:
            floor = 0.001 * total
            if weights[DEFAULT_CLASS] < floor or observed[DEFAULT_CLASS].completed < ENOUGH_REQUESTS:
                del weights[DEFAULT_CLASS]
            return _normalised({name: max(weight, floor) for name, weight in weights.items()})
    rates = [entry.requests_per_minute for entry in spec.traffic_classes]
    if any(rates) and all(rate is not None for rate in rates):
        return _normalised({name: max(float(rate or 0), 0.001) for name, rate in zip(names, rates, strict=True)})
    return _normalised({entry.name: float(entry.weight) for entry in spec.traffic_classes})


def known_enough(memory: PoolMemory, name: str) -> bool:
    seen = memory.observed.get(name)
    return seen is not None and seen.completed >= ENOUGH_REQUESTS


def _normalised(weights: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(weights.values())
    return {name: _two_digits(weight / total) for name, weight in weights.items()}


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _pooled(parts: list[ClassLengths]) -> ObservedClass | None:
    completed = sum(part.completed for part in parts)
    entries = [part for part in parts if part.outputs and part.completed > 0 and part.prompt_mean <= MAX_TOKENS]
    if not entries:
        return None
    sizes = [len(part.outputs) for part in entries]
    keys = np.fromiter((length for part in entries for length in part.outputs), np.int64, sum(sizes))
    masses = np.fromiter((mass for part in entries for mass in part.outputs.values()), np.float64, sum(sizes))
    keep = (keys > 0) & (keys <= MAX_TOKENS) & (masses > 0)
    lengths, where = np.unique(keys[keep], return_inverse=True)
    weights = np.bincount(where, weights=masses[keep]).astype(np.float64)
    total = float(weights.sum())
    if total <= 0:
        return None
    prompt = sum(part.prompt_mean * part.completed for part in entries) / sum(part.completed for part in entries)
    histogram = _quantised(lengths, weights / total)
    if not histogram:
        return None
    digest = hashlib.sha256(repr(tuple(histogram.items())).encode()).hexdigest()[:16]
    return ObservedClass(completed, total, prompt, float(lengths @ weights) / total, digest, histogram)


def _quantised(lengths: NDArray[np.int64], shares: FloatArray) -> LengthWeights:
    points: dict[int, float] = {}
    spikes = shares >= SPIKE_SHARE
    for length, share in zip(lengths[spikes].tolist(), shares[spikes].tolist(), strict=True):
        points[length] = round(share / SHARE_STEP) * SHARE_STEP
    numbers = np.floor(np.log(lengths[~spikes]) / math.log(BIN_RATIO)).astype(np.int64)
    for number in np.unique(numbers).tolist():
        share = round(float(shares[~spikes][numbers == number].sum()) / SHARE_STEP) * SHARE_STEP
        if share <= 0:
            continue
        first = math.ceil(BIN_RATIO**number)
        last = max(first, math.ceil(BIN_RATIO ** (number + 1)) - 1)
        inside = sorted({int(x) for x in np.linspace(first, last, min(POINTS_PER_BIN, last - first + 1))})
        for length in inside:
            points[length] = points.get(length, 0.0) + share / len(inside)
    return LengthWeights(points)
