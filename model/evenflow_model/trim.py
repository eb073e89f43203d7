"""Changing max_tokens of fixed tiers so that they don't finish in step, and what that does (docs/theory.md §5).

Trims break a common divisor by a token or two, which by itself changes little at realistic prompt lengths; a random cap
widens the lengths, which does. Both only touch requests that really run to their cap.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenflow_model._checks import check_int
from evenflow_model.lengths import MAX_TOKENS, LengthMix
from evenflow_model.severity import Severity, severity
from evenflow_model.spectrum import critical_prompt_length

MAX_TIERS = 32
"""Most fixed tiers that one pod can have."""

MAX_STATES = 200_000
"""Partial trims examined before the search settles for a good one; about half a second."""

WIDTH_STEP = 1.0 / 4096.0
"""Resolution of a random cap's width."""


@dataclass(frozen=True, slots=True)
class Trims:
    """Fewest tokens to take off in all, and every choice of outputs (in the order given) that reaches it.

    `proved` is False where the search gave up: then `choices` holds one good choice that may not be minimal.
    """

    total: int
    choices: tuple[tuple[int, ...], ...]
    proved: bool


@dataclass(frozen=True, slots=True)
class TrimEffect:
    """Outputs after a trim, the tokens it takes off in all, and severity before and after."""

    outputs: tuple[int, ...]
    total: int
    before: Severity
    after: Severity


@dataclass(frozen=True, slots=True)
class RandomCap:
    """`width` d: drawing max_tokens from [(1-d)·l, l] makes the mix stable. Severity before and after.

    `mean_output` in tokens is what remains on average of requests that all run to their cap.
    """

    width: float
    mean_output: float
    before: Severity
    after: Severity


def minimal_trims(outputs: Sequence[int], *, pairwise: bool = False) -> Trims:
    """Fewest tokens to take off the tiers so that their gcd is 1; with `pairwise`, so that every two are coprime.

    Every tier keeps at least one token. Raises ValueError unless there are 1 to 32 tiers, integers ≥ 1.
    """
    if not 1 <= len(outputs) <= MAX_TIERS:
        raise ValueError(f"outputs must have 1 to {MAX_TIERS} tiers, found {len(outputs)}: pass the fixed tiers only")
    tiers = [check_int(f"outputs[{index}]", output, 1, MAX_TOKENS) for index, output in enumerate(outputs)]
    search = _Search(tiers, pairwise)
    greedy = search.greedy()
    most = sum(tiers) - sum(greedy)
    for total in range(most + 1):
        try:
            choices = tuple(search.with_total(total))
        except _GaveUpError:
            break
        if choices:
            return Trims(total, choices, proved=True)
    return Trims(most, (greedy,), proved=False)


def trim_effects(
    mix: LengthMix, kv_tokens: float, watermark_tokens: float = 0, *, pairwise: bool = False
) -> tuple[TrimEffect, ...]:
    """The minimal trims of a mix of fixed tiers with what each does to severity, lowest severity first.

    Raises ValueError as `minimal_trims` and `severity` do.
    """
    tiers, _ = mix.output_pmf()
    lengths = tiers.tolist()
    before = severity(mix, kv_tokens, watermark_tokens)
    trims = minimal_trims(lengths, pairwise=pairwise)
    effects = []
    for choice in trims.choices:
        less = {length: length - kept for length, kept in zip(lengths, choice, strict=True)}
        after = severity(mix.trimmed(less), kv_tokens, watermark_tokens)
        effects.append(TrimEffect(choice, trims.total, before, after))
    return tuple(sorted(effects, key=lambda effect: effect.after.value))


def random_cap(mix: LengthMix, kv_tokens: float, watermark_tokens: float = 0) -> RandomCap | None:
    """Narrowest random cap that makes the mix stable at its mean prompt, to 1/4096; None where none below 1 does.

    Found by bisection between "as it is" and the narrowest doubling that is stable: stability is monotonic in the width
    but for the rounding of lengths to tokens. A stable mix needs width 0. Raises ValueError as `severity` does.
    """
    before = severity(mix, kv_tokens, watermark_tokens)
    low, high = 0.0, 0.0
    while not _stable(mix.random_capped(high)):
        low, high = high, min(max(2.0 * high, WIDTH_STEP), 1.0 - WIDTH_STEP)
        if low == high:
            return None
    while high - low > WIDTH_STEP:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _stable(mix.random_capped(middle)) else (middle, high)
    capped = mix.random_capped(high)
    return RandomCap(high, capped.mean_output(), before, severity(capped, kv_tokens, watermark_tokens))


def _stable(mix: LengthMix) -> bool:
    return critical_prompt_length(mix) <= mix.mean_prompt()


class _GaveUpError(Exception):
    pass


class _Search:
    """Iterative deepening over the total; a partial choice is dropped as soon as its tiers rule each other out."""

    def __init__(self, tiers: list[int], pairwise: bool) -> None:
        self._tiers = tiers
        self._pairwise = pairwise
        self._states = 0

    def greedy(self) -> tuple[int, ...]:
        """A choice that meets the condition: every tier takes the smallest trim that it needs next to those before."""
        chosen: list[int] = []
        for tier in self._tiers:
            kept = tier
            while self._pairwise and any(math.gcd(kept, other) > 1 for other in chosen):
                kept -= 1
            chosen.append(kept)
        while not self._pairwise and math.gcd(*chosen) > 1:
            chosen[0] -= 1
        return tuple(chosen)

    def with_total(self, total: int) -> Iterator[tuple[int, ...]]:
        """All choices that take off `total` tokens. Raises _GaveUpError when there is too much to look at."""
        return self._extend([], 0, total)

    def _extend(self, chosen: list[int], divisor: int, left: int) -> Iterator[tuple[int, ...]]:
        at = len(chosen)
        if at == len(self._tiers):
            if left == 0 and (self._pairwise or divisor == 1):
                yield tuple(chosen)
            return
        tier, last = self._tiers[at], at == len(self._tiers) - 1
        for trim in (left,) if last else range(left + 1):
            kept = tier - trim
            if kept < 1:
                break
            self._states += 1
            if self._states > MAX_STATES:
                raise _GaveUpError
            if self._pairwise and any(math.gcd(kept, other) > 1 for other in chosen):
                continue
            yield from self._extend([*chosen, kept], math.gcd(divisor, kept), left - trim)
