"""The simulated engine as a process."""

import asyncio
import json
import signal
import socket
import sys

import aiohttp
import pytest

COMMAND = ("-c", "from evenflow_cli.main import main; main()", "engine")

pytestmark = pytest.mark.cluster


class Process:
    def __init__(self, process, port, admin_port):
        self.process = process
        self.port = port
        self.admin_port = admin_port
        self.log = []


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


@pytest.fixture
async def start_process(tmp_path):
    """Starts an engine and waits until it answers."""
    started = []

    async def start(*arguments, command=("-m", "evenflow_worker.simulated")):
        port, admin_port = free_ports(2)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, "--port", str(port), "--admin-port", str(admin_port),
            "--config", str(tmp_path / "config.json"), *arguments, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            while True:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/health") as response:
                        if response.status == 200:
                            return Process(process, port, admin_port)
                except aiohttp.ClientConnectorError:
                    assert process.returncode is None
                    await asyncio.sleep(0.02)

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def running(session, engine):
    async with session.get(f"http://127.0.0.1:{engine.admin_port}/evenflow/v1/state") as response:
        return json.loads(await response.read())["running"]


async def ended(process):
    async with asyncio.timeout(20):
        _, log = await process.communicate()
    return process.returncode, log.decode()


async def test_sigterm_finishes_what_runs_and_exits_0(start_process):
    engine = await start_process("--time-scale", "10")
    async with aiohttp.ClientSession() as session:

        async def ask():
            body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True}
            async with session.post(f"http://127.0.0.1:{engine.port}/v1/completions", json=body) as response:
                return (await response.json())["usage"]["completion_tokens"]

        answer = asyncio.create_task(ask())
        async with asyncio.timeout(10):
            while not await running(session, engine):
                await asyncio.sleep(0.01)
        engine.process.send_signal(signal.SIGTERM)
        assert await answer == 300
    code, log = await ended(engine.process)
    assert code == 0, log
    assert "Traceback" not in log


async def test_a_second_sigterm_ends_it_at_once(start_process):
    engine = await start_process("--time-scale", "0.01")
    async with aiohttp.ClientSession() as session:

        async def ask():
            body = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True}
            async with session.post(f"http://127.0.0.1:{engine.port}/v1/completions", json=body) as response:
                await response.read()

        answer = asyncio.create_task(ask())
        async with asyncio.timeout(10):
            while not await running(session, engine):
                await asyncio.sleep(0.01)
        engine.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            while b"stopping" not in (await engine.process.stderr.readline()):
                pass
        engine.process.send_signal(signal.SIGTERM)
        code, _ = await ended(engine.process)
        assert code == -signal.SIGTERM
        with pytest.raises(aiohttp.ClientError):
            await answer


async def test_the_command_is_the_same_engine(start_process):
    engine = await start_process("--served-model-name", "llama", command=COMMAND)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{engine.port}/v1/models") as response,
    ):
        assert (await response.json())["data"][0]["id"] == "llama"
    engine.process.send_signal(signal.SIGINT)
    code, log = await ended(engine.process)
    assert code == 0, log


async def test_a_port_that_is_taken_is_one_line(start_process):
    engine = await start_process()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "evenflow_worker.simulated", "--port", str(engine.port), "--admin-port", "0",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    code, log = await ended(process)
    assert code == 1
    assert str(engine.port) in log
    assert "Traceback" not in log
