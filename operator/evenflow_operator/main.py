"""The operator's process: settings, wiring, start, stop."""

import asyncio
import contextlib
import functools
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from evenflow_operator.adapters.clock import SystemClock
from evenflow_operator.adapters.cluster import KubeCluster
from evenflow_operator.adapters.events import KubeEvents
from evenflow_operator.adapters.kube import KubeClient, KubeConfigError, service_account_namespace
from evenflow_operator.adapters.leases import KubeLeases
from evenflow_operator.adapters.prometheus import PrometheusMetrics
from evenflow_operator.adapters.scrape import ScrapeMetrics
from evenflow_operator.adapters.tokens import SecretTokens
from evenflow_operator.adapters.worker_admin import HttpWorkerAdmin
from evenflow_operator.api.names import GROUP, VERSION
from evenflow_operator.assembly import Engine, EngineParts
from evenflow_operator.core.decide import decide
from evenflow_operator.core.placement.severity_cache import SeverityCache
from evenflow_operator.core.restore import restore
from evenflow_operator.engine.lease import Elector, LeadershipLost
from evenflow_operator.engine.reconcile import Core
from evenflow_operator.engine.scope import Scope, ScopeChanged
from evenflow_operator.engine.watchdog import CacheMismatch
from evenflow_operator.logs import configure_logging
from evenflow_operator.outages import Outage
from evenflow_operator.ports import ApiError, Clock
from evenflow_operator.probes import PortTaken, ProbeServer
from evenflow_operator.settings import Settings, SettingsError, parse_settings
from evenflow_operator.telemetry import Telemetry
from evenflow_operator.watches import WatchesFailed

