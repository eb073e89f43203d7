"""Mean latency under each order and cap with open arrivals and oracle lengths, on many seeds, in the simulated engine.

    python bench/open_arrivals.py [--seeds 40] [--requests 1000]

The engine schedules step for step as vLLM 0.32 does (tests/vllm_real/test_vllm_differential.py), in a fiftieth of the
time: `vllm_schedule.py open` runs the same load on vLLM's own scheduler, on few seeds. One seed's ratio scatters by a
tenth, because a fifth of the requests is nearly all of the work; the ± is the standard error of the mean's ratio.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec
from evenflow_model.volume import block_volume, volume
from evenflow_worker.simulated.core import EngineCore

SHORT, LONG, LONG_SHARE, PROMPT = 32, 512, 0.2, 64
CAPACITY, BLOCK = 16_384, 16
SPEC = EngineSpec(CAPACITY, 1024, max_num_seqs=1024, max_num_batched_tokens=8192, block_size=BLOCK)

X_STAR = CAPACITY / (LONG_SHARE * volume(PROMPT, LONG) + (1 - LONG_SHARE) * volume(PROMPT, SHORT))
"""Requests per iteration whose volume just fills the memory: rho is the arrival rate as a multiple of it."""
X_STAR_BLOCKS = CAPACITY / (
    LONG_SHARE * block_volume(PROMPT, LONG, BLOCK) + (1 - LONG_SHARE) * block_volume(PROMPT, SHORT, BLOCK)
)
"""The same in whole blocks, which is what the engine can sustain: 2.7 % less."""

LOADS: dict[str, float | None] = {
    "rho 0.95": 0.95 * X_STAR,
    "rho 1.1": 1.1 * X_STAR,
    "rho 1.1 in blocks": 1.1 * X_STAR_BLOCKS,
    "burst": None,
}
"""Poisson arrivals per iteration; None: all requests at once."""

SVF = WorkerConfig(generation=1, aging_seconds=0.0)
POLICIES = {
    "FCFS": WorkerConfig(policy="FCFS", victim="LeastProgress", aging_seconds=0.0),
    "SVF": SVF,
    "SVF, volume cap 1.0": replace(SVF, admission=Admission("Limited", "Volume", 1.0)),
}


@dataclass(frozen=True, slots=True)
class Result:
    """Latencies in iterations; evictions per request; recomputed tokens per generated one."""

    mean: float
    p99: float
    evictions: float
    recomputed: float


def draw(count: int, rate: float | None, source: random.Random) -> list[tuple[float, int]]:
    """(arrival in iterations, output tokens) of each request."""
    outputs = [LONG if source.random() < LONG_SHARE else SHORT for _ in range(count)]
    arrivals, now = [], 0.0
    for _ in outputs:
        now += source.expovariate(rate) if rate else 0.0
        arrivals.append(now)
    return list(zip(arrivals, outputs, strict=True))


def replay(config: WorkerConfig, requests: Sequence[tuple[float, int]]) -> Result:
    engine = EngineCore(SPEC, config)
    latency: list[float] = []
    step = index = 0
    while len(latency) < len(requests):
        while index < len(requests) and requests[index][0] <= step:
            arrival, output = requests[index]
            engine.add(EngineRequest(str(index), PROMPT, output, output, "", arrival, predicted_output=float(output)))
            index += 1
        step += 1
        if engine.has_work:
            latency.extend(step - requests[int(one.request_id)][0] for one in engine.step().finished)
    latency.sort()
    count, counters = len(latency), engine.counters
    return Result(
        sum(latency) / count,
        latency[int(0.99 * count)],
        counters.evictions.total() / count,
        counters.recomputed_tokens / counters.generation_tokens,
    )


def mean_of(results: Sequence[Result]) -> Result:
    return Result(*(statistics.mean(getattr(one, field) for one in results) for field in Result.__slots__))


def _ratio_error(found: Sequence[Result], base: Sequence[Result], ratio: float) -> float:
    """Standard error of a ratio of means over the same seeds (delta method)."""
    rests = [one.mean - ratio * other.mean for one, other in zip(found, base, strict=True)]
    return statistics.stdev(rests) / len(rests) ** 0.5 / mean_of(base).mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=1_000)
    arguments = parser.parse_args()
    print(
        f"{arguments.seeds} seeds, {arguments.requests} requests each, x* {X_STAR:.3f} requests per iteration "
        f"({X_STAR_BLOCKS:.3f} in whole blocks)"
    )
    for title, rate in LOADS.items():
        print(f"{title:22}{'mean':>8}{'ratio':>7}{'':8}{'p99':>7}{'ratio':>7}{'evict':>7}{'recomputed':>11}")
        loads = [draw(arguments.requests, rate, random.Random(seed)) for seed in range(arguments.seeds)]
        base: list[Result] = []
        for name, policy in POLICIES.items():
            found = [replay(policy, load) for load in loads]
            base = base or found
            mean, stock = mean_of(found), mean_of(base)
            ratio = mean.mean / stock.mean
            print(
                f"{name:22}{mean.mean:8.1f}{ratio:7.3f} ±{_ratio_error(found, base, ratio):.3f} {mean.p99:7.0f}"
                f"{mean.p99 / stock.p99:7.2f}{mean.evictions:7.2f}{mean.recomputed:11.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
