"""What a replay measured. All durations are in engine seconds: wall time multiplied by the time scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenflow_model.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request. Times count from its first send, retries included; they are None where the request failed."""

    request: TraceRequest
    sent_s: float
    ttft_s: float | None
    latency_s: float | None
    attempts: int
    error: str = ""

    @property
    def arrival_s(self) -> float:
        return self.request.arrival_s

    @property
    def completed(self) -> bool:
        return self.latency_s is not None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Aggregates over all requests of one replay; latency figures and tokens_per_s are NaN if none completed.

    `retried` counts requests that needed more than one attempt; `send_delay_s` is how late a request was sent on
    average: what the client itself lagged behind the trace.
    """

    requests: int
    completed: int
    failed: int
    retried: int
    generated_tokens: int
    makespan_s: float
    send_delay_s: float
    mean_latency_s: float
    p50_latency_s: float
    p99_latency_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    tokens_per_s: float
    outcomes: tuple[RequestOutcome, ...]

    def of_class(self, traffic_class: str) -> "ReplayResult":
        """The same figures for one traffic class."""
        return summarise([item for item in self.outcomes if item.request.traffic_class == traffic_class])


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks; NaN for no values."""
    return float(np.percentile(values, percent)) if len(values) else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def summarise(outcomes: Sequence[RequestOutcome]) -> ReplayResult:
    """Makespan is from the first send to the last completion; 0 if none completed."""
    timed = [(item, item.latency_s) for item in outcomes if item.latency_s is not None]
    latencies = [latency for _, latency in timed]
    first_tokens = [item.ttft_s for item in outcomes if item.ttft_s is not None]
    ends = [item.sent_s + latency for item, latency in timed]
    makespan = max(ends) - min(item.sent_s for item in outcomes) if ends else 0.0
    generated = sum(item.request.output_tokens for item, _ in timed)
    return ReplayResult(
        requests=len(outcomes),
        completed=len(timed),
        failed=len(outcomes) - len(timed),
        retried=sum(item.attempts > 1 for item in outcomes),
        generated_tokens=generated,
        makespan_s=makespan,
        send_delay_s=_mean([item.sent_s - item.arrival_s for item in outcomes]),
        mean_latency_s=_mean(latencies),
        p50_latency_s=percentile(latencies, 50),
        p99_latency_s=percentile(latencies, 99),
        mean_ttft_s=_mean(first_tokens),
        p99_ttft_s=percentile(first_tokens, 99),
        tokens_per_s=generated / makespan if makespan > 0 else math.nan,
        outcomes=tuple(outcomes),
    )
