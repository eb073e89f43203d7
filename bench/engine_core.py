"""Steps per second of the simulated engine's core, step by step as its server makes them.

    python bench/engine_core.py

bench/fleet.py compares policies, with leaps over uneventful steps.
"""

import random
import time
from dataclasses import replace

from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec
from evenflow_worker.simulated.core import EngineCore

CONFIGS = {
    "FCFS": WorkerConfig(policy="FCFS", victim="LeastProgress", aging_seconds=0.0),
    "SVF, cap 2.5": WorkerConfig(admission=Admission("Limited", "Volume", 2.5, 0.05)),
}


def main() -> None:
    """256 running requests: decoding only, and with completions that a backlog replaces."""
    spec = EngineSpec(kv_tokens=430_000, max_model_len=16_384)
    for title, config in CONFIGS.items():
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


if __name__ == "__main__":
    main()
