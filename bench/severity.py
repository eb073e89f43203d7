"""Milliseconds to rate a histogram of 2,000 output lengths, beside the plain form of the same algorithm.

python bench/severity.py [--plain-lengths N]
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np

from evenflow_model.lengths import LengthMix
from evenflow_model.severity import severity
from evenflow_model.spectrum import critical_prompt_length

KV_TOKENS = 430_000
PROMPT = 64


def histogram(lengths: int, longest: int, seed: int = 7) -> LengthMix:
    """`lengths` distinct outputs up to `longest`: a noisy lognormal, with tiers that three quarters of requests hit."""
    rng = np.random.default_rng(seed)
    outputs = np.sort(rng.choice(np.arange(1, longest + 1), size=lengths, replace=False))
    wide = np.exp(-0.5 * ((np.log(outputs) - math.log(longest / 8)) / 0.8) ** 2) / outputs
    wide *= rng.gamma(2.0, size=lengths)
    weights = wide / wide.sum()
    for tier in (longest / 8, longest / 4, longest / 2):
        peak = np.exp(-0.5 * ((outputs - tier) / (0.02 * tier)) ** 2)
        weights += peak / peak.sum()
    return LengthMix(zip(weights.tolist(), [PROMPT] * lengths, outputs.tolist(), strict=True))


def plain_severity(mix: LengthMix) -> float:
    """The algorithm as written down: closed forms on 16 grid points per token, then 55 bisections of every cell."""
    longest = int(mix.outputs.max())
    prompt, output = mix.mean_prompt(), mix.mean_output()

    def spectra(omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q, r = [], []
        for part in np.array_split(omega, max(1, len(omega) // 512)):
            u = np.exp(1j * part)
            powers = np.exp(1j * np.outer(part, mix.outputs))
            s = (1 - powers @ mix.shares) / (1 - u)
            r.append(s)
            q.append(s + (u * s - powers @ (mix.shares * mix.outputs)) / (1 - u))
        return np.concatenate(q), np.concatenate(r)

    def phase(omega: np.ndarray) -> np.ndarray:
        q, r = spectra(omega)
        return np.asarray((q * r.conj()).imag)

    grid = np.pi * np.arange(1, 16 * longest) / (16 * longest)
    f = phase(grid)
    at = np.flatnonzero((f[:-1] < 0) != (f[1:] < 0))
    low, high, f_low = grid[at], grid[at + 1], f[at]
    for _ in range(55):
        middle = (low + high) / 2
        same = (phase(middle) < 0) == (f_low < 0)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    omega = np.append((low + high) / 2, math.pi)
    q, r = spectra(omega)
    thresholds = -(q / r).real
    unstable = thresholds > prompt
    periods = 2 * math.pi / omega[unstable]
    values = output / (prompt + 1) * (1 - 1 / periods) * (1 - prompt / thresholds[unstable])
    return float(values.max(initial=0.0))


def best_ms(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain-lengths", type=int, default=400, help="distinct lengths for the plain form")
    count = parser.parse_args().plain_lengths
    print(f"{'histogram':>32} {'severity ms':>12} {'l0_crit ms':>11}")
    for lengths, longest in ((2000, 2000), (2000, 4000), (2000, 8000), (2000, 16000), (2000, 65000)):
        mix = histogram(lengths, longest)
        rated = best_ms(lambda mix=mix: severity(mix, KV_TOKENS), 10)
        critical = best_ms(lambda mix=mix: critical_prompt_length(mix), 10)
        print(f"{f'{lengths} lengths up to {longest}':>32} {rated:12.1f} {critical:11.1f}")
    declared = LengthMix.from_classes([(70, 1024, 220, 90), (30, 2048, 32, 120)])
    print(f"{f'declared, {len(declared)} lengths':>32} {best_ms(lambda: severity(declared, KV_TOKENS), 10):12.1f}")
    small = histogram(count, 4 * count)
    fast, plain = severity(small, KV_TOKENS).value, plain_severity(small)
    print(
        f"\nplain form, {count} lengths up to {4 * count}: {best_ms(lambda: plain_severity(small), 1):.1f} ms, "
        f"this one {best_ms(lambda: severity(small, KV_TOKENS), 10):.1f} ms; values {plain:.9f} and {fast:.9f}"
    )


if __name__ == "__main__":
    main()
