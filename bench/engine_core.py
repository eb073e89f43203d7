"""The simulated engine's core, offline: steps per second, and policies on the traces that the demo replays.

    python bench/engine_core.py steps
    python bench/engine_core.py mooncake [--seconds 600]
    python bench/engine_core.py azure
    python bench/engine_core.py tiers

Four engines with clocks of their own, each request sent to the engine with the fewest outstanding ones.
"""

import argparse
import csv
import gzip
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenflow_contract.worker_config import Admission, ClassPrior, WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec, FinishedRequest
from evenflow_worker.simulated.core import EngineCore

TRACES = Path(__file__).resolve().parent.parent / "examples" / "traces"
LONG_PROMPT = 8192

STOCK = WorkerConfig(policy="FCFS", victim="LeastProgress", aging_seconds=0.0)
SVF = WorkerConfig(policy="SVF", victim="LargestVolume", aging_seconds=30.0)


@dataclass(frozen=True, slots=True)
class Result:
    done: tuple[FinishedRequest, ...]
    evictions: int
    recomputed: int
    generated: int
    makespan_s: float
    kv_use: float


def limited(config: WorkerConfig, per_iteration: float | None, watermark: float) -> WorkerConfig:
    mode = "Off" if per_iteration is None else "Limited"
    return replace(config, admission=Admission(mode, "Volume", per_iteration, watermark))


def replay(requests: Sequence[EngineRequest], spec: EngineSpec, config: WorkerConfig, engines: int) -> Result:
    """Replay a trace sorted by arrival. An engine may be up to one step ahead of an arrival, as a real one is."""
    cores = [EngineCore(spec, config) for _ in range(engines)]
    done: list[FinishedRequest] = []
    use = total = 0.0

    def run_until(time_s: float) -> None:
        nonlocal use, total
        for core in cores:
            while core.has_work and core.now < time_s:
                outcome = core.step()
                done.extend(outcome.finished)
                use += outcome.kv_usage_peak * outcome.duration_s
                total += outcome.duration_s
            if not core.has_work:
                core.advance_idle(time_s)

    for request in requests:
        run_until(request.arrival_s)
        min(cores, key=lambda core: core.running + core.waiting).add(request)
    makespan = 0.0
    for core in cores:
        while core.has_work:
            outcome = core.step()
            done.extend(outcome.finished)
            use += outcome.kv_usage_peak * outcome.duration_s
            total += outcome.duration_s
        makespan = max(makespan, core.now)
    return Result(
        tuple(done),
        sum(core.counters.evictions.total() for core in cores),
        sum(core.counters.recomputed_tokens for core in cores),
        sum(core.counters.generation_tokens for core in cores),
        makespan,
        use / total,
    )


