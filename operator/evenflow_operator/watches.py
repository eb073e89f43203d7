"""kopf in a thread and a loop of its own: it may cancel, hang or end there without touching the engine.

A watch that kopf gives up on (it treats some API errors as fatal) is started again with back-off; if that doesn't last,
the process must end.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import kopf

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_SECONDS = 60.0
MAX_RESTARTS = 10
JOIN_SECONDS = 3.0
STOP_SECONDS = 10.0
"""kopf has ended when one of its root tasks has; it may wait for the others for ever."""

log = logging.getLogger(__name__)


class WatchesFailed(Exception):
    """The watches can't be kept up."""


class Watches:
    """`registry` makes a fresh registry per start; `restarted` is called in the engine's loop after each restart."""

    def __init__(
        self,
        registry: Callable[[], kopf.OperatorRegistry],
        *,
        namespaces: Collection[str],
        restarted: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._namespaces = tuple(namespaces)
        self._restarted = restarted
        self._engine_loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._engine_loop.create_future()
        self._stop = threading.Event()
        self._kopf_loop: asyncio.AbstractEventLoop | None = None
        self._kopf_stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="watches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def failed(self) -> None:
        """Wait for ever. Raises WatchesFailed when the watches are given up."""
        await asyncio.shield(self._failed)

    async def close(self) -> None:
        """Stop within `JOIN_SECONDS`; a thread that doesn't is left to die with the process."""
        self._stop.set()
        if self._kopf_loop is not None and self._kopf_stop is not None and not self._kopf_loop.is_closed():
            with contextlib.suppress(RuntimeError):
                # The loop may close in between.
                self._kopf_loop.call_soon_threadsafe(self._kopf_stop.set)
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)
        if self._thread.is_alive():
            log.warning("watches: still not stopped after %g s", JOIN_SECONDS)
        if not self._failed.done():
            self._failed.cancel()

    def _main(self) -> None:
        failures = 0
        while not self._stop.is_set():
            started = time.monotonic()
            problem = "the watches ended"
            try:
                _run(self._once())
            except BaseException as error:
                # A CancelledError of kopf's own, too: a thread that ends silently leaves the engine blind.
                said = error.args[0] if error.args and isinstance(error.args[0], str) else error
                problem = f"{type(error).__name__}: {said}"
            if self._stop.is_set():
                return
            failures = 1 if time.monotonic() - started > HEALTHY_SECONDS else failures + 1
            if failures > MAX_RESTARTS:
                self._in_engine(self._give_up, problem)
                return
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1))
            log.warning("watches: %s; starting them again in %.1f s", problem, pause)
            self._stop.wait(pause)
            self._in_engine(self._restarted)

    async def _once(self) -> None:
        self._kopf_stop = asyncio.Event()
        self._kopf_loop = asyncio.get_running_loop()
        if self._stop.is_set():
            return
        scope: dict[str, Any] = {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            standalone=True,
            stop_flag=self._kopf_stop,
            **scope,
        )
        ending = asyncio.create_task(kopf.run_tasks(tasks, ignored=before))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done, _ = await asyncio.wait({ending}, timeout=STOP_SECONDS)
        if not done:
            raise TimeoutError(f"kopf didn't stop within {STOP_SECONDS:g} s after a failure")
        await ending

    def _in_engine(self, call: Callable[..., None], *args: Any) -> None:
        if not self._engine_loop.is_closed():
            self._engine_loop.call_soon_threadsafe(call, *args)

    def _give_up(self, problem: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(WatchesFailed(f"{problem} (after {MAX_RESTARTS} restarts)"))


def _run(work: Coroutine[Any, Any, None]) -> None:
    """As asyncio.run, but tasks that don't let themselves be cancelled are left behind."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.close()
