"""Scraping: what a page says, and what happens when a pod hangs, fails, floods or talks nonsense."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from aiohttp import web
from engine_kit import ManualClock
from hypothesis import given
from hypothesis import strategies as st

from evenflow_operator.adapters.exposition import read_page
from evenflow_operator.adapters.scrape import ScrapeMetrics
from evenflow_operator.adapters.series import SeriesSums
from evenflow_operator.core.snapshot import EngineCounters, Reading
from evenflow_operator.ports import Target

ENGINE = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 212.0
vllm:num_requests_waiting{engine="0",model_name="m"} 40.0
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 9.5e+06
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0
process_cpu_seconds_total 12.5
"""
ADMIN = """evenflow_admitted_requests_total{kind="new",traffic_class="chat"} 100.0
evenflow_admitted_requests_total{kind="new",traffic_class="code"} 50.0
evenflow_admitted_requests_total{kind="resumed",traffic_class="chat"} 1000.0
evenflow_evictions_total{traffic_class="chat"} 6.0
evenflow_completed_requests_total{traffic_class="chat"} 90.0
evenflow_recomputed_tokens_total 4096.0
evenflow_iterations_total 91231.0
evenflow_kv_capacity_tokens 430000.0
evenflow_applied_generation 17.0
evenflow_kv_usage_peak_ratio{window="10s"} 0.5
evenflow_kv_usage_peak_ratio{window="30s"} 0.93
evenflow_output_tokens_bucket{le="1.0",traffic_class="chat"} 3.0
"""


def counters(text: str, window: str = "30s") -> EngineCounters:
    sums = SeriesSums()
    read_page(text, sums, window)
    return sums.counters()


def test_the_wanted_series_are_read_and_added_up_over_classes() -> None:
    assert counters(ENGINE + ADMIN) == EngineCounters(
        evictions=7.0,
        admitted=150.0,
        completed=90.0,
        iterations=91231.0,
        recomputed_tokens=4096.0,
        generated_tokens=9.5e6,
        running=212.0,
        waiting=40.0,
        kv_peak_ratio=0.93,
        kv_capacity_tokens=430000.0,
        applied_generation=17.0,
    )


def test_the_peak_is_that_of_the_asked_window() -> None:
    assert counters(ADMIN, "10s").kv_peak_ratio == 0.5
    assert counters(ADMIN, "60s").kv_peak_ratio is None


def test_what_is_absent_is_none_never_zero() -> None:
    assert counters("") == EngineCounters()
    assert counters(ENGINE).admitted is None
    assert counters(ENGINE).iterations == 5.0, "vLLM's own count stands in where the worker has none"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "many", ""])
def test_a_value_that_is_no_number_is_none_and_named(value: str) -> None:
    sums = SeriesSums()
    read_page(f"evenflow_iterations_total {value}\nvllm:num_requests_running 3\n", sums, "10s")
    assert sums.counters().iterations is None
    assert sums.counters().running == 3.0
    assert sums.problem() == "not a number: evenflow_iterations_total"


def test_one_nan_spoils_a_sum_and_is_not_papered_over() -> None:
    text = 'vllm:num_preemptions_total{engine="0"} NaN\nevenflow_evictions_total{traffic_class="chat"} 6\n'
    assert counters(text).evictions is None


def test_evictions_counted_by_the_worker_stand_in_only_where_the_engine_has_no_count() -> None:
    """A page of the engine that couldn't be read once must not swap one counter for another between two samples."""
    worker = 'evenflow_evictions_total{traffic_class="chat"} 6\n'
    assert counters(worker).evictions is None
    assert counters(worker + "vllm:num_requests_running 3\n").evictions == 6.0


def test_timestamps_and_braces_in_labels_are_no_problem() -> None:
    text = 'vllm:num_requests_running{model_name="a}b{c kind=\\"resumed\\""} 4.0 1700000000000\n'
    assert counters(text).running == 4.0


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_garbage_never_raises(noise: str) -> None:
    counters(f"vllm:num_requests_running{noise}\nevenflow_iterations_total{{{noise}\n{noise}\n{ADMIN}")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Pod:
    """One server that plays both ports of a pod."""

    port: int
    runner: web.AppRunner


async def serve(handler: Handler) -> Pod:
    app = web.Application()
    app.add_routes([web.get("/metrics", handler)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return Pod(runner.addresses[0][1], runner)


async def scrape(engine: Handler, admin: Handler, **options: float | int) -> Reading:
    pods = [await serve(engine), await serve(admin)]
    metrics = ScrapeMetrics(
        ManualClock(),
        engine_port=pods[0].port,
        admin_port=pods[1].port,
        **options,  # type: ignore[arg-type]
    )
    try:
        sample = await metrics.sample([Target("u1", "serving", "p", "127.0.0.1", 0.0, "30s")])
        assert sample.problem is None
        return sample.readings["u1"]
    finally:
        await metrics.close()
        for pod in pods:
            await pod.runner.cleanup()


def page(text: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return answer


async def hangs(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def fails(_: web.Request) -> web.Response:
    return web.Response(status=500, text=ENGINE)


async def redirects(_: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/metrics"})


async def floods(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(10_000):
        await response.write(b"# padding\n" * 1000)
    return response


async def test_both_pages_of_a_pod_make_one_reading() -> None:
    reading = await scrape(page(ENGINE), page(ADMIN))
    assert reading.problem is None
    assert reading.source == "Scrape"
    assert reading.counters is not None
    assert (reading.counters.evictions, reading.counters.admitted) == (7.0, 150.0)
    assert reading.taken_at == ManualClock().now()


async def test_one_port_that_fails_leaves_the_other_and_is_told() -> None:
    reading = await scrape(page(ENGINE), fails)
    assert reading.counters is not None
    assert reading.counters.admitted is None
    assert reading.problem is not None
    assert "HTTP 500" in reading.problem


@pytest.mark.parametrize(
    ("handler", "says"),
    [(hangs, "no answer within"), (fails, "HTTP 500"), (redirects, "HTTP 302"), (floods, "longer than")],
)
async def test_a_pod_that_hangs_fails_or_floods_has_no_counters_and_says_why(handler: Handler, says: str) -> None:
    reading = await scrape(handler, handler, timeout=0.2 if handler is hangs else 10.0, max_bytes=100_000)
    assert reading.counters is None
    assert reading.problem is not None
    assert says in reading.problem


async def test_a_pod_that_is_not_there_says_so() -> None:
    metrics = ScrapeMetrics(ManualClock(), engine_port=1, admin_port=1)
    sample = await metrics.sample([Target("u1", "serving", "p", "127.0.0.1", 0.0)])
    await metrics.close()
    assert "ClientConnectorError" in (sample.readings["u1"].problem or "")


async def test_something_else_on_the_port_is_no_engine() -> None:
    reading = await scrape(page("hello"), page("hello"))
    assert reading.counters is None
    assert reading.problem == "no series of an engine on /metrics"


async def test_a_hanging_pod_does_not_delay_more_than_its_own_timeout() -> None:
    good, bad = await serve(page(ENGINE)), await serve(hangs)
    metrics = ScrapeMetrics(ManualClock(), engine_port=good.port, admin_port=bad.port, timeout=0.2, concurrency=50)
    targets = [Target(f"u{number}", "serving", "p", "127.0.0.1", 0.0) for number in range(50)]
    async with asyncio.timeout(10):
        sample = await metrics.sample(targets)
    await metrics.close()
    for pod in (good, bad):
        await pod.runner.cleanup()
    assert len(sample.readings) == 50
