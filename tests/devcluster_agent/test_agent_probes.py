"""Probes and hooks put to real listeners and real commands."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from evenflow_devcluster.agent.probes import Target, Verdict, ask, probe_loop, run_hook
from evenflow_devcluster.agent.process import run_command

SECONDS = 10.0


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    async def answer(request: web.Request) -> web.Response:
        status = int(request.match_info["status"])
        seen = request.headers.get("X-Probe", "")
        return web.Response(status=status, text=seen, headers={"Location": "http://127.0.0.1:1/"})

    app = web.Application()
    app.router.add_get("/{status}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]

    async def run(command: list[str], timeout: float) -> tuple[int, str]:
        environment = {"PATH": os.environ["PATH"]}
        return await run_command(
            command, environment=environment, folder=tmp_path, python=sys.executable, timeout=timeout
        )

    async with aiohttp.ClientSession() as session:
        container = {"name": "c", "ports": [{"name": "http", "containerPort": port}]}
        yield Target(container, "127.0.0.1", session, run)
    await runner.cleanup()


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        ({"httpGet": {"port": "http", "path": "/200"}}, None),
        ({"httpGet": {"port": "http", "path": "302"}}, None),
        ({"httpGet": {"port": "http", "path": "/500"}}, "statuscode: 500"),
        ({"httpGet": {"port": "nope", "path": "/200"}}, "no port is named 'nope'"),
        ({"httpGet": {"port": 1, "path": "/200"}}, "connect: connection refused"),
        ({"tcpSocket": {"port": "http"}}, None),
        ({"tcpSocket": {"port": 1}}, "connect: connection refused"),
        ({"exec": {"command": ["sh", "-c", "exit 0"]}}, None),
        ({"exec": {"command": ["sh", "-c", "echo why; exit 4"]}}, "exited with 4: why"),
        ({"exec": {"command": ["no-such-program"]}}, "not found"),
    ],
)
async def test_one_question(target: Target, handler: dict[str, Any], problem: str | None) -> None:
    answer = await ask(handler, target, SECONDS)
    assert (answer is None) if problem is None else (answer is not None and problem in answer), answer


async def test_a_probe_gives_up_in_time_and_leaves_no_process(target: Target, tmp_path: Path) -> None:
    command = ["sh", "-c", "echo $$ > pid; sleep 1000"]
    answer = await ask({"exec": {"command": command}}, target, 0.5)
    assert answer is not None
    assert "no answer within 0.5 s" in answer
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_hooks(target: Target) -> None:
    assert await run_hook({"sleep": {"seconds": 0}}, target, SECONDS) is None
    assert await run_hook({"exec": {"command": ["true"]}}, target, SECONDS) is None
    answer = await run_hook({"httpGet": {"port": "http", "path": "/503"}}, target, SECONDS)
    assert answer is not None


async def test_until_the_first_success_it_asks_often_but_counts_failures_once_a_period(
    target: Target, tmp_path: Path
) -> None:
    verdicts: list[Verdict] = []

    def on_verdict(verdict: Verdict, problem: str | None) -> bool:
        verdicts.append(verdict)
        return problem is not None

    flag = tmp_path / "flag"
    probe = {"exec": {"command": ["sh", "-c", "echo >> asked; test -e flag"]}, "periodSeconds": 1000}
    task = asyncio.create_task(probe_loop(probe, target, passing=False, on_verdict=on_verdict))
    asked = tmp_path / "asked"
    async with asyncio.timeout(SECONDS):
        while not asked.exists() or len(asked.read_text().splitlines()) < 3:
            await asyncio.sleep(0.01)
        assert [(verdict.last, verdict.streak) for verdict in verdicts] == [(False, 1)]
        flag.touch()
        await task
    assert verdicts[-1].passing
