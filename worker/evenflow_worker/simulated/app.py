"""One simulated engine as a process: core, clock, OpenAI port, admin port, config file, signals."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.fleet.records import EngineSpec
from evenflow_worker.control.admin import AdminAccess, admin_app
from evenflow_worker.control.config_file import ConfigFile
from evenflow_worker.metrics import WorkerMetrics
from evenflow_worker.simulated.clock import EngineClock
from evenflow_worker.simulated.core import EngineCore
from evenflow_worker.simulated.lag_metrics import LagMetrics
from evenflow_worker.simulated.options import EngineOptions
from evenflow_worker.simulated.runner import EngineRunner
from evenflow_worker.simulated.server import ApiServer
from evenflow_worker.simulated.vllm_metrics import VllmMetrics

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 3630.0
"""Longer than any client or proxy keeps an idle connection (Envoy: an hour), so that it is never the server that closes
one just as a request arrives."""
LAST_WORDS_SECONDS = 2.0
"""What handlers get to end their answers after the engine was stopped under them."""


def engine_version() -> str:
    """`simulated <version>`, as states and metrics show it."""
    try:
        return f"simulated {version('evenflow')}"
    except PackageNotFoundError:
        return "simulated unknown"


class SimulatedEngine:
    """Everything of one engine, wired; `start` binds the ports, `stop` drains and closes them."""

    def __init__(self, options: EngineOptions, access: AdminAccess | None = None) -> None:
        self.options = options
        spec = EngineSpec(
            kv_tokens=options.kv_tokens,
            max_model_len=options.model_len,
            block_size=options.block_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            step_time_model=options.step_time_model,
            overhead_ms=options.overhead_ms,
        )
        name = engine_version()
        core = EngineCore(spec, WorkerConfig())
        self.clock = EngineClock(options.time_scale)
        self.runner = EngineRunner(core, self.clock, version=name, max_num_queued=options.max_num_queued)
        engine_registry, self.admin_registry = CollectorRegistry(), CollectorRegistry()
        settings = self.runner.settings
        metrics = WorkerMetrics(
            self.admin_registry, settings, self.runner.figures, lambda: settings.config, engine=name
        )
        LagMetrics(self.admin_registry, self.clock, core)
        self.runner.observe_with(VllmMetrics(engine_registry, core, options.model_names[0]), metrics)
        self.api = ApiServer(
            self.runner,
            metrics,
            engine_registry,
            model_names=options.model_names,
            version=name.removeprefix("simulated "),
            stream_interval=options.stream_interval,
            seed=options.seed,
        )
        self.config_file = ConfigFile(options.config, self.runner.settings)
        self._access = access or AdminAccess.from_environment(options.admin_host)
        self._closing = AsyncExitStack()
        self._stepping: asyncio.Task[None] | None = None
        self._site: web.TCPSite | None = None
        self.port = 0
        self.admin_port = 0
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Apply the config file, start the engine, bind both ports. Raises OSError if a port is taken."""
        self.config_file.poll()
        self._in_background(self.config_file.watch())
        self._stepping = self._in_background(self.runner.run())
        self._stepping.add_done_callback(self._stepping_ended)
        admin = admin_app(self.runner, self.runner.settings, self.admin_registry, self._access)
        self.admin_port, _ = await self._listen(admin, self.options.admin_host, self.options.admin_port)
        self.port, self._site = await self._listen(self.api.app, self.options.host, self.options.port)

    async def stop(self, drain_seconds: float = 0.0) -> bool:
        """Stop accepting, let what runs finish for at most `drain_seconds` of wall time, close. False if requests had
        to be cut off."""
        self.api.closing = True
        site, self._site = self._site, None
        if site is not None:
            await site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                await self.runner.drained()
        cut_off = self.runner.in_flight
        if cut_off and self._stepping is not None:
            log.warning("%d requests did not finish in %g s and are cut off", cut_off, drain_seconds)
            # First the engine, then the ports: so every client still gets an answer that says so.
            await _cancelled(self._stepping)
        await self._closing.aclose()
        return cut_off == 0

    async def _listen(self, app: web.Application, host: str, port: int) -> tuple[int, web.TCPSite]:
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            shutdown_timeout=LAST_WORDS_SECONDS,
        )
        await runner.setup()
        self._closing.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, host, port, backlog=4096)
        await site.start()
        return int(runner.addresses[-1][1]), site

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._closing.push_async_callback(_cancelled, task)
        return task

    def _stepping_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("the engine failed", exc_info=task.exception())
            self.api.closing = True
            self.failed.set()


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; a failure of its own was reported when it happened."""
    task.cancel()
    await asyncio.wait([task])


async def serve(options: EngineOptions) -> int:
    """Run one engine until SIGTERM or SIGINT; a second signal ends it at once. Returns the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if options.startup_seconds:
        with suppress(TimeoutError):
            async with asyncio.timeout(options.startup_seconds):
                await stop.wait()
        if stop.is_set():
            return 0
    engine = SimulatedEngine(options)
    try:
        await engine.start()
    except OSError as error:
        log.error("cannot listen: %s", error)
        await engine.stop()
        return 1
    log.info(
        "%s serves %s on http://%s:%d, admin on http://%s:%d, %d KV tokens, %g engine seconds per second",
        engine_version(),
        options.model_names[0],
        options.host,
        engine.port,
        options.admin_host,
        engine.admin_port,
        engine.runner.core.kv_capacity_tokens,
        options.time_scale,
    )
    ended = [asyncio.create_task(stop.wait()), asyncio.create_task(engine.failed.wait())]
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.cancel()
    if engine.failed.is_set():
        await engine.stop()
        return 1
    log.info("stopping: %d requests get up to %g s to finish", engine.runner.in_flight, options.shutdown_timeout)
    return 0 if await engine.stop(options.shutdown_timeout) else 1
