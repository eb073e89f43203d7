"""The traces that the demo promises, and the arithmetic of results."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.replay.results import RequestOutcome, percentile, summarise
from evenflow_model.traces import TraceRequest, merge_traces, read_trace, scale_rate, take_slice

SHIPPED = Path(__file__).parents[2] / "examples" / "traces"


def test_the_shipped_slice_is_the_one_that_the_demo_promises() -> None:
    trace = read_trace(SHIPPED / "mooncake_conversation.csv.gz")
    requests = take_slice(trace.requests, seconds=600, max_total_tokens=65536)
    assert len(requests) == 1685
    assert max(request.output_tokens for request in requests) <= 4096
    azure = [
        take_slice(read_trace(SHIPPED / f"azure2023_{name}.csv.gz").requests, seconds=1200) for name in ("conv", "code")
    ]
    merged = scale_rate(merge_traces(*azure), 2.8)
    assert len(merged) == 9613
    assert all(first.arrival_s <= second.arrival_s for first, second in pairwise(merged))
    assert merged[-1].arrival_s < 1200 / 2.8


def outcome(arrival: float, latency: float | None, ttft: float | None = None, attempts: int = 1) -> RequestOutcome:
    return RequestOutcome(TraceRequest(arrival, 10, 5, "chat"), arrival + 0.5, ttft, latency, attempts)


def test_a_summary_counts_everything_and_averages_what_completed() -> None:
    result = summarise([outcome(0, 2.0, 1.0), outcome(1, 4.0, 2.0, attempts=3), outcome(2, None, attempts=8)])
    assert (result.requests, result.completed, result.failed, result.retried) == (3, 2, 1, 2)
    assert result.mean_latency_s == 3.0
    assert result.p50_latency_s == 3.0
    assert result.mean_ttft_s == 1.5
    assert result.generated_tokens == 10
    assert result.makespan_s == 5.0  # from 0.5 to 1.5 + 4
    assert result.tokens_per_s == 2.0
    assert result.send_delay_s == 0.5
    assert result.of_class("chat") == result
    assert result.of_class("code").requests == 0


def test_nothing_completed_is_not_zero_latency() -> None:
    result = summarise([outcome(0, None)])
    assert math.isnan(result.mean_latency_s)
    assert math.isnan(result.p99_ttft_s)
    assert math.isnan(result.tokens_per_s)
    assert (result.completed, result.failed) == (0, 1)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_a_percentile_interpolates_between_neighbours(values: list[float], percent: float) -> None:
    ordered = sorted(values)
    rank = percent / 100 * (len(values) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    assert percentile(values, percent) == pytest.approx(low + (rank - math.floor(rank)) * (high - low))
