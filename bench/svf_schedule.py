"""Milliseconds to schedule a burst of 2,000 requests under each policy, on chat-like and long-context lengths.

python bench/svf_schedule.py
"""

import math
import time

import numpy as np

from evenflow_model.svf import POLICIES, Request, schedule
from evenflow_model.volume import worst_case_proxies

LOADS = {"chat-like": (60_000, 110, 200, 2_000), "long context": (430_000, 6_000, 110, 60_000)}


def main() -> None:
    rng = np.random.default_rng(0)
    for name, (kv, prompt, output, longest) in LOADS.items():
        prompts = rng.lognormal(math.log(prompt), 1.0, 2_000).clip(1, longest).astype(int).tolist()
        outputs = rng.lognormal(math.log(output), 0.85, 2_000).clip(1, 2_000).astype(int).tolist()
        requests = [Request(s, o) for s, o in zip(prompts, outputs, strict=True)]
        for policy in POLICIES:
            times = []
            for _ in range(5):
                started = time.perf_counter()
                schedule(requests, kv, policy, worst_case_proxies(65_536))
                times.append(time.perf_counter() - started)
            print(f"{name:14}{policy:12}{1000 * min(times):7.1f} ms (target: below 100)")


if __name__ == "__main__":
    main()
