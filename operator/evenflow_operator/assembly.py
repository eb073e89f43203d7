"""The running engine of one leader: its parts put together, started and stopped."""

import asyncio
import functools
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evenflow_operator.adapters.events import KubeEvents
from evenflow_operator.adapters.kube import load_configuration
from evenflow_operator.adapters.prometheus import PrometheusMetrics
from evenflow_operator.adapters.scrape import ScrapeMetrics
from evenflow_operator.adapters.worker_admin import HttpWorkerAdmin
from evenflow_operator.engine.act import Actor
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.feed import Feed
from evenflow_operator.engine.poller import Poller, SourceName
from evenflow_operator.engine.push import Pusher
from evenflow_operator.engine.readings import Readings
from evenflow_operator.engine.reconcile import Core, Reconciler
from evenflow_operator.engine.watchdog import Watchdog
from evenflow_operator.engine.workqueue import WorkQueue
from evenflow_operator.handlers import build_registry, connection_fields
from evenflow_operator.outages import unless_outage
from evenflow_operator.ports import ApiError, Clock, Cluster, Key, Kind, Metrics, Tokens
from evenflow_operator.settings import Settings
from evenflow_operator.telemetry import Telemetry
from evenflow_operator.watches import Watches

HEARTBEAT_SECONDS = 1.0
CATCH_UP_AGAIN_SECONDS = 1.0
SICK_AFTER_SECONDS = 30.0
STUCK_AFTER_SECONDS = 300.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What the engine is built on."""

    core: Core
    cluster: Cluster
    events: KubeEvents
    scrape: ScrapeMetrics
    prometheus: PrometheusMetrics | None
    admin: HttpWorkerAdmin
    tokens: Tokens
    leading: Callable[[], bool]


class Engine:
    """A new leader starts with an empty cache and no expectations. `run` it once, then `close`."""

    def __init__(
        self, settings: Settings, parts: EngineParts, clock: Clock, rng: random.Random, telemetry: Telemetry
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._clock = clock
        self._telemetry = telemetry
        self._heartbeat_at = clock.monotonic()
        self._queue: WorkQueue[Key] = WorkQueue(clock, rng)
        self._readings = Readings(clock)
        expectations = Expectations(clock)
        self._cache = Cache(expectations, self._changed)
        self._pusher = Pusher(parts.admin, parts.tokens, self._readings, clock, self._enqueue, telemetry.pushed)
        sources: dict[SourceName, Metrics] = {"Scrape": parts.scrape}
        if parts.prometheus is not None:
            sources["Prometheus"] = parts.prometheus
        self._poller = Poller(
            cache=self._cache,
            readings=self._readings,
            queue=self._queue,
            sources=sources,
            admin=parts.admin,
            clock=clock,
            rng=rng,
        )
        self._reconciler = Reconciler(
            core=parts.core,
            cluster=parts.cluster,
            cache=self._cache,
            expectations=expectations,
            readings=self._readings,
            actor=Actor(parts.cluster, self._cache, expectations, self._pusher, parts.leading),
            pusher=self._pusher,
            events=parts.events,
            queue=self._queue,
            clock=clock,
            telemetry=telemetry,
        )
        self._watchdog = Watchdog(
            cluster=parts.cluster,
            cache=self._cache,
            queue=self._queue,
            telemetry=telemetry,
            kinds=self._kinds(),
            namespaces=settings.namespaces,
            every=settings.watchdog_seconds,
        )
        self._watches: Watches | None = None
        self._gauges()

    @property
    def synced(self) -> bool:
        return self._cache.synced

    async def run(self) -> None:
        """Until cancelled. Raises WatchesFailed or CacheMismatch."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        feed = Feed(self._cache, loop)
        watches = self._watches = Watches(
            lambda: build_registry(feed, self._login, watch_nodes=settings.watch_nodes),
            namespaces=settings.namespaces,
            restarted=self._watches_restarted,
        )
        watches.start()
        parts = (
            self._work(),
            self._watchdog.run(),
            self._parts.events.run(),
            self._beat(),
            watches.failed(),
        )
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        parts = self._parts
        await asyncio.gather(self._poller.close(), self._pusher.close())
        if self._watches is not None:
            await self._watches.close()
        await asyncio.gather(parts.scrape.close(), parts.admin.close())
        if parts.prometheus is not None:
            await parts.prometheus.close()
        parts.core.executor.shutdown(wait=False, cancel_futures=True)

    def sick(self) -> str | None:
        """Why the engine is not alive, or None; depends on nothing outside the process."""
        silent = self._clock.monotonic() - self._heartbeat_at
        if silent > SICK_AFTER_SECONDS:
            return f"the engine's loop has not ticked for {silent:.0f} s"
        stuck = self._queue.longest_active()
        return f"one pass has taken {stuck:.0f} s" if stuck > STUCK_AFTER_SECONDS else None

    async def _work(self) -> None:
        await self._first_lists()
        log.info("watching: %s", ", ".join(f"{count} {kind}" for kind, count in self._cache.counts().items()))
        for key in self._cache.pool_keys():
            self._changed(key)
        await self._queue.run(self._reconciler, workers=self._settings.workers)

    async def _first_lists(self) -> None:
        told = ""
        while not self._cache.synced:
            try:
                await self._watchdog.catch_up()
            except ApiError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("first lists: %s; trying again", told, extra=unless_outage(error))
                await asyncio.sleep(CATCH_UP_AGAIN_SECONDS)
            else:
                self._cache.synced = True

    async def _beat(self) -> None:
        while True:
            self._heartbeat_at = self._clock.monotonic()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _login(self) -> Mapping[str, object]:
        return await connection_fields(await load_configuration(self._settings.kubeconfig, self._settings.context))

    def _changed(self, key: Key) -> None:
        if self._cache.synced:
            self._poller.touch(key)
            self._queue.add(key)

    def _enqueue(self, key: Key) -> None:
        self._queue.add(key)

    def _watches_restarted(self) -> None:
        self._telemetry.watch_restarted()
        self._watchdog.kick.set()

    def _kinds(self) -> Sequence[Kind]:
        kinds: list[Kind] = ["pools", "pods", "services", "endpointslices"]
        return [*kinds, "nodes"] if self._settings.watch_nodes else kinds

    def _gauges(self) -> None:
        gauge = self._telemetry.gauge
        gauge("queue_depth", lambda: float(len(self._queue)))
        gauge(
            "oldest_sample_age_seconds",
            lambda: age if (age := self._readings.oldest_sample()) is not None else float("nan"),
        )
        gauge("events_dropped", lambda: float(self._parts.events.dropped))
        for kind in self._kinds():
            gauge(f"cached_{kind}", functools.partial(self._cached, kind))

    def _cached(self, kind: Kind) -> float:
        return float(self._cache.counts()[kind])
