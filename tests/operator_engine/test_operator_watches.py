"""kopf's thread: started again when it fails, given up when that doesn't last, stopped in time."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import kopf
import pytest
from cluster_kit import eventually, running, stage

from evenflow_operator import watches
from evenflow_operator.watches import Watches, WatchesFailed


def broken() -> kopf.OperatorRegistry:
    raise RuntimeError("the stream said something fatal")


def cancelled() -> kopf.OperatorRegistry:
    raise asyncio.CancelledError("something fatal, told by a cancellation")


@pytest.mark.parametrize("registry", [broken, cancelled])
async def test_watches_that_fail_again_and_again_are_given_up(
    registry: Callable[[], kopf.OperatorRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "FIRST_PAUSE_SECONDS", 0.0)
    restarts: list[bool] = []
    made = Watches(registry, namespaces=(), restarted=lambda: restarts.append(True))
    made.start()
    with pytest.raises(WatchesFailed, match=r"RuntimeError|CancelledError"):
        await asyncio.wait_for(made.failed(), 10)
    assert len(restarts) == watches.MAX_RESTARTS
    await made.close()


async def test_a_failure_that_kopf_never_gets_over_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(watches, name, 0.01)
    monkeypatch.setattr(watches, "MAX_RESTARTS", 2)

    async def fails() -> None:
        raise RuntimeError("Connection closed.")

    async def spawned(**_: object) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(fails()), asyncio.create_task(asyncio.Event().wait())]  # type: ignore[list-item]

    async def hangs(tasks: object, **_: object) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    monkeypatch.setattr(kopf, "spawn_tasks", spawned)
    monkeypatch.setattr(kopf, "run_tasks", hangs)
    made = Watches(kopf.OperatorRegistry, namespaces=(), restarted=lambda: None)
    made.start()
    with pytest.raises(WatchesFailed, match="didn't stop"):
        await asyncio.wait_for(made.failed(), 10)
    await made.close()


async def test_closing_ends_the_pause_before_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "FIRST_PAUSE_SECONDS", 25.0)
    made = Watches(broken, namespaces=(), restarted=lambda: None)
    made.start()
    async with asyncio.timeout(2):
        await made.close()
    assert not made._thread.is_alive()


async def test_watches_that_die_are_started_again_and_miss_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "FIRST_PAUSE_SECONDS", 0.05)
    async with stage(tmp_path) as s, running(s.settings()) as operator:
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        assert operator._engine is not None
        engine = operator._engine
        assert engine._watches is not None
        engine._watchdog._grace = 0.1
        first = engine._watches._kopf_loop
        assert first is not None
        assert engine._watches._kopf_stop is not None
        first.call_soon_threadsafe(engine._watches._kopf_stop.set)
        await eventually(lambda: engine._watches is not None and engine._watches._kopf_loop is not first, "a new loop")
        await s.patch_pool("llama", {"replicas": 3})
        await eventually(lambda: len(s.names()) == 3, "the change is noticed")
