import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import ClassLengths, WorkerLengths, WorkerState
from evenflow_operator.adapters.worker_admin import HttpWorkerAdmin
from evenflow_operator.ports import WorkerError

STATE = WorkerState(17, "abc", "vLLM 0.32.0", "evenflow", "SVF", 430_000, 16, 91_231, 212, 40, {"chat": 180})
LENGTHS = WorkerLengths({"chat": ClassLengths(9, {220: 3.5}, 1024.0, {0.5: 900.0})})
IP = "127.0.0.1"


@contextlib.asynccontextmanager
async def worker(answer: Any, timeout: float = 5.0) -> AsyncIterator[tuple[HttpWorkerAdmin, list[Any]]]:
    seen: list[Any] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, request.path, request.headers.get("Authorization"), await request.text()))
        if callable(answer):
            return await answer(request)  # type: ignore[no-any-return]
        return web.json_response(answer)

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", handle)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, IP, 0).start()
    admin = HttpWorkerAdmin(timeout=timeout, port=runner.addresses[0][1])
    try:
        yield admin, seen
    finally:
        await admin.close()
        await runner.cleanup()


async def test_a_config_is_put_with_the_token() -> None:
    config = WorkerConfig(generation=17)
    async with worker({"appliedGeneration": 17}) as (admin, seen):
        assert await admin.push(IP, config, "secret") == 17
        assert await admin.push(IP, config, None) == 17
    assert seen[0][:3] == ("PUT", "/evenflow/v1/config", "Bearer secret")
    assert WorkerConfig.parse(seen[0][3]) == config
    assert seen[1][2] is None


async def test_state_and_lengths_are_read() -> None:
    async with worker(STATE.document()) as (admin, seen):
        assert await admin.state(IP) == STATE
    async with worker(LENGTHS.document()) as (admin, _):
        assert await admin.lengths(IP) == LENGTHS
    assert seen[0][:2] == ("GET", "/evenflow/v1/state")


@pytest.mark.parametrize("status", [401, 403, 409, 422, 500])
async def test_a_refusal_keeps_its_status_and_text(status: int) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text="the reason")

    async with worker(refuse) as (admin, _):
        with pytest.raises(WorkerError, match="the reason") as caught:
            await admin.push(IP, WorkerConfig(), "secret")
    assert caught.value.status == status
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("answer", [{}, {"appliedGeneration": "17"}, {"appliedGeneration": True}, [], 5])
async def test_an_answer_without_a_generation_is_an_error(answer: Any) -> None:
    async with worker(answer) as (admin, _):
        with pytest.raises(WorkerError, match="appliedGeneration"):
            await admin.push(IP, WorkerConfig(), None)


async def test_a_malformed_state_names_the_field() -> None:
    async with worker({**STATE.document(), "running": -1}) as (admin, _):
        with pytest.raises(WorkerError, match="running"):
            await admin.state(IP)


async def test_a_state_without_end_is_refused() -> None:
    async def flood(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps({**STATE.document(), "reason": "x" * 1_000_000}))

    async with worker(flood) as (admin, _):
        with pytest.raises(WorkerError, match="longer than"):
            await admin.state(IP)


async def test_a_worker_that_hangs_is_given_up() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with worker(hang, timeout=0.1) as (admin, _):
        with pytest.raises(WorkerError, match="no answer within") as caught:
            await admin.state(IP)
    assert caught.value.status == 0


async def test_nobody_there_is_an_error_of_ours() -> None:
    admin = HttpWorkerAdmin(port=1)
    with pytest.raises(WorkerError, match="ClientConnectorError"):
        await admin.state(IP)
    await admin.close()
