"""The Prometheus source against a stub: values and their age, absent series, hanging and failing servers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from engine_kit import ManualClock

from evenflow_operator.adapters.prometheus import FIRST_PAUSE_SECONDS, OPEN_AFTER_FAILURES, PrometheusMetrics
from evenflow_operator.ports import Target

Answer = Callable[[str], Awaitable[web.StreamResponse]]
NOW = ManualClock().now()
HEADERS: list[str] = []
"""What the stub was authorised with, newest last."""


def series(name: str, value: str, pod: str = "llama-0", namespace: str = "serving", **labels: str) -> dict[str, Any]:
    metric = {"namespace": namespace, "pod": pod, **labels}
    if name:
        metric["__name__"] = name
    return {"metric": metric, "value": [NOW, value]}


VALUES = [
    series("vllm:num_preemptions_total", "7", engine="0"),
    series("vllm:num_requests_running", "212", engine="0"),
    series("evenflow_admitted_requests_total", "100", traffic_class="chat", kind="new"),
    series("evenflow_admitted_requests_total", "50", traffic_class="code", kind="new"),
    series("evenflow_iterations_total", "NaN"),
    series("evenflow_kv_usage_peak_ratio", "0.5", window="10s"),
    series("evenflow_kv_usage_peak_ratio", "0.9", window="30s"),
    series("vllm:num_requests_running", "3", pod="other"),
]


def golden(values: list[dict[str, Any]], taken_at: float, admin_taken_at: float | None = None) -> Answer:
    async def answer(query: str) -> web.Response:
        rows = values
        if "timestamp(" in query:
            at = admin_taken_at if "evenflow_" in query and admin_taken_at is not None else taken_at
            rows = [series("", str(at), pod=pod) for pod in ("llama-0", "other")]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": rows}})

    return answer


@contextlib.asynccontextmanager
async def prometheus(answer: Answer, **options: Any) -> AsyncIterator[tuple[PrometheusMetrics, ManualClock, list[str]]]:
    asked: list[str] = []

    async def query(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["query"])
        HEADERS.append(request.headers.get("Authorization", ""))
        return await answer(request.query["query"])

    app = web.Application()
    app.add_routes([web.get("/api/v1/query", query)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    clock = ManualClock()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    metrics = PrometheusMetrics(url, clock, timeouts=options.pop("timeouts", (1.0, 5.0)), **options)
    try:
        yield metrics, clock, asked
    finally:
        await metrics.close()
        await runner.cleanup()


def target(name: str = "llama-0", window: str = "30s", created_at: float = 0.0) -> Target:
    return Target(f"uid-{name}", "serving", name, "127.77.0.1", created_at, window)


async def test_values_are_those_of_the_pod_with_the_time_they_were_true() -> None:
    async with prometheus(golden(VALUES, NOW - 12.0)) as (metrics, _, asked):
        sample = await metrics.sample([target(), target("other")])
    assert sample.problem is None
    reading = sample.readings["uid-llama-0"]
    assert reading.source == "Prometheus"
    assert reading.taken_at == NOW - 12.0
    assert reading.counters is not None
    assert (reading.counters.evictions, reading.counters.admitted, reading.counters.kv_peak_ratio) == (7.0, 150.0, 0.9)
    assert reading.counters.iterations is None
    assert reading.problem == "not a number: evenflow_iterations_total"
    assert sample.readings["uid-other"].counters is not None
    assert len(asked) == 3, "few wide queries for all pods together"


async def test_the_age_is_that_of_the_older_port() -> None:
    async with prometheus(golden(VALUES, NOW - 5.0, NOW - 40.0)) as (metrics, _, _):
        sample = await metrics.sample([target()])
    assert sample.readings["uid-llama-0"].taken_at == NOW - 40.0


async def test_an_empty_result_is_not_zero() -> None:
    async with prometheus(golden([], NOW)) as (metrics, _, _):
        sample = await metrics.sample([target()])
    reading = sample.readings["uid-llama-0"]
    assert sample.problem is None
    assert reading.counters is None
    assert reading.problem == "Prometheus has no series of this pod"


async def test_samples_from_before_the_pod_existed_count_for_nobody() -> None:
    async with prometheus(golden(VALUES, NOW - 100.0)) as (metrics, _, _):
        sample = await metrics.sample([target(created_at=NOW - 50.0)])
    assert sample.readings["uid-llama-0"].counters is None


async def test_pools_that_sample_together_share_the_queries() -> None:
    async with prometheus(golden(VALUES, NOW)) as (metrics, clock, asked):
        await asyncio.gather(*(metrics.sample([target()]) for _ in range(20)))
        assert len(asked) == 3
        clock.at += 5.0
        await metrics.sample([target()])
        assert len(asked) == 6


async def test_the_token_is_read_again_for_every_query(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with prometheus(golden(VALUES, NOW), token_file=token) as (metrics, clock, _):
        for text in ("first", "second"):
            token.write_text(f"{text}\n", encoding="utf-8")
            clock.at += 5.0
            assert (await metrics.sample([target()])).problem is None
            assert set(HEADERS[-3:]) == {f"Bearer {text}"}
        token.unlink()
        clock.at += 5.0
        assert "FileNotFoundError" in ((await metrics.sample([target()])).problem or "")


async def hangs(_: str) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


async def fails(_: str) -> web.Response:
    return web.Response(status=500, text="boom")


async def nonsense(_: str) -> web.Response:
    return web.Response(text="<html>")


async def wrong_shape(_: str) -> web.Response:
    return web.json_response({"status": "success", "data": {"result": "no"}})


@pytest.mark.parametrize(
    ("answer", "says"),
    [(hangs, "no answer within"), (fails, "500"), (nonsense, "not Prometheus's"), (wrong_shape, "no vector")],
)
async def test_a_server_that_hangs_or_fails_returns_in_time_and_says_why(answer: Answer, says: str) -> None:
    async with prometheus(answer, timeouts=(0.2, 0.2)) as (metrics, _, _):
        async with asyncio.timeout(5):
            sample = await metrics.sample([target()])
    assert sample.readings == {}
    assert sample.problem is not None
    assert says in sample.problem


async def test_rows_of_another_shape_are_left_out() -> None:
    rows: list[Any] = [*VALUES, "no", {"metric": 5}, {"value": [1]}, series("unknown_metric", "1"), {"metric": {}}]
    async with prometheus(golden(rows, NOW)) as (metrics, _, _):
        sample = await metrics.sample([target()])
    assert sample.readings["uid-llama-0"].counters is not None


async def test_the_circuit_opens_after_repeated_failures_and_closes_again() -> None:
    answers: list[Answer] = [fails]

    async def answer(query: str) -> web.StreamResponse:
        return await answers[0](query)

    async with prometheus(answer) as (metrics, clock, asked):
        for _ in range(OPEN_AFTER_FAILURES):
            clock.at += 5.0
            sample = await metrics.sample([target()])
        assert sample.problem is not None
        assert "asked again in" in sample.problem
        count = len(asked)
        clock.at += FIRST_PAUSE_SECONDS - 0.5
        assert (await metrics.sample([target()])).problem is not None
        assert len(asked) == count, "an open circuit asks nothing"
        answers[0] = golden(VALUES, NOW)
        clock.at += 1.0
        assert (await metrics.sample([target()])).problem is None


async def test_nobody_listening_is_a_problem_not_an_exception() -> None:
    metrics = PrometheusMetrics("http://127.0.0.1:1", ManualClock(), timeouts=(0.5, 0.5))
    sample = await metrics.sample([target()])
    await metrics.close()
    assert sample.problem is not None
    assert "ConnectionError" in sample.problem
