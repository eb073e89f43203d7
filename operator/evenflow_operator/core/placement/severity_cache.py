"""Severity, x* and gcd of length mixes, remembered: severity costs milliseconds and mixes change rarely."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from evenflow_model.congestion import eviction_free_rate
from evenflow_model.lengths import LengthMix
from evenflow_model.severity import severity

REFERENCE_WATERMARK = 0.01
"""Severity is judged at a watermark of 1 %, where its thresholds were tested (docs/theory.md §4), whatever is in force:
so choosing a watermark can't change the figure that it was chosen by."""


@dataclass(frozen=True, slots=True)
class ClassLaw:
    """Lengths of one class (tokens): declared (mean and spread in percent), or observed (`histogram` of shares).

    `digest` stands for the histogram in comparisons, because hashing thousands of lengths for every slot is slow.
    """

    prompt_tokens: float
    output_tokens: float
    spread_percent: float
    digest: str = ""
    histogram: Mapping[int, float] = field(default_factory=dict, compare=False, repr=False)


MixKey = tuple[tuple[float, ClassLaw], ...]
"""Classes of a pod with their shares of its requests; shares need not sum to 1."""


@dataclass(frozen=True, slots=True)
class MixFigures:
    severity: float
    period: float | None
    gcd: int
    rate: float
    """x*, in requests per iteration, volumes counted in whole blocks."""
    mean_volume: float
    """Token-iterations of a request, in whole blocks."""
    mean_output: float
    mean_prompt: float
    longest_output: int
    """99th percentile of the output length: after so many iterations a cut has shown what it does."""


class SeverityCache:
    """Least recently used figures of at most `capacity` mixes; shared by every pool of an operator."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._figures: OrderedDict[tuple[MixKey, int, int, int], MixFigures] = OrderedDict()
        self.misses = 0

    def figures(self, mix: MixKey, kv_tokens: int, block_size: int, max_output: int) -> MixFigures:
        """Figures of a mix on an engine with `kv_tokens` of usable KV memory; outputs end at `max_output` tokens."""
        key = (mix, kv_tokens, block_size, max_output)
        found = self._figures.get(key)
        if found is not None:
            self._figures.move_to_end(key)
            return found
        self.misses += 1
        computed = _compute(mix, kv_tokens, block_size, max_output)
        # Thousands of mixes with their histograms would be gigabytes: a mix is found again by their digests.
        slim = tuple((share, replace(law, histogram={})) for share, law in mix)
        self._figures[slim, kv_tokens, block_size, max_output] = computed
        if len(self._figures) > self._capacity:
            self._figures.popitem(last=False)
        return computed


def _compute(classes: MixKey, kv_tokens: int, block_size: int, max_output: int) -> MixFigures:
    mix = length_mix(classes, max_output)
    judged = severity(mix, kv_tokens, REFERENCE_WATERMARK * kv_tokens)
    lengths, masses = mix.output_pmf()
    longest = int(lengths[min(int(np.searchsorted(np.cumsum(masses), 0.99)), len(lengths) - 1)])
    return MixFigures(
        severity=judged.value if math.isfinite(judged.value) else 0.0,
        period=judged.period,
        gcd=mix.gcd(),
        rate=eviction_free_rate(mix, kv_tokens, block_size),
        mean_volume=mix.mean_volume(block_size),
        mean_output=mix.mean_output(),
        mean_prompt=mix.mean_prompt(),
        longest_output=longest,
    )


def length_mix(classes: MixKey, max_output: int) -> LengthMix:
    """The joint law of lengths that a mix's figures are computed from; outputs end at `max_output` tokens."""
    declared = [(share, law) for share, law in classes if not law.histogram]
    observed = [(share, law) for share, law in classes if law.histogram]
    parts: list[tuple[float, LengthMix]] = []
    if declared:
        rows = [(share, law.prompt_tokens, law.output_tokens, law.spread_percent) for share, law in declared]
        parts.append((math.fsum(share for share, _ in declared), LengthMix.from_classes(rows, max_output=max_output)))
    if observed:
        counted = [(share, law.prompt_tokens, law.histogram) for share, law in observed]
        parts.append((math.fsum(share for share, _ in observed), LengthMix.from_histogram(counted)))
    if len(parts) == 1:
        return parts[0][1]
    return LengthMix(
        row
        for weight, part in parts
        for row in zip((part.shares * weight).tolist(), part.prompts.tolist(), part.outputs.tolist(), strict=True)
    )
