"""Joint law of prompt and output lengths on one pod: what x*, the length gcd and severity are computed from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evenflow_model._checks import check_int, check_real
from evenflow_model._discretise import MAX_LENGTHS, coarsen, lognormal_pmf

MAX_TOKENS = 1 << 20
"""Longest prompt or output accepted, in tokens: beyond every model, and a bound on the work of one call."""

LONGEST_SPREAD = 1 << 17
"""Where the tail of a declared spread ends, in tokens, unless max_output says otherwise."""

NEGLIGIBLE_SHARE = 1e-6
"""Lengths with a smaller share are left out of the gcd: they are too rare to break a pod's rhythm."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, init=False, eq=False, repr=False, slots=True)
class LengthMix:
    """Shares of (prompt, output) lengths among a pod's requests; immutable, hashable by value.

    `LengthMix([(share, prompt, output), …])`: shares are relative weights > 0 (normalised to 1), prompts in tokens ≥ 0
    (fractional where they are means), outputs whole tokens ≥ 1. Rows with equal lengths are merged; rows are sorted by
    output. Raises ValueError naming the row and field.
    """

    shares: FloatArray
    prompts: FloatArray
    outputs: IntArray
    _key: bytes

    def __init__(self, components: Iterable[tuple[float, float, int]]) -> None:
        merged: dict[tuple[int, float], float] = {}
        for row, (share, prompt, output) in enumerate(components):
            weight = check_real(f"components[{row}].share", share, 0.0, exclusive=True)
            tokens = check_real(f"components[{row}].prompt", prompt, 0.0, MAX_TOKENS)
            length = check_int(f"components[{row}].output", output, 1, MAX_TOKENS)
            merged[length, tokens] = merged.get((length, tokens), 0.0) + weight
        if not merged:
            raise ValueError("components must have at least one row, found none: pass (share, prompt, output) rows")
        keys = sorted(merged)
        weights = np.array([merged[key] for key in keys], dtype=np.float64)
        self._set(weights, np.array([p for _, p in keys]), np.array([o for o, _ in keys], dtype=np.int64))

    @classmethod
    def from_classes(
        cls, classes: Sequence[tuple[float, float, float, float]], *, max_output: int | None = None
    ) -> Self:
        """Mix of traffic classes, each (share, mean prompt, mean output, spread in percent), lengths in tokens.

        The spread is the coefficient of variation of the output length. 0 is a fixed tier (its output rounded to whole
        tokens); otherwise outputs follow a lognormal, discretised the same way on every call, whose tail ends at
        131,072 tokens or at `max_output`, as max_tokens makes it. Prompts stay at their mean. At most about 2,000
        distinct lengths result.
        Raises ValueError naming the class and field.
        """
        if not classes:
            raise ValueError("classes must have at least one row, found none: pass the pool's traffic classes")
        limit = None if max_output is None else check_int("max_output", max_output, 1, MAX_TOKENS)
        spread_classes = sum(1 for row in classes if row[3] != 0)
        budget = MAX_LENGTHS // max(1, spread_classes)
        rows: list[tuple[float, float, int]] = []
        for index, (share, prompt, output, spread) in enumerate(classes):
            weight = check_real(f"classes[{index}].share", share, 0.0, exclusive=True)
            mean = check_real(f"classes[{index}].output", output, 1.0, MAX_TOKENS)
            percent = check_real(f"classes[{index}].spread", spread, 0.0, 1000.0)
            if percent == 0.0:
                rows.append((weight, prompt, min(round(mean), limit or MAX_TOKENS)))
                continue
            lengths, masses = lognormal_pmf(mean, percent / 100.0, budget, limit or LONGEST_SPREAD)
            rows += [(weight * m, prompt, n) for n, m in zip(lengths.tolist(), masses.tolist(), strict=True)]
        return cls(rows)

    @classmethod
    def from_histogram(cls, classes: Sequence[tuple[float, float, Mapping[int, float]]]) -> Self:
        """Mix of observed classes, each (share, mean prompt, {output length: weight}); weights need not sum to 1.

        Entries of weight 0 are dropped. With more than 2,000 distinct lengths the rarest are merged with their
        neighbours, the frequent ones (tiers) stay exact. Raises ValueError naming the class and field.
        """
        if not classes:
            raise ValueError("classes must have at least one row, found none: pass the classes observed")
        rows: list[tuple[float, float, int]] = []
        budget = max(1, MAX_LENGTHS // len(classes))
        for index, (share, prompt, histogram) in enumerate(classes):
            weight = check_real(f"classes[{index}].share", share, 0.0, exclusive=True)
            lengths, masses = [], []
            for length, mass in sorted(histogram.items()):
                lengths.append(check_int(f"classes[{index}].histogram length", length, 1, MAX_TOKENS))
                masses.append(check_real(f"classes[{index}].histogram[{length}]", mass, 0.0))
            total = math.fsum(masses)
            if not 0.0 < total < math.inf:
                name = f"classes[{index}].histogram"
                raise ValueError(f"{name} must have a positive total weight, found {total:g}: leave the class out")
            kept, shares = coarsen(np.array(lengths, dtype=np.int64), np.array(masses) / total, budget)
            rows += [(weight * m, prompt, n) for n, m in zip(kept.tolist(), shares.tolist(), strict=True)]
        return cls(rows)

    @classmethod
    def from_lengths(cls, prompts: Sequence[int], outputs: Sequence[int]) -> Self:
        """Mix of observed requests, one prompt and one output in tokens each, as a trace has them.

        Requests of equal output share their mean prompt, which leaves mean volume and severity as they are. With more
        than 2,000 distinct outputs the rarest are merged with their neighbours. Raises ValueError naming the request.
        """
        if len(prompts) != len(outputs) or not len(outputs):
            raise ValueError(
                f"prompts and outputs must be equally many, at least one, found {len(prompts)} and {len(outputs)}: "
                "pass one of each per request"
            )
        held = np.zeros(1 + max(check_int(f"outputs[{i}]", o, 1, MAX_TOKENS) for i, o in enumerate(outputs)))
        count = np.zeros_like(held)
        for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            count[output] += 1.0
            held[output] += check_int(f"prompts[{index}]", prompt, 0, MAX_TOKENS) * float(output)
        present = np.flatnonzero(count)
        kept = np.sort(coarsen(present, count[present], MAX_LENGTHS)[0])
        # Each observed output goes to the kept one nearest to it; prompts are weighed so that E[s·o] stays.
        owner = np.searchsorted(0.5 * (kept[:-1] + kept[1:]), present)
        shares = np.bincount(owner, weights=count[present], minlength=len(kept))
        products = np.bincount(owner, weights=held[present], minlength=len(kept))
        means = np.minimum(products / np.maximum(shares * kept, 1.0), MAX_TOKENS)
        rows = zip(shares.tolist(), means.tolist(), kept.tolist(), strict=True)
        return cls(row for row in rows if row[0] > 0.0)

    def gcd(self) -> int:
        """Greatest common divisor of the output lengths with a non-negligible share (at least 1e-6), in tokens."""
        frequent = self.outputs[self.shares >= NEGLIGIBLE_SHARE]
        return int(np.gcd.reduce(frequent if frequent.size else self.outputs))

    def mean_output(self) -> float:
        """Mean output length E[l] in tokens."""
        return float(self.shares @ self.outputs)

    def mean_prompt(self) -> float:
        """Mean prompt length in tokens."""
        return float(self.shares @ self.prompts)

    def mean_volume(self, block_size: int = 1) -> float:
        """Mean volume E[v(l0,l)] in token-iterations, in whole blocks of `block_size` tokens (eq. B.2; engine's x*_b).

        Raises ValueError unless block_size is an integer ≥ 1.
        """
        b = check_int("block_size", block_size, 1)
        return float(self.shares @ (b * (_blocks(self.prompts + self.outputs, b) - _blocks(self.prompts, b))))

    def output_pmf(self) -> tuple[IntArray, FloatArray]:
        """Distinct output lengths (tokens, ascending) and their probabilities, prompts merged."""
        lengths, where = np.unique(self.outputs, return_inverse=True)
        return lengths, np.bincount(where, weights=self.shares).astype(np.float64)

    def truncated(self, max_output: int) -> "LengthMix":
        """The mix with every output stopped at `max_output` tokens. Raises ValueError unless it is an integer ≥ 1."""
        limit = check_int("max_output", max_output, 1, MAX_TOKENS)
        capped = np.minimum(self.outputs, limit)
        return LengthMix(zip(self.shares.tolist(), self.prompts.tolist(), capped.tolist(), strict=True))

    def trimmed(self, tokens: Mapping[int, int]) -> "LengthMix":
        """The mix with so many tokens taken off each output length named, {output: tokens}; others stay.

        Raises ValueError for a length the mix doesn't have, or one that would fall below 1 token.
        """
        outputs = self.outputs.copy()
        for length, less in tokens.items():
            here = self.outputs == check_int("tokens' output", length, 1)
            if not here.any():
                raise ValueError(f"tokens names output {length}, which the mix doesn't have: pass one of its outputs")
            outputs[here] = length - check_int(f"tokens[{length}]", less, 0, length - 1)
        return LengthMix(zip(self.shares.tolist(), self.prompts.tolist(), outputs.tolist(), strict=True))

    def jittered(self, share: float) -> "LengthMix":
        """The mix with every output l spread evenly over round((1-share)·l) … round((1+share)·l) tokens.

        Raises ValueError unless 0 ≤ share < 1, or where an output would exceed a million tokens.
        """
        reach = _check_below_one("share", share)
        lows = np.maximum(1, np.rint(self.outputs * (1.0 - reach)).astype(np.int64))
        return self._spread(lows, np.rint(self.outputs * (1.0 + reach)).astype(np.int64))

    def random_capped(self, width: float) -> "LengthMix":
        """The mix when every request draws its max_tokens evenly from round((1-width)·l) … l, l its output (D.2).

        Raises ValueError unless 0 ≤ width < 1.
        """
        reach = _check_below_one("width", width)
        return self._spread(np.maximum(1, np.rint(self.outputs * (1.0 - reach)).astype(np.int64)), self.outputs)

    def _spread(self, lows: IntArray, highs: IntArray) -> "LengthMix":
        """Every output evenly over low … high; outputs that come to be equal share their mean prompt."""
        longest = check_int("longest output", int(highs.max()), 1, MAX_TOKENS)
        each = self.shares / (highs - lows + 1)
        mass = np.zeros(longest + 2)
        held = np.zeros(longest + 2)
        for into, weights in ((mass, each), (held, each * self.prompts)):
            np.add.at(into, lows, weights)
            np.add.at(into, highs + 1, -weights)
        reached = np.zeros(longest + 2, dtype=np.int64)
        np.add.at(reached, lows, 1)
        np.add.at(reached, highs + 1, -1)
        # Where nothing ends up the running sums leave rounding errors: the counts say exactly where that is.
        outputs = np.flatnonzero(np.cumsum(reached))
        shares = np.maximum(np.cumsum(mass)[outputs], 0.0)
        means = np.maximum(np.cumsum(held)[outputs], 0.0) / np.maximum(shares, 1e-300)
        prompts = np.clip(means, self.prompts.min(), self.prompts.max())
        rows = zip(shares.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        return LengthMix(row for row in rows if row[0] > 0.0)

    def __repr__(self) -> str:
        rows = zip(self.shares.tolist(), self.prompts.tolist(), self.outputs.tolist(), strict=True)
        shown = ", ".join(f"({share:.4g}, {prompt:g}, {output})" for share, prompt, output in islice(rows, 6))
        return f"LengthMix([{shown}{', …' if len(self) > 6 else ''}])"

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, LengthMix) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __len__(self) -> int:
        return len(self.outputs)

    def _set(self, weights: FloatArray, prompts: FloatArray, outputs: IntArray) -> None:
        total = float(weights.sum())
        if not math.isfinite(total):
            raise ValueError(f"components' shares must have a finite sum, found {total}: scale them down")
        shares = weights / total
        for name, array in (("shares", shares), ("prompts", prompts), ("outputs", outputs)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "_key", shares.tobytes() + prompts.tobytes() + outputs.tobytes())


def _check_below_one(name: str, value: float) -> float:
    found = check_real(name, value, 0.0)
    if found >= 1.0:
        raise ValueError(f"{name} must be below 1, found {found:g}: pass a share, .1 for ten percent")
    return found


def _blocks(tokens: FloatArray, block_size: int) -> FloatArray:
    """Σ_{t=1..tokens} ceil(t/block_size), linear between whole tokens."""
    full = np.floor(tokens / block_size)
    rest = tokens - full * block_size
    result: FloatArray = block_size * full * (full + 1.0) / 2.0 + rest * (full + 1.0)
    return result
