"""What happens to requests when an engine is told to stop."""

import asyncio

import aiohttp
import pytest


async def ask(client, **body):
    return await client.post("/v1/completions", {"prompt": "x", "ignore_eos": True, **body})


async def test_what_runs_is_finished(start_engine, eventually):
    client = await start_engine(time_scale=10.0)
    answer = asyncio.create_task(ask(client, max_tokens=200))
    streamed = asyncio.create_task(
        client.stream("/v1/completions", {"prompt": "x", "max_tokens": 200, "ignore_eos": True})
    )
    await eventually(lambda: client.engine.runner.core.running == 2)
    assert await client.engine.stop(drain_seconds=30.0)
    status, document = await answer
    assert status == 200
    assert document["usage"]["completion_tokens"] == 200
    assert sum(event["choices"][0]["text"].count("tok") for event in await streamed) == 200


async def test_while_it_drains_it_is_not_ready_and_takes_no_connection(start_engine, eventually):
    client = await start_engine(time_scale=0.2)
    # Two connections: one for the request, one that stays open beside it.
    await asyncio.gather(*(client.text(client.url("/health")) for _ in range(2)))
    running = asyncio.create_task(ask(client, max_tokens=4))
    await eventually(lambda: client.engine.runner.core.running == 1)
    stopping = asyncio.create_task(client.engine.stop(drain_seconds=30.0))
    await eventually(lambda: client.engine.api.closing)
    # A connection that was open already still gets its answers, each the last on it.
    async with client.session.get(client.url("/health")) as response:
        assert response.status == 503
        assert response.headers["Connection"] == "close"
    async with aiohttp.ClientSession() as other:
        with pytest.raises(aiohttp.ClientConnectorError):
            await other.get(client.url("/health"))
    assert (await running)[0] == 200
    assert await stopping


@pytest.mark.parametrize("stream", [True, False])
async def test_what_does_not_finish_in_time_is_told_so(start_engine, eventually, stream):
    client = await start_engine(time_scale=0.01)

    async def read():
        body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": stream}
        async with client.session.post(client.url("/v1/completions"), json=body) as response:
            return response.status, await response.text()

    answer = asyncio.create_task(read())
    await eventually(lambda: client.engine.runner.core.running == 1)
    assert not await client.engine.stop(drain_seconds=0.05)
    status, text = await answer
    assert status == (200 if stream else 500)
    assert "the engine stopped" in text
    assert "[DONE]" not in text


async def test_an_engine_that_fails_is_not_ready(start_engine, eventually):
    client = await start_engine()

    def boom():
        raise RuntimeError("boom")

    client.engine.runner.core.step = boom
    status, document = await ask(client, max_tokens=5)
    assert status == 500
    assert document["error"]["type"] == "InternalServerError"
    async with asyncio.timeout(5):
        await client.engine.failed.wait()
    async with client.session.get(client.url("/health")) as response:
        assert response.status == 503
    assert (await ask(client, max_tokens=5))[0] == 500
