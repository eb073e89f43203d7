"""The control loop itself: retries, giving up, and one bad key beside good ones."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from controllers_fixture import Clock, config_map

from evenflow_devcluster.embedded.controller_api import ControllerApi, StoreEvent
from evenflow_devcluster.embedded.controllers import loop as loop_module
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.local import LocalApi
from evenflow_devcluster.embedded.store.memory import Store


class Counting(ControlLoop[str]):
    """Fails for a key as often as `failures` says; tells each try."""

    watched = ("configmaps",)

    def __init__(self, api: ControllerApi, failures: dict[str, int]) -> None:
        super().__init__(api)
        self.failures = failures
        self.tries: list[str] = []
        self.tried = asyncio.Event()

    def touched(self, event: StoreEvent, before: Mapping[str, Any] | None) -> list[str]:
        return [event.object["metadata"]["name"]] if event.resource == "configmaps" else []

    def initial(self) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.mirror.values("configmaps")]

    def reconcile(self, key: str) -> None:
        self.tries.append(key)
        self.tried.set()
        if self.failures.get(key, 0) > 0:
            self.failures[key] -= 1
            raise ValueError(key)

    async def until(self, tries: dict[str, int]) -> None:
        async with asyncio.timeout(5):
            while any(self.tries.count(key) < count for key, count in tries.items()):
                self.tried.clear()
                await self.tried.wait()


@pytest.fixture
def api() -> LocalApi:
    return LocalApi(Api(Store(), Clock(), random.Random(1), {}))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.001)


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failing_key_is_tried_again_and_others_go_on(api: LocalApi) -> None:
    api.create("configmaps", "default", config_map("bad"))
    counting = Counting(api, {"bad": 3})
    task = asyncio.create_task(counting.run())
    await counting.until({"bad": 1})
    api.create("configmaps", "default", config_map("good"))
    await counting.until({"bad": 4, "good": 1})
    await stopped(task)
    assert counting.tries.count("good") == 1


async def test_a_key_that_keeps_failing_is_left_until_its_next_event(
    api: LocalApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.create("configmaps", "default", config_map("bad"))
    counting = Counting(api, {"bad": 10_000})
    task = asyncio.create_task(counting.run())
    await counting.until({"bad": loop_module.MAX_RETRIES + 1})
    assert "gives up on bad" in caplog.text
    given_up = len(counting.tries)
    api.merge_patch("configmaps", "default", "bad", {"data": {"a": "b"}})
    await counting.until({"bad": given_up + 1})
    await stopped(task)


async def test_many_events_of_one_key_are_one_try(api: LocalApi) -> None:
    counting = Counting(api, {})
    task = asyncio.create_task(counting.run())
    await asyncio.sleep(0)
    api.create("configmaps", "default", config_map("one"))
    for value in "abc":
        api.merge_patch("configmaps", "default", "one", {"data": {"a": value}})
    await counting.until({"one": 1})
    await stopped(task)
    assert counting.tries == ["one"]


async def test_a_stopped_loop_hears_nothing(api: LocalApi) -> None:
    counting = Counting(api, {})
    task = asyncio.create_task(counting.run())
    await asyncio.sleep(0)
    await stopped(task)
    api.create("configmaps", "default", config_map("one"))
    assert counting.mirror.get("configmaps", "default", "one") is None
