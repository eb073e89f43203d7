"""What a simulated run came to: one row of a comparison."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.records import FinishedRequest


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Durations in seconds; latency figures are NaN if nothing completed.

    `latency_per_token_s` is the mean of latency divided by output tokens; `kv_use_mean` the share of KV memory in use
    while engines iterate, 0 to 1; `makespan_s` runs from the first arrival to the last completion.
    """

    requests: int
    completed: int
    evictions: int
    recomputed_tokens: int
    generated_tokens: int
    mean_latency_s: float
    p50_latency_s: float
    p99_latency_s: float
    mean_ttft_s: float
    latency_per_token_s: float
    kv_use_mean: float
    makespan_s: float

    @property
    def recomputed_per_generated(self) -> float:
        """Tokens prefilled again after evictions, per generated token; NaN if none was."""
        return self.recomputed_tokens / self.generated_tokens if self.generated_tokens else math.nan


def summarise(requests: int, finished: Sequence[FinishedRequest], engines: Sequence[Engine]) -> FleetResult:
    """Figures over all requests; `requests` counts those that were sent, refused ones included."""
    latency = np.array([one.finished_s - one.arrival_s for one in finished])
    first = np.array([one.first_token_s - one.arrival_s for one in finished])
    outputs = np.array([one.output_tokens for one in finished])
    counters = [engine.counters for engine in engines]
    busy = math.fsum(one.busy_s for one in counters)
    some = len(finished) > 0
    return FleetResult(
        requests=requests,
        completed=len(finished),
        evictions=sum(one.evictions.total() for one in counters),
        recomputed_tokens=sum(one.recomputed_tokens for one in counters),
        generated_tokens=sum(one.generation_tokens for one in counters),
        mean_latency_s=float(latency.mean()) if some else math.nan,
        p50_latency_s=float(np.percentile(latency, 50)) if some else math.nan,
        p99_latency_s=float(np.percentile(latency, 99)) if some else math.nan,
        mean_ttft_s=float(first.mean()) if some else math.nan,
        latency_per_token_s=float((latency / outputs).mean()) if some else math.nan,
        kv_use_mean=math.fsum(one.kv_use_s for one in counters) / busy if busy else 0.0,
        makespan_s=max(one.finished_s for one in finished) - min(one.arrival_s for one in finished) if some else 0.0,
    )