def read_trace(name: str, seconds: float, *, scale: float = 1.0, traffic_class: str = "") -> list[EngineRequest]:
    """Rows of a trace that arrive within `seconds`, `scale` times faster; classes by prompt length by default."""
    requests = []
    with gzip.open(TRACES / f"{name}.csv.gz", "rt", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            arrival, prompt, output = float(row["arrival_s"]), int(row["prompt_tokens"]), int(row["output_tokens"])
            if arrival >= seconds or prompt + output > 65_536 or prompt < 1 or output < 1:
                continue
            kind = traffic_class or ("chat" if prompt < LONG_PROMPT else "document")
            request_id = f"{name}-{number}"
            requests.append(EngineRequest(request_id, prompt, output, output, kind, arrival / scale))
    return requests


def priors(requests: Sequence[EngineRequest], *, first: int | None = None) -> dict[str, ClassPrior]:
    """What a user would write into the pool: rough means per class."""
    result = {}
    for name in sorted({request.traffic_class for request in requests}):
        own = [request for request in requests if request.traffic_class == name][:first]
        prompt = sum(request.prompt_tokens for request in own) / len(own)
        result[name] = ClassPrior(round(prompt, -2), round(sum(r.output_tokens for r in own) / len(own), -1))
    return result


def show(title: str, result: Result, seconds: float) -> None:
    latency = sorted(one.finished_s - one.arrival_s for one in result.done)
    first = [one.first_token_s - one.arrival_s for one in result.done]
    count = len(latency)
    print(
        f"{title:34}{count:6d}{sum(latency) / count:8.1f}{latency[count // 2]:8.1f}{latency[int(count * 0.99)]:8.1f}"
        f"{sum(first) / count:8.1f}{result.evictions:7d}{result.recomputed / result.generated:7.3f}"
        f"{result.makespan_s:8.0f}{result.kv_use:6.2f}{seconds:7.1f}",
        flush=True,
    )


def compare(
    requests: list[EngineRequest], spec: EngineSpec, engines: int, policies: dict[str, WorkerConfig], known: list[str]
) -> None:
    classes = priors(requests)
    print(f"{len(requests)} requests, {engines} engines of {spec.kv_tokens} KV tokens, priors {classes}")
    header = f"{'policy':34}{'done':>6}{'mean':>8}{'p50':>8}{'p99':>8}{'TTFT':>8}{'evict':>7}{'rec':>7}"
    print(header + f"{'span':>8}{'KV':>6}{'cpu s':>7}")
    for title, policy in policies.items():
        config = replace(policy, classes=tuple(classes), class_priors=classes)
        started = time.process_time()
        result = replay(requests, spec, config, engines)
        show(title, result, time.process_time() - started)
    print("\n".join(known))


def mooncake(seconds: float) -> None:
    requests = read_trace("mooncake_conversation", seconds)
    spec = EngineSpec(kv_tokens=430_000, max_model_len=65_536)
    policies = {
        "stock FCFS": STOCK,
        "FCFS, watermark .05": limited(STOCK, None, 0.05),
        "SVF aged 30, watermark .05": limited(SVF, None, 0.05),
        "SVF aged 30, wm .05, cap 2.5": limited(SVF, 2.5, 0.05),
        "SVF aged 30, wm .01, cap 1.0": limited(SVF, 1.0, 0.01),
    }
    known = [
        "independent simulation, 600 s: stock 118.0 s mean (p99 246, TTFT 64, 20 evictions);",
        "  watermark .05 115.2 (234, 64, 0); SVF aged 30, watermark .05 75.2 (264, 23, 0)",
    ]
    compare(requests, spec, 4, policies, known)


def azure(seconds: float) -> None:
    requests = read_trace("azure2023_conv", seconds, scale=2.8, traffic_class="chat")
    requests += read_trace("azure2023_code", seconds, scale=2.8, traffic_class="code")
    requests.sort(key=lambda request: request.arrival_s)
    spec = EngineSpec(kv_tokens=60_000, max_model_len=16_384)
    policies = {
        "stock FCFS": STOCK,
        "FCFS, watermark .05": limited(STOCK, None, 0.05),
        "SVF aged 15, watermark .05": limited(replace(SVF, aging_seconds=15.0), None, 0.05),
        "SVF aged 30, watermark .05": limited(SVF, None, 0.05),
        "SVF aged 30, wm .05, cap 2.5": limited(SVF, 2.5, 0.05),
    }
    known = [
        "independent simulation: stock 22.4 s (p99 50.6, 714 evictions);",
        "  watermark .05 18.7 (43.1, 0); SVF aged 14.3 (64.4, 9)",
    ]
    compare(requests, spec, 4, policies, known)


def tiers() -> None:
    random_source = random.Random(1)
    requests, now = [], 0.0
    for number in range(2600):
        now += random_source.expovariate(9.0)
        output = random_source.choice((128, 256, 512))
        requests.append(EngineRequest(f"t{number}", 512, output, output, f"tier-{output}", now))
    spec = EngineSpec(kv_tokens=60_000, max_model_len=4096, max_num_seqs=1024, max_num_batched_tokens=8192)
    policies = {
        "stock FCFS": STOCK,
        "FCFS, watermark .05": limited(STOCK, None, 0.05),
        "SVF aged 30, nothing else": SVF,
        "SVF aged 30, wm .01, cap .95": limited(SVF, 0.95, 0.01),
    }
    known = [
        "independent simulation (its own arrivals): stock 1194 evictions; SVF aged, cap .95: 2, about half the mean"
    ]
    compare(requests, spec, 1, policies, known)


def steps() -> None:
    """256 running requests: decoding only, and with completions that a backlog replaces."""
    spec = EngineSpec(kv_tokens=430_000, max_model_len=16_384)
    for title, config in {"FCFS": STOCK, "SVF, cap 2.5": limited(SVF, 2.5, 0.05)}.items():
        for name, mean in (("decode only", 1_400), ("with completions", 300)):
            source = random.Random(2)
            core = EngineCore(spec, replace(config, classes=("chat",)))
            for number in range(256 if name == "decode only" else 10_000):
                output = mean if name == "decode only" else max(int(source.expovariate(1 / mean)), 1)
                core.add(EngineRequest(f"r{number}", 256, output, output, "chat", 0.0))
            for _ in range(100):
                core.step()
            count, began, before = 0, core.now, time.perf_counter()
            while count < 1200:
                for _ in range(20):
                    core.step()
                count += 20
            wall = time.perf_counter() - before
            print(
                f"{title:14}{name:18}{core.running:4d} running: {count / wall:8.0f} steps/s, "
                f"{(core.now - began) / wall:6.0f} times real time, {(core.now - began) / count * 1e3:.1f} ms a step"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "mooncake", "azure", "tiers"))
    parser.add_argument("--seconds", type=float, default=None, help="length of the trace's slice in seconds")
    arguments = parser.parse_args()
    if arguments.what == "mooncake":
        mooncake(arguments.seconds or 600.0)
    elif arguments.what == "azure":
        azure(arguments.seconds or 1200.0)
    elif arguments.what == "tiers":
        tiers()
    else:
        steps()


if __name__ == "__main__":
    main()
