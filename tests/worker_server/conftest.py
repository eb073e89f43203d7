"""In-process simulated engines on random ports, and a client for them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from evenflow_worker.control.admin import AdminAccess
from evenflow_worker.simulated.app import SimulatedEngine
from evenflow_worker.simulated.options import EngineOptions


class EngineClient:
    """One engine and an HTTP session."""

    def __init__(self, engine: SimulatedEngine, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.session = session

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.engine.port}{path}"

    def admin_url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.engine.admin_port}{path}"

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url(path), data=data, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def complete(self, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
        status, answer = await self.post("/v1/completions", {"prompt": "hello", **body}, headers)
        assert status == 200, answer
        return answer

    async def stream(self, path: str, body: Any, headers: dict[str, str] | None = None) -> list[Any]:
        """The events of a streamed answer, the last of which must be [DONE]."""
        async with self.session.post(self.url(path), json={**body, "stream": True}, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            text = await response.text()
        events = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
        assert events[-1] == "[DONE]"
        return [json.loads(item) for item in events[:-1]]

    async def push(self, document: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, Any]:
        async with self.session.put(self.admin_url("/evenflow/v1/config"), json=document, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def text(self, url: str) -> str:
        async with self.session.get(url) as response:
            assert response.status == 200
            return await response.text()


StartEngine = Callable[..., Awaitable[EngineClient]]


@pytest.fixture
async def start_engine(tmp_path: Path) -> AsyncIterator[StartEngine]:
    """Starts engines that run as fast as they may; keyword arguments are EngineOptions."""
    started: list[SimulatedEngine] = []
    async with aiohttp.ClientSession() as session:

        async def start(access: AdminAccess | None = None, **options: Any) -> EngineClient:
            defaults: dict[str, Any] = {"port": 0, "admin_port": 0, "config": tmp_path / "config.json"}
            chosen = EngineOptions(**{**defaults, "time_scale": 100.0, **options})
            engine = SimulatedEngine(chosen, access)
            started.append(engine)
            await engine.start()
            return EngineClient(engine, session)

        yield start
        for engine in started:
            await engine.stop()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits until a condition holds, for at most ten seconds."""

    async def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10.0
        while not condition():
            assert time.monotonic() < deadline, "the condition never held"
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def config_document() -> Callable[..., dict[str, Any]]:
    """A valid worker config document; keyword arguments replace fields."""

    def build(generation: int, **fields: Any) -> dict[str, Any]:
        return {
            "version": 1,
            "generation": generation,
            "policy": "SVF",
            "victim": "LargestVolume",
            "agingSeconds": 30,
            "predictor": {"type": "ClassPrior"},
            "proxies": None,
            "classes": ["chat", "code"],
            "draining": False,
            "admission": {"mode": "Limited", "unit": "Volume", "perIteration": 2.5, "watermark": 0.05},
            "classPriors": {"chat": {"promptTokens": 1024, "outputTokens": 220}},
            **fields,
        }

    return build
