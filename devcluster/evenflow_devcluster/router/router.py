"""Plays kube-proxy and gateway on one computer: listens on every Service's cluster address and forwards per request."""

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from evenflow_devcluster.agent.events import EventRecorder
from evenflow_devcluster.kube import Informer, Json, KubeClient
from evenflow_devcluster.router.endpoints import Frontend, Table, build_table
from evenflow_devcluster.router.pool import Pool
from evenflow_devcluster.router.proxy import Counters, Proxy, ProxySettings

_BACKLOG = 1024
_RETRY_SECONDS = 1.0
_START_SECONDS = 30.0

log = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Router:
    """Start with `await Router.start(kubeconfig)`, end with `stop`."""

    def __init__(
        self, client: KubeClient, settings: ProxySettings, rng: random.Random, now: Callable[[], datetime]
    ) -> None:
        clock = asyncio.get_running_loop().time
        self._client = client
        self._table: Table = {}
        self._pool = Pool(clock)
        self._proxy = Proxy(lambda: self._table, self._pool, settings)
        self._events = EventRecorder(client, now, clock, component="evenflow-router")
        self._listeners: dict[Frontend, asyncio.Server] = {}
        self._clashing: set[Frontend] = set()
        self._dirty = asyncio.Event()
        self._settled = asyncio.Event()
        self._services = Informer(client, "/api/v1/services", self._on_change, rng=rng)
        self._slices = Informer(client, "/apis/discovery.k8s.io/v1/endpointslices", self._on_change, rng=rng)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        kubeconfig: Path | str,
        *,
        settings: ProxySettings | None = None,
        rng: random.Random | None = None,
        now: Callable[[], datetime] = _utc_now,
    ) -> "Router":
        """Listen for all Services there are, then follow changes. Raises KubeError, OSError or TimeoutError."""
        client = await KubeClient.connect(kubeconfig)
        router = cls(client, settings or ProxySettings(), rng or random.Random(), now)
        jobs = (router._services.run(), router._slices.run(), router._events.run(), router._follow())
        router._tasks = [asyncio.create_task(job) for job in jobs]
        try:
            async with asyncio.timeout(_START_SECONDS):
                await router._services.synced.wait()
                await router._slices.synced.wait()
                router._settled.clear()
                router._dirty.set()
                await router._settled.wait()
        except BaseException:
            await router.stop()
            raise
        return router

    @property
    def counters(self) -> Counters:
        return self._proxy.counters

    def outstanding(self) -> dict[str, int]:
        """Requests in flight by pod address, of those that have any."""
        endpoints = {endpoint for ready in self._table.values() for endpoint in ready}
        counts = {endpoint.address: self._proxy.balancer.outstanding(endpoint) for endpoint in endpoints}
        return {address: count for address, count in counts.items() if count}

    async def stop(self) -> None:
        """Close every port and cut every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._listeners.values():
            server.close()
        await self._proxy.close()
        self._listeners.clear()
        await self._client.close()

    def _on_change(self, old: Json | None, new: Json | None) -> None:
        self._dirty.set()

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            self._table = build_table(self._services.store.values(), self._slices.store.values())
            self._pool.keep_only({endpoint for ready in self._table.values() for endpoint in ready})
            clashes = await self._listen()
            self._settled.set()
            if clashes:
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._dirty.set)

    async def _listen(self) -> bool:
        """Open and close listening sockets so that they match the table. Returns whether one is still missing."""
        for frontend in [frontend for frontend in self._listeners if frontend not in self._table]:
            self._listeners.pop(frontend).close()
        missing = False
        for frontend in self._table:
            if frontend in self._listeners:
                continue
            try:
                self._listeners[frontend] = await self._open(frontend)
                self._clashing.discard(frontend)
            except OSError as error:
                missing = True
                if frontend in self._clashing:
                    continue
                self._clashing.add(frontend)
                text = f"can't listen on {frontend.cluster_ip}:{frontend.port}, will retry: {error.strerror or error}"
                log.warning("service %s: %s", frontend.service, text)
                service = self._services.store.get(frontend.service)
                if service is not None:
                    self._events.record({"kind": "Service", **service}, "PortClash", text, warning=True)
        return missing

    async def _open(self, frontend: Frontend) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            self._proxy.factory(frontend),
            frontend.cluster_ip,
            frontend.port,
            family=socket.AF_INET,
            backlog=_BACKLOG,
        )
