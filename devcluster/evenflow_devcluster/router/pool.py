"""Kept connections to endpoints, so that a request seldom has to open one."""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from evenflow_devcluster.router.endpoints import Endpoint

_LIMIT = 256 * 1024
_MAX_IDLE = 512


@dataclass(slots=True)
class Upstream:
    """One connection to an endpoint. `used` tells a kept one, which may have died unseen, from a new one."""

    endpoint: Endpoint
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False
    idle_since: float = 0.0

    def abort(self) -> None:
        self.writer.transport.abort()


class Pool:
    """Last in, first out, per endpoint; connections idle for longer than `idle_seconds` are closed when met."""

    def __init__(self, clock: Callable[[], float], *, connect_seconds: float = 2.0, idle_seconds: float = 30.0) -> None:
        self._clock = clock
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._idle: dict[Endpoint, list[Upstream]] = {}

    async def take(self, endpoint: Endpoint, *, fresh: bool) -> Upstream:
        """A connection. Raises OSError or TimeoutError when the endpoint doesn't accept one."""
        kept = self._idle.get(endpoint, [])
        while kept and not fresh:
            upstream = kept.pop()
            alive = not upstream.reader.at_eof() and not upstream.writer.transport.is_closing()
            if alive and self._clock() - upstream.idle_since < self._idle_seconds:
                upstream.used = True
                return upstream
            upstream.abort()
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(endpoint.address, endpoint.port, limit=_LIMIT), self._connect_seconds
        )
        return Upstream(endpoint, reader, writer)

    def give(self, upstream: Upstream) -> None:
        kept = self._idle.setdefault(upstream.endpoint, [])
        if len(kept) >= _MAX_IDLE:
            upstream.abort()
            return
        upstream.idle_since = self._clock()
        kept.append(upstream)

    def keep_only(self, endpoints: Collection[Endpoint]) -> None:
        """Close what is kept for endpoints that are gone."""
        for endpoint in [endpoint for endpoint in self._idle if endpoint not in endpoints]:
            for upstream in self._idle.pop(endpoint):
                with contextlib.suppress(OSError):
                    upstream.abort()