SWITCH_SECONDS = 0.001
"""How soon the engine's loop gets the interpreter back from the threads of the watches and of decide."""
CRD_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
STOP_SECONDS = 4.0
ASK_TIMEOUT_SECONDS = 5.0
CRD_HINT = "the CRD llmservingpools.serving.evenflow.dev is not installed; run: evenflow crd | kubectl apply -f -"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT. The exit status: 0 stopped, 1 failed, 2 wrong settings."""
    outage = Outage()
    try:
        settings = parse_settings(arguments)
        configure_logging(settings.log_format, settings.log_level, outage)
    except ValueError as error:
        print(f"evenflow operator: {error}", file=sys.stderr)
        return 2
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        asyncio.run(_run_until_signal(settings, outage))
    except (KubeConfigError, PortTaken, SettingsError) as error:
        log.error("%s", error)
        return 2
    except (LeadershipLost, WatchesFailed, CacheMismatch, ScopeChanged) as error:
        log.critical("%s: %s; ending at once", type(error).__name__, error)
        logging.shutdown()
        # Nothing may run on: another process may lead, or what this one knows is wrong.
        os._exit(1)
    return 0


async def _run_until_signal(settings: Settings, outage: Outage) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Operator(settings, outage=outage).run(stop)


class Operator:
    """One operator process. `run` it once."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        outage: Outage | None = None,
    ) -> None:
        self._settings = settings
        self._outage = outage or Outage()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._identity = f"{socket.gethostname()}-{os.getpid()}-{self._rng.getrandbits(32):08x}"
        self._telemetry = Telemetry()
        self._client = KubeClient(settings.kubeconfig, settings.context, self._telemetry.api_error)
        self._elector: Elector | None = None
        self._engine: Engine | None = None
        self._waiting_for = "the API server"

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises what ends the process: LeadershipLost, WatchesFailed, ScopeChanged, …"""
        settings = self._settings
        probes = ProbeServer(settings.host, settings.metrics_port, self._telemetry, self._sick, self._unready)
        self._telemetry.gauge("leader", lambda: float(self._leading()))
        try:
            if settings.metrics_port:
                await probes.start()
            await self._client.connect()
            log.info("serving %s", settings.scope)
            if await _unless(stop, self._crd_installed()) and await _unless(stop, self._acquire()):
                await self._lead(stop)
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._shut_down(probes), STOP_SECONDS)

    async def _lead(self, stop: asyncio.Event) -> None:
        parts = self._parts()
        scope = Scope(parts.cluster, self._settings.namespaces)
        settings = replace(self._settings, namespaces=await scope.served())
        engine = self._engine = Engine(settings, parts, self._clock, self._rng, self._telemetry)
        running = {
            asyncio.create_task(scope.hold(), name="scope"),
            asyncio.create_task(engine.run(), name="engine"),
            asyncio.create_task(stop.wait(), name="stop"),
            asyncio.create_task(self._outage.look(self._ask), name="outage"),
        }
        if self._elector is not None:
            running.add(asyncio.create_task(self._elector.hold(), name="lease"))
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=STOP_SECONDS / 2)

    async def _ask(self) -> object:
        # An API server that starts tells its version before it serves what is of definitions.
        return await self._client.request("GET", f"/apis/{GROUP}/{VERSION}", timeout=ASK_TIMEOUT_SECONDS)

    def _parts(self) -> EngineParts:
        settings, client, clock = self._settings, self._client, self._clock
        cache = SeverityCache()
        facts = {
            "worker_image": settings.worker_image,
            "simulated_image": settings.simulated_image,
            "metrics_source": "Prometheus" if settings.prometheus_url else "Scrape",
        }
        if settings.admin_write_open:
            facts["admin_write"] = "open"
        prometheus = (
            PrometheusMetrics(settings.prometheus_url, clock, token_file=settings.prometheus_token_file)
            if settings.prometheus_url
            else None
        )
        return EngineParts(
            core=Core(
                decide=functools.partial(decide, cache=cache),
                restore=restore,
                executor=ThreadPoolExecutor(1, thread_name_prefix="decide"),
                facts=facts,
            ),
            cluster=KubeCluster(client),
            events=KubeEvents(client, clock, "evenflow-operator", self._identity),
            scrape=ScrapeMetrics(clock),
            prometheus=prometheus,
            admin=HttpWorkerAdmin(),
            tokens=SecretTokens(client, clock, settings.admin_token_secrets),
            leading=self._leading,
        )

    async def _crd_installed(self) -> bool:
        """Wait until the API server knows our resource; say so while it doesn't."""
        cluster = KubeCluster(self._client)
        for pause in _repeat_last(CRD_PAUSES):
            try:
                if await cluster.crd_installed():
                    return True
                problem = CRD_HINT
            except ApiError as error:
                problem = f"the API server can't be asked: {error}"
            self._waiting_for = problem
            log.error("%s (trying again in %g s)", problem, pause)
            await asyncio.sleep(pause)
        return False

    async def _acquire(self) -> bool:
        settings = self._settings
        if settings.leader_election:
            namespace = settings.lease_namespace or service_account_namespace() or "default"
            leases = KubeLeases(self._client, namespace, settings.lease_name)
            self._elector = Elector(leases, self._identity, self._clock, self._rng, settings.lease_times)
            self._waiting_for = ""
            log.info("asking for the lease %s/%s", namespace, settings.lease_name)
            await self._elector.acquire()
        return True

    def _leading(self) -> bool:
        return self._engine is not None and (self._elector is None or self._elector.leading)

    def _sick(self) -> str | None:
        """A standby, or one that waits for the definition, is alive."""
        return self._engine.sick() if self._engine is not None else None

    def _unready(self) -> str | None:
        """A standby that could take over is ready; a leader is once its first lists are complete."""
        if self._engine is not None:
            return None if self._engine.synced else "the first lists of pools and pods are not complete"
        return self._waiting_for or None

    async def _shut_down(self, probes: ProbeServer) -> None:
        if self._engine is not None:
            await self._engine.close()
        if self._elector is not None:
            await self._elector.release()
        await probes.close()
        await self._client.close()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, bool]) -> bool:
    """The result of `work`, or False when `stop` comes first."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    done, rest = await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for other in rest:
        other.cancel()
    if rest:
        await asyncio.wait(rest)
    return task in done and task.result()


def _repeat_last(pauses: Sequence[float]) -> Iterator[float]:
    yield from pauses
    while True:
        yield pauses[-1]
