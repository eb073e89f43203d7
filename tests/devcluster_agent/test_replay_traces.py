"""Reading and cutting traces, and the arithmetic of results."""

import gzip
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.replay.results import RequestOutcome, percentile, summarise
from evenflow_devcluster.replay.traces import (
    TraceError,
    TraceRequest,
    merge_traces,
    read_trace,
    scale_rate,
    take_slice,
)

SHIPPED = Path(__file__).parents[2] / "examples" / "traces"


def write(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_columns_are_found_by_name_and_rows_sorted(tmp_path: Path, name: str) -> None:
    text = "hash_ids,output_tokens,arrival_s,prompt_tokens\n1 2,5,2.5,10\n,7,0,20\n\n3,1,2.5,30\n"
    assert read_trace(write(tmp_path / name, text)) == (
        TraceRequest(0.0, 20, 7),
        TraceRequest(2.5, 10, 5),
        TraceRequest(2.5, 30, 1),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,prompt_tokens\n", "t.csv:1: column 'output_tokens' is missing"),
        ("", "t.csv:1: column 'arrival_s' is missing"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,2\n", "t.csv:3: 2 fields, the header has 3"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,1\n", "t.csv:2: arrival_s is 'nan'"),
        ("arrival_s,prompt_tokens,output_tokens\n-1,1,1\n", "t.csv:2: arrival_s is '-1'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,0,1\n", "t.csv:2: prompt_tokens is '0'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1.5\n", "t.csv:2: output_tokens is '1.5'"),
    ],
)
def test_a_bad_row_is_named_by_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path / "t.csv", text))
    assert words in str(caught.value)


def test_what_is_not_gzip_is_said_to_be_unreadable(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(b"arrival_s,prompt_tokens,output_tokens\n")
    with pytest.raises(TraceError, match=r"t\.csv\.gz: not a readable CSV"):
        read_trace(tmp_path / "t.csv.gz")


def test_the_shipped_slice_is_the_one_that_the_demo_promises() -> None:
    requests = take_slice(read_trace(SHIPPED / "mooncake_conversation.csv.gz"), seconds=600, max_total_tokens=65536)
    assert len(requests) == 1685
    assert max(request.output_tokens for request in requests) <= 4096
    azure = [take_slice(read_trace(SHIPPED / f"azure2023_{name}.csv.gz"), seconds=1200) for name in ("conv", "code")]
    merged = scale_rate(merge_traces(*azure), 2.8)
    assert len(merged) == 9613
    assert all(first.arrival_s <= second.arrival_s for first, second in pairwise(merged))
    assert merged[-1].arrival_s < 1200 / 2.8


def test_scaling_needs_a_positive_factor() -> None:
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="factor"):
            scale_rate([], factor)


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
