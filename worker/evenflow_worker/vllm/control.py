"""The admin server beside the engine: a thread with an event loop of its own, inside EngineCore's process."""

import asyncio
import logging
import threading
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from evenflow_worker.control.admin import AdminAccess, admin_app
from evenflow_worker.control.config_file import ConfigFile
from evenflow_worker.vllm.reports import EngineReport

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 0.25
BIND_RETRY_SECONDS: Final = 5.0


class ControlThread:
    """Serves the admin API, watches the config file, drains the engine's events. Nothing in it can end the engine:
    a port that is taken is logged and tried again."""

    def __init__(
        self, report: EngineReport, registry: CollectorRegistry, access: AdminAccess, port: int, config: Path
    ) -> None:
        self.port = 0
        self.bound = threading.Event()
        self._report = report
        self._registry = registry
        self._access = access
        self._wanted_port = port
        self._file = ConfigFile(config, report.settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="evenflow-admin", daemon=True)

    def start(self) -> None:
        """Read the config file once, then go on in the background."""
        try:
            self._file.poll()
        except Exception:
            log.exception("config file: the engine starts with its defaults, the watch goes on")
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread; safe to call twice."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("the admin server ended; the engine serves on with its last settings")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with AsyncExitStack() as closing:
            tasks = [asyncio.create_task(self._file.watch()), asyncio.create_task(self._drain())]
            for task in tasks:
                closing.callback(task.cancel)
            await self._listen(closing, self._stop)
            await self._stop.wait()

    async def _listen(self, closing: AsyncExitStack, stop: asyncio.Event) -> None:
        app = admin_app(self._report, self._report.settings, self._registry, self._access)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        closing.push_async_callback(runner.cleanup)
        problem = ""
        while not stop.is_set():
            site = web.TCPSite(runner, self._access.host, self._wanted_port)
            try:
                await site.start()
            except OSError as error:
                await site.stop()
                if problem != str(error):
                    problem = str(error)
                    log.error(
                        "evenflow admin port %d on %s: %s; the engine serves without it, tried again every %g s",
                        self._wanted_port,
                        self._access.host,
                        error,
                        BIND_RETRY_SECONDS,
                    )
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), BIND_RETRY_SECONDS)
                continue
            self.port = int(runner.addresses[-1][1])
            self.bound.set()
            log.info("evenflow admin API on http://%s:%d", self._access.host, self.port)
            return

    async def _drain(self) -> None:
        while True:
            try:
                self._report.drain()
            except Exception:
                log.exception("evenflow metrics: a report was lost")
            await asyncio.sleep(DRAIN_SECONDS)
