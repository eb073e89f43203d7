"""What a replay measured. All durations are in engine seconds: wall time multiplied by the time scale."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenflow_devcluster.replay.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request. Times count from its first send, retries included; they are None where the request failed."""

    request: TraceRequest
    sent_s: float
    ttft_s: float | None
    latency_s: float | None
    attempts: int
    error: str = ""

    @property
    def completed(self) -> bool:
        return self.latency_s is not None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Aggregates over all requests of one replay.

    `retried` counts requests that needed more than one attempt; `send_delay_s` is how late, at worst, a request was
    sent: what the client itself lagged behind the trace. Figures that need a completed request are None without one.
    """

    requests: int
    completed: int
    failed: int
    retried: int
    generated_tokens: int
    makespan_s: float
    send_delay_s: float
    mean_latency_s: float | None
    p50_latency_s: float | None
    p99_latency_s: float | None
    mean_ttft_s: float | None
    p99_ttft_s: float | None
    results: tuple[RequestResult, ...]

    @property
    def tokens_per_s(self) -> float | None:
        return self.generated_tokens / self.makespan_s if self.makespan_s > 0 else None

    def of_class(self, traffic_class: str) -> "ReplayResult":
        """The same figures for one traffic class."""
        return summarise([item for item in self.results if item.request.traffic_class == traffic_class])


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between the closest ranks; None for no values."""
    return float(np.percentile(values, percent)) if len(values) else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def summarise(results: Sequence[RequestResult]) -> ReplayResult:
    """Makespan is from the first send to the last completion."""
    done = [item for item in results if item.latency_s is not None]
    latencies = [item.latency_s for item in done if item.latency_s is not None]
    first_tokens = [item.ttft_s for item in done if item.ttft_s is not None]
    ends = [item.sent_s + item.latency_s for item in done if item.latency_s is not None]
    return ReplayResult(
        requests=len(results),
        completed=len(done),
        failed=len(results) - len(done),
        retried=sum(item.attempts > 1 for item in results),
        generated_tokens=sum(item.request.output_tokens for item in done),
        makespan_s=max(ends) - min(item.sent_s for item in results) if ends else 0.0,
        send_delay_s=max((item.sent_s - item.request.arrival_s for item in results), default=0.0),
        mean_latency_s=_mean(latencies),
        p50_latency_s=percentile(latencies, 50),
        p99_latency_s=percentile(latencies, 99),
        mean_ttft_s=_mean(first_tokens),
        p99_ttft_s=percentile(first_tokens, 99),
        results=tuple(results),
    )
