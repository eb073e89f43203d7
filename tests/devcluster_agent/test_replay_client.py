"""The replay client against a small server that answers as an engine does, or fails as one may."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from evenflow_devcluster.replay.client import ReplayProgress, replay
from evenflow_devcluster.replay.results import ReplayResult
from evenflow_model.traces import TraceRequest

SCALE = 100.0


@dataclass
class Engine:
    """Answers every request; `faults` are used up, one by each request, before that."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    hold: asyncio.Event | None = None

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        fault = self.faults.pop(0) if self.faults else ""
        if fault.isdigit():
            return web.json_response({"error": {"message": "no"}}, status=int(fault))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        count = body["vllm_xargs"]["simulated_output_tokens"]
        if fault == "short":
            count -= 1
        if self.hold is not None:
            await self.hold.wait()
        for number in range(count):
            await response.write(event({"choices": [{"text": " tok", "index": 0}]}))
            if fault == "cut" and number == count // 2:
                assert request.transport is not None
                request.transport.abort()
                return response
        if fault == "error":
            await response.write(event({"error": {"message": "stopped", "code": 500}}))
        else:
            await response.write(event({"choices": [], "usage": {"completion_tokens": count}}))
        if fault != "open end":
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    one = Engine()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/completions", one.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


def requests(count: int, spacing: float = 1.0) -> list[TraceRequest]:
    return [TraceRequest(number * spacing, 100 + number, 3 + number % 5, "chat") for number in range(count)]


async def run(engine: Engine, trace: list[TraceRequest], **options: Any) -> ReplayResult:
    given: dict[str, Any] = {"model": "tiny", "max_model_len": 8192, "time_scale": SCALE, "retry_base": 0.001}
    given["rng"] = random.Random(1)
    return await replay(trace, {"chat": engine.url, "code": engine.url + "/"}, **(given | options))


async def test_every_request_is_sent_once_as_the_trace_says(engine: Engine) -> None:
    trace = requests(20)
    seen: list[ReplayProgress] = []
    result = await run(engine, trace, on_progress=seen.append)
    assert (result.requests, result.completed, result.failed, result.retried) == (20, 20, 0, 0)
    assert result.generated_tokens == sum(request.output_tokens for request in trace)
    assert {item.request for item in result.outcomes} == set(trace)
    assert all(item.sent_s >= item.arrival_s for item in result.outcomes), "never before its time"
    assert all(0 < item.ttft_s <= item.latency_s for item in result.outcomes if item.ttft_s and item.latency_s)
    assert seen[-1] == ReplayProgress(total=20, sent=20, completed=20, failed=0, retried=0)
    by_prompt = {len(body["prompt"]): body for body in engine.bodies}
    assert sorted(by_prompt) == [request.prompt_tokens for request in trace]
    for request in trace:
        body = by_prompt[request.prompt_tokens]
        assert set(body["prompt"]) == {0}
        assert body["vllm_xargs"] == {"traffic_class": "chat", "simulated_output_tokens": request.output_tokens}
        assert body["max_tokens"] == 4096, "the same for all: it must not tell the output length"
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
    assert all(headers["x-traffic-class"] == "chat" for headers in engine.headers)


async def test_the_limit_shrinks_only_where_the_context_ends(engine: Engine) -> None:
    await run(engine, [TraceRequest(0, 8000, 10, "chat")])
    assert engine.bodies[0]["max_tokens"] == 192


@pytest.mark.parametrize("fault", ["500", "503", "429", "cut", "short", "error", "open end"])
async def test_what_may_pass_is_tried_again(engine: Engine, fault: str) -> None:
    engine.faults = [fault] * 2
    result = await run(engine, requests(3, spacing=0.0))
    assert (result.completed, result.failed) == (3, 0)
    assert sum(item.attempts for item in result.outcomes) == 5
    assert result.retried == sum(item.attempts > 1 for item in result.outcomes) >= 1


async def test_latency_counts_from_the_first_send(engine: Engine) -> None:
    engine.faults = ["500"]
    result = await run(engine, requests(1), retry_base=0.1)
    [item] = result.outcomes
    assert item.latency_s is not None
    assert item.latency_s >= 0.05 * SCALE, "the back-off before the second attempt is part of it"


async def test_what_will_not_pass_is_reported_not_lost(engine: Engine) -> None:
    engine.faults = ["400"]
    result = await run(engine, requests(2, spacing=0.0))
    assert (result.requests, result.completed, result.failed, result.retried) == (2, 1, 1, 0)
    [failed] = [item for item in result.outcomes if not item.completed]
    assert failed.error.startswith("400")
    engine.faults = ["503"] * 3
    result = await run(engine, requests(1), attempts=3)
    assert (result.completed, result.failed, result.retried) == (0, 1, 1)
    assert result.outcomes[0].attempts == 3


async def test_arrivals_do_not_wait_for_answers(engine: Engine) -> None:
    engine.hold = asyncio.Event()
    task = asyncio.create_task(run(engine, requests(10, spacing=0.5)))
    while len(engine.bodies) < 10:
        await asyncio.sleep(0.001)
        assert not task.done()
    engine.hold.set()
    assert (await task).completed == 10


async def test_cancelling_ends_every_request(engine: Engine) -> None:
    engine.hold = asyncio.Event()
    task = asyncio.create_task(run(engine, requests(5, spacing=0.0)))
    while len(engine.bodies) < 5:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ([TraceRequest(0, 10, 5, "video")], "no URL for class 'video'"),
        ([TraceRequest(0, 8190, 5, "chat")], "8190 \\+ 5 tokens doesn't fit"),
        ([TraceRequest(0, 10, 5000, "chat")], "max_tokens 4096"),
    ],
)
async def test_what_cannot_work_is_said_before_anything_is_sent(
    engine: Engine, trace: list[TraceRequest], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        await run(engine, trace)
    assert not engine.bodies
