"""Forwards HTTP requests, each on its own, to the least busy ready endpoint of a Service."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenflow_devcluster.router.balancer import Balancer
from evenflow_devcluster.router.endpoints import Endpoint, Frontend, Table
from evenflow_devcluster.router.http1 import (
    Framing,
    Head,
    ProtocolError,
    body_pieces,
    read_head,
    request_framing,
    response_framing,
)
from evenflow_devcluster.router.pool import Pool, Upstream

_LIMIT = 256 * 1024
_RETRY_PAUSE = 0.05

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Durations in seconds. `keep_alive` exceeds what HTTP clients keep idle connections for."""

    no_endpoint_wait: float = 5.0
    attempts: int = 8
    keep_alive: float = 120.0
    response: float = 3600.0
    max_body: int = 64 * 2**20


@dataclass(slots=True)
class Counters:
    """What the proxy has done so far, in requests."""

    forwarded: int = 0
    retried: int = 0
    no_endpoint: int = 0
    failed: int = 0
    client_gone: int = 0


class ClientProtocol(asyncio.StreamReaderProtocol):
    """A client's connection that says at once when the client is gone, also while we wait for someone else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    def eof_received(self) -> bool:
        # A client that stops sending has gone: nobody half-closes and waits for an answer of an inference server.
        self._lost()
        return bool(super().eof_received())

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()
        super().connection_lost(error)

    def _lost(self) -> None:
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


class _Retry(Exception):
    """The endpoint failed before it sent a byte of its answer."""


class _Abort(Exception):
    """The client's connection can't be used any longer: cut it, so that the client sees a failure."""


class Proxy:
    """`factory(frontend)` makes the protocols of that frontend's listening socket."""

    def __init__(self, table: Callable[[], Table], pool: Pool, settings: ProxySettings | None = None) -> None:
        self.counters = Counters()
        self.balancer = Balancer()
        self._table = table
        self._pool = pool
        self._settings = settings or ProxySettings()
        self._connections: set[asyncio.Task[None]] = set()

    def factory(self, frontend: Frontend) -> Callable[[], ClientProtocol]:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(frontend, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        def make() -> ClientProtocol:
            return ClientProtocol(asyncio.StreamReader(limit=_LIMIT), connected)

        return make

    async def close(self) -> None:
        """Cut every connection."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.keep_only(())

    async def _serve(self, frontend: Frontend, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(frontend, reader, writer) and frontend in self._table():
                pass
            writer.close()
        except ProtocolError as error:
            await self._answer(writer, b"400 Bad Request", str(error))
            writer.close()
        except (_Abort, ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            writer.transport.abort()
        except BaseException:
            writer.transport.abort()
            raise

    async def _one(self, frontend: Frontend, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer. Returns whether the connection can take another."""
        head = await asyncio.wait_for(read_head(reader), self._settings.keep_alive)
        if head is None:
            return False
        framing = request_framing(head)
        if b"100-continue" in head.tokens(b"expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        async for piece in body_pieces(reader, framing):
            body += piece
            if len(body) > self._settings.max_body:
                await self._answer(writer, b"413 Content Too Large", f"more than {self._settings.max_body} bytes")
                return False
        return await self._dispatch(frontend, head, bytes(body), writer)

    async def _dispatch(self, frontend: Frontend, head: Head, body: bytes, writer: asyncio.StreamWriter) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.no_endpoint_wait
        failed: set[Endpoint] = set()
        attempts = 0
        client = writer.transport.get_protocol()
        assert isinstance(client, ClientProtocol)
        while attempts < self._settings.attempts:
            if client.gone:
                self.counters.client_gone += 1
                raise _Abort
            endpoint = self.balancer.choose(self._table().get(frontend, ()), failed)
            if endpoint is None:
                if loop.time() >= deadline:
                    break
                # Those that failed may be back by then, or out of the table.
                failed.clear()
                await asyncio.sleep(_RETRY_PAUSE)
                continue
            attempts += 1
            try:
                with self.balancer.holding(endpoint):
                    return await self._attempt(endpoint, head, body, writer, client)
            except _Retry as error:
                log.info("%s: %s failed, trying another: %s", frontend.service, endpoint, error)
                self.counters.retried += 1
                failed.add(endpoint)
        self.counters.no_endpoint += 1
        reason = "no endpoint is ready" if not attempts else f"no endpoint answered ({attempts} attempts)"
        await self._answer(writer, b"503 Service Unavailable", f"{frontend.service}: {reason}")
        return False

    async def _attempt(
        self, endpoint: Endpoint, head: Head, body: bytes, writer: asyncio.StreamWriter, client: ClientProtocol
    ) -> bool:
        try:
            upstream, answer = await self._ask(endpoint, head, body, client)
        except ProtocolError as error:
            self.counters.failed += 1
            await self._answer(writer, b"502 Bad Gateway", f"{endpoint.address}: {error}")
            return False
        client.on_gone = upstream.abort
        try:
            framing = response_framing(answer, head.method)
            keep = head.keeps_alive and not framing.until_close and not answer.is_http10
            extra = () if keep else ((b"connection", b"close"),)
            writer.write(answer.forwarded(*extra))
            await self._pass_on(upstream, framing, writer)
        except (OSError, asyncio.IncompleteReadError, ProtocolError) as error:
            upstream.abort()
            if client.gone:
                self.counters.client_gone += 1
            else:
                self.counters.failed += 1
                log.info("%s broke off in the middle of its answer: %s", endpoint, error)
            raise _Abort from error
        except BaseException:
            upstream.abort()
            raise
        finally:
            client.on_gone = None
        self.counters.forwarded += 1
        if answer.keeps_alive and not framing.until_close:
            self._pool.give(upstream)
        else:
            upstream.abort()
        return keep

    async def _ask(self, endpoint: Endpoint, head: Head, body: bytes, client: ClientProtocol) -> tuple[Upstream, Head]:
        """Send the request and wait for the head of the answer. Raises _Retry when no byte of it came."""
        framing = (b"content-length", str(len(body)).encode())
        chunked = Framing.of(head) == Framing(chunked=True)
        extra = (framing,) if body and not chunked else ()
        drop = frozenset((b"expect", b"content-length")) if extra else frozenset((b"expect",))
        message = head.forwarded(*extra, drop=drop) + body
        fresh = False
        while True:
            try:
                upstream = await self._pool.take(endpoint, fresh=fresh)
            except (OSError, TimeoutError) as error:
                raise _Retry(str(error) or type(error).__name__) from error
            client.on_gone = upstream.abort
            try:
                upstream.writer.write(message)
                answer = await asyncio.wait_for(self._head(upstream), self._settings.response)
                if answer is not None:
                    return upstream, answer
            except ConnectionError:
                pass
            except asyncio.IncompleteReadError as error:
                upstream.abort()
                raise ProtocolError("the answer broke off in its head") from error
            except BaseException:
                upstream.abort()
                raise
            finally:
                client.on_gone = None
            upstream.abort()
            if client.gone:
                self.counters.client_gone += 1
                raise _Abort
            if not upstream.used:
                raise _Retry("closed the connection without an answer")
            # The server had just closed a connection that we had kept: that says nothing about the server.
            fresh = True

    @staticmethod
    async def _head(upstream: Upstream) -> Head | None:
        while True:
            head = await read_head(upstream.reader)
            if head is None or head.status >= 200:
                return head

    @staticmethod
    async def _pass_on(upstream: Upstream, framing: Framing, writer: asyncio.StreamWriter) -> None:
        async for piece in body_pieces(upstream.reader, framing):
            writer.write(piece)
            await writer.drain()
        await writer.drain()

    @staticmethod
    async def _answer(writer: asyncio.StreamWriter, status: bytes, text: str) -> None:
        body = text.encode() + b"\n"
        head = b"HTTP/1.1 " + status + b"\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        writer.write(head + b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        await writer.drain()
