"""What the demo computes and shows, from made-up observations: no processes."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from evenflow_devcluster.demo import examples_folder
from evenflow_devcluster.demo.observer import EngineTotals, Sample, sums
from evenflow_devcluster.demo.picture import PhaseSeries, draw, rolling_mean
from evenflow_devcluster.demo.prometheus import targets_document
from evenflow_devcluster.demo.report import DemoReport, PhaseReport, lag_percent, phase_report
from evenflow_devcluster.demo.scenarios import AFTER, BEFORE, MIDDLE, SCENARIOS
from evenflow_devcluster.demo.view import Progress, SlotRow, View, print_result, screen
from evenflow_devcluster.replay.results import RequestOutcome, summarise
from evenflow_model.traces import TraceRequest
from evenflow_operator.api.rules import cel_twin

OUTCOMES = [
    RequestOutcome(TraceRequest(float(n), 100, 10, "chat"), float(n), 1.0, 5.0 + n, attempts=1) for n in range(100)
]


def phase(name: str = "before", **changes: object) -> PhaseReport:
    made = phase_report(
        name, "FCFS", summarise(OUTCOMES), {}, {"a": EngineTotals(evictions=7)}, [Sample(0.0, {"a": 0.5})]
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def report(*phases: PhaseReport, lag: float = 0.0, planned: int = 2, delay: float = 0.0) -> DemoReport:
    decision = {"time": "2026-11-30T00:00:01Z", "type": "Cap", "reason": "CapStarted", "message": "cap off -> 2.5"}
    late = tuple(delay for _ in phases)
    return DemoReport({"name": "t"}, 1000, phases, planned, (decision,), 0, lag, late, "Scrape", 0.2)


def test_totals_are_differences_and_a_replaced_engine_counts_from_its_start() -> None:
    before = {"old": EngineTotals(evictions=10, recomputed_tokens=100)}
    after = {"old": EngineTotals(evictions=13, recomputed_tokens=150), "new": EngineTotals(evictions=2)}
    made = phase_report("x", "p", summarise(OUTCOMES), before, after, [])
    assert (made.evictions, made.recomputed_tokens) == (5, 50)
    restarted = phase_report("x", "p", summarise(OUTCOMES), before, {"old": EngineTotals(evictions=4)}, [])
    assert restarted.evictions == 4


def test_lag_is_the_worst_engines_share() -> None:
    before = {"a": EngineTotals(run_seconds=100, lag_seconds=1), "b": EngineTotals()}
    after = {"a": EngineTotals(run_seconds=200, lag_seconds=7), "b": EngineTotals(run_seconds=50)}
    assert lag_percent(before, after) == pytest.approx(6.0)
    assert lag_percent(before, {"b": EngineTotals()}) == 0.0


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (report(phase("before"), phase("after"), lag=5.1), "behind their clock"),
        (report(phase("before")), "didn't finish"),
        (report(phase("before"), phase("after"), delay=2.0), "late on average"),
        (report(phase("before"), phase("after", completed=99, failed=1)), "1 of 100 requests"),
        (report(phase("before"), phase("after", completed=99, failed=0)), "1 of 100 requests"),
    ],
)
def test_what_makes_a_run_untrustworthy(made: DemoReport, problem: str) -> None:
    assert not made.ok
    assert problem in made.problems[0]
    assert made.document()["ok"] is False


def test_the_document_has_the_promised_fields() -> None:
    document = report(phase("before"), phase("after")).document()
    assert document["ok"] is True
    assert set(document) >= {"trace", "kv_tokens", "phases", "decisions", "pods_restarted", "engine_lag_percent", "ok"}
    assert set(document["phases"][0]) == {
        "name", "policy", "requests", "completed", "failed", "evictions", "recomputed_tokens", "generated_tokens",
        "mean_latency_s", "p50_latency_s", "p99_latency_s", "mean_ttft_s", "p99_ttft_s", "kv_use_mean", "tokens_per_s",
    }  # fmt: skip


def test_everything_shown_fits_100_columns() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100)
    phases = [phase(name, recomputed_tokens=1_234_567, evictions=12_345) for name in ("before", "watermark", "after")]
    slots = [SlotRow("llama-8b-0-abcdef", "Ready", "chat,document", 123_456, "2.50 M", 0.5, 3.0, 4.0, 5.0)]
    made = report(*phases, planned=3)
    console.print(
        screen(View("t", Progress("after", "SVF", 3, 3, completed=5, total=10), slots, made.decisions, phases))
    )
    print_result(console, made, picture="demo.png")
    lines = output.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 100
    assert any("vs watermark" in line for line in lines)
    assert any("0.123" in line for line in lines)


def test_pages_are_summed_over_labels_and_nan_is_left_out() -> None:
    page = '# HELP x y\nx_total{a="1"} 2\nx_total{a="2"} 3.5\nn{a="1"} NaN\nplain 7\nbroken{a="1"}\n'
    assert sums(page) == {"x_total": 5.5, "plain": 7.0}


def test_rolling_mean_is_the_mean_of_neighbours_in_time() -> None:
    points = [(float(n), float(n)) for n in (3, 1, 2, 0, 4)]
    assert rolling_mean(points, 3) == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
    assert rolling_mean(points[:2], 3) == []


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    series = [PhaseSeries(name, "x", [(0, 0.1)], [(0, 0), (5, 2)], [(1, 2.0)]) for name in ("before", "odd")]
    draw(series, "title", tmp_path / "folder" / "p.png")
    assert (tmp_path / "folder" / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", sorted(SCENARIOS))
@pytest.mark.parametrize("quick", [False, True])
def test_scenarios_are_whole_and_their_pools_valid(name: str, quick: bool) -> None:
    scenario = SCENARIOS[name](examples_folder(), quick=quick)
    declared = {one["name"] for one in scenario.manifest["spec"]["trafficClasses"]}
    assert {request.traffic_class for request in scenario.requests} == declared
    limit = scenario.manifest["spec"]["model"]["maxModelLen"]
    assert all(request.prompt_tokens + request.output_tokens <= limit for request in scenario.requests)
    arrivals = [request.arrival_s for request in scenario.requests]
    assert arrivals == sorted(arrivals)
    assert scenario.phases == ((BEFORE, AFTER) if quick else (BEFORE, MIDDLE, AFTER))
    for one in scenario.phases:
        assert cel_twin(scenario.pool(one)) == []
    assert scenario.pool(AFTER)["spec"]["scheduling"]["policy"] == "SVF"
    assert scenario.pool(BEFORE)["spec"]["admission"]["mode"] == "Off"


def test_the_slice_is_the_one_that_was_promised() -> None:
    assert len(SCENARIOS["mooncake"](examples_folder(), quick=False).requests) == 1685
    assert len(SCENARIOS["mooncake"](examples_folder(), quick=True).requests) == 888
    assert len(SCENARIOS["azure"](examples_folder(), quick=False).requests) == 9613


def test_prometheus_is_told_of_both_ports_of_pods_with_an_address() -> None:
    pods = [
        {"metadata": {"name": "a", "namespace": "n"}, "status": {"podIP": "127.77.0.9"}},
        {"metadata": {"name": "b", "namespace": "n"}, "status": {}},
    ]
    document = targets_document(pods)
    assert '"127.77.0.9:8000", "127.77.0.9:8010"' in document
    assert '"pod": "a"' in document
    assert '"pod": "b"' not in document
