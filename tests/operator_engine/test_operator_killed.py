"""The operator dies at any of its writes, before or after the API server has carried it out, and is started again."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Stage, eventually, running, stage

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_operator.main import Operator
from evenflow_operator.settings import Settings

WRITES = ("POST", "PATCH", "PUT", "DELETE")
REPLICAS = 2


class Dying:
    """An operator that stops doing anything at its n-th write, as a killed process does."""

    def __init__(self, settings: Settings, at: int, *, after: bool) -> None:
        self._operator = Operator(settings)
        self._at = at
        self._after = after
        self._seen = 0
        self.dead = asyncio.Event()
        self._send = self._operator._client.request
        self._operator._client.request = self._request  # type: ignore[method-assign]

    async def _request(self, method: str, path: str, **options: Any) -> Any:
        if self.dead.is_set():
            await asyncio.Event().wait()
        if method in WRITES and not path.endswith("/events"):
            self._seen += 1
            if self._seen == self._at:
                if self._after:
                    await self._send(method, path, **options)
                self.dead.set()
                await asyncio.Event().wait()
        return await self._send(method, path, **options)

    async def run_until_dead(self, done: asyncio.Event) -> bool:
        """Whether it died; False when it had finished its work (`done`) before."""
        never = asyncio.Event()
        task = asyncio.create_task(self._operator.run(never))
        ends = {asyncio.create_task(self.dead.wait()), asyncio.create_task(done.wait())}
        await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED, timeout=15)
        for other in (task, *ends):
            other.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return self.dead.is_set()


async def _settled(s: Stage, name: str, done: asyncio.Event) -> None:
    await eventually(lambda: s.is_ready(name), f"{name} is ready", limit=15)
    done.set()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_the_same_pods_whichever_write_it_dies_at(tmp_path: Path, after: bool) -> None:
    created: Counter[str] = Counter()

    def count(event: StoreEvent) -> None:
        if event.type == "ADDED" and event.resource == "pods":
            created[event.object["metadata"]["labels"]["evenflow.dev/pool"]] += 1

    async with stage(tmp_path) as s:
        s.cluster.api.subscribe(count)
        died_at = 0
        for write in range(1, 40):
            name = f"pool-{write}"
            await s.apply_pool(name, replicas=REPLICAS)
            done = asyncio.Event()
            watcher = asyncio.create_task(_settled(s, name, done))
            died = await Dying(s.settings(), write, after=after).run_until_dead(done)
            if not died:
                watcher.cancel()
                break
            died_at = write
            before = {pod["metadata"]["uid"] for pod in s.pods(pool=name)}
            async with running(s.settings()):
                await eventually(lambda n=name: s.is_ready(n), f"{name} is ready after a restart", limit=15)
            await watcher
            pods = s.pods(pool=name)
            assert before <= {pod["metadata"]["uid"] for pod in pods}, f"write {write}: a pod was replaced"
            assert sorted(pod["metadata"]["labels"]["evenflow.dev/slot"] for pod in pods) == ["0", "1"]
            assert created[name] == REPLICAS, f"write {write}: {created[name]} pods were created"
            await s.delete_pool(name)
        assert died_at >= 6, "the loop must have gone through the whole life of a start"
