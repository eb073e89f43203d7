"""The API server's process learns of a push from the engine's admin port, and serves on when nobody answers there."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.control.admin import AdminAccess, admin_app
from evenflow_worker.control.settings import Settings, Source
from evenflow_worker.vllm import TrafficClassMiddleware
from evenflow_worker.vllm.pushed import config_url, follow_pushes

SECONDS = 10.0
CONFIG = WorkerConfig(generation=3, classes=("chat",))


class Admin:
    """The engine's admin port, over settings that a push would change."""

    def __init__(self) -> None:
        self.settings = Settings(lambda config: None)
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> int:
        engine: Any = None
        app = admin_app(engine, self.settings, CollectorRegistry(), AdminAccess("127.0.0.1"))
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        found = int(self._runner.addresses[0][1])
        self.url = f"http://127.0.0.1:{found}/evenflow/v1/config"
        return found

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    admin = Admin()
    await admin.start()
    yield admin
    await admin.stop()


async def until_generation(settings: Settings, generation: int) -> None:
    async with asyncio.timeout(SECONDS):
        while settings.config.generation != generation:
            await asyncio.sleep(0.01)


async def test_a_push_is_learnt_and_an_engine_that_is_gone_changes_nothing(admin: Admin) -> None:
    settings = Settings(lambda config: None)
    task = asyncio.create_task(follow_pushes(settings, admin.url, seconds=0.01))
    try:
        admin.settings.apply(CONFIG.to_json(), Source.PUSH)
        await until_generation(settings, 3)
        port = int(admin.url.split(":")[2].split("/")[0])
        await admin.stop()
        await asyncio.sleep(0.05)
        assert not task.done()
        assert settings.config == CONFIG
        await admin.start(port)
        admin.settings.apply(replace(CONFIG, generation=4, draining=True).to_json(), Source.PUSH)
        await until_generation(settings, 4)
    finally:
        task.cancel()


async def test_the_file_wins_over_another_document_of_its_generation(admin: Admin) -> None:
    settings = Settings(lambda config: None)
    settings.apply(CONFIG.to_json(), Source.FILE)
    asked = asyncio.Event()

    def note(config: WorkerConfig) -> None:
        asked.set()

    admin.settings.apply(replace(CONFIG, classes=("code",)).to_json(), Source.PUSH)
    other = Settings(note)
    tasks = [asyncio.create_task(follow_pushes(one, admin.url, seconds=0.01)) for one in (settings, other)]
    async with asyncio.timeout(SECONDS):
        await asked.wait()
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    assert settings.config == CONFIG


@pytest.mark.parametrize("answer", [b"", b"x" * 70_000, b"[]", b'{"version": 1}'])
async def test_an_answer_that_is_no_config_changes_nothing(answer: bytes) -> None:
    asked = asyncio.Event()

    async def nonsense(request: web.Request) -> web.Response:
        asked.set()
        return web.Response(body=answer)

    app = web.Application()
    app.router.add_get("/config", nonsense)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = Settings(lambda config: None, CONFIG)
    task = asyncio.create_task(
        follow_pushes(settings, f"http://127.0.0.1:{runner.addresses[0][1]}/config", seconds=0.01)
    )
    async with asyncio.timeout(SECONDS):
        for _ in range(2):
            asked.clear()
            await asked.wait()
    assert settings.config == CONFIG
    assert not task.done()
    task.cancel()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://127.0.0.1:8010/evenflow/v1/config"),
        ({"EVENFLOW_ADMIN_HOST": "10.1.2.3", "EVENFLOW_ADMIN_PORT": "99"}, "http://10.1.2.3:99/evenflow/v1/config"),
        ({"EVENFLOW_ADMIN_HOST": "fd00::7"}, "http://[fd00::7]:8010/evenflow/v1/config"),
        ({"EVENFLOW_ADMIN_HOST": "0.0.0.0"}, "http://127.0.0.1:8010/evenflow/v1/config"),
        ({"EVENFLOW_ADMIN_HOST": "::"}, "http://[::1]:8010/evenflow/v1/config"),
        ({"EVENFLOW_ADMIN_PORT": "0"}, None),
        ({"EVENFLOW_ADMIN_PORT": "http"}, None),
    ],
)
def test_where_the_engine_is_asked(environ: dict[str, str], url: str | None) -> None:
    assert config_url(environ) == url


class Server:
    """An ASGI application whose lifespan lasts until `over`."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.over = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self.started.set()
            await self.over.wait()
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))


async def test_a_pushed_drain_closes_connections_while_the_application_runs(admin: Admin, tmp_path: Path) -> None:
    server = Server()
    learnt: list[Settings] = []

    ended = asyncio.Event()

    async def follow(settings: Settings) -> None:
        learnt.append(settings)
        try:
            await follow_pushes(settings, admin.url, seconds=0.01)
        finally:
            ended.set()

    middleware = TrafficClassMiddleware(server, config_path=tmp_path / "missing.json", follow=follow)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def post(path: str) -> list[tuple[bytes, bytes]]:
        await middleware({"type": "http", "method": "POST", "path": path, "headers": []}, receive, server.send)
        return server.sent[-1]["headers"]  # type: ignore[no-any-return]

    life = asyncio.create_task(middleware({"type": "lifespan"}, receive, server.send))
    async with asyncio.timeout(SECONDS):
        await server.started.wait()
    assert await post("/v1/completions") == []
    admin.settings.apply(replace(CONFIG, draining=True).to_json(), Source.PUSH)
    async with asyncio.timeout(SECONDS):
        while not learnt:
            await asyncio.sleep(0.01)
    await until_generation(learnt[0], 3)
    for path in ("/v1/completions", "/v1/embeddings"):
        assert await post(path) == [(b"connection", b"close")]
    server.over.set()
    await life
    async with asyncio.timeout(SECONDS):
        await ended.wait()
