"""The proxy against small servers on loopback addresses: balance, failover, streaming, ends of connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from evenflow_devcluster.router.endpoints import Endpoint, Frontend
from evenflow_devcluster.router.pool import Pool
from evenflow_devcluster.router.proxy import Proxy, ProxySettings

FRONTEND = Frontend("127.0.0.1", 1, "ns/svc")
PATIENCE = 10.0


@dataclass
class Router:
    """A proxy on a free port, and the table that it reads."""

    table: dict[Frontend, tuple[Endpoint, ...]] = field(default_factory=lambda: {FRONTEND: ()})
    url: str = ""
    address: tuple[str, int] = ("", 0)
    proxy: Proxy = field(init=False)

    def behind(self, *endpoints: Endpoint) -> None:
        self.table[FRONTEND] = endpoints


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    one = Router()
    loop = asyncio.get_running_loop()
    one.proxy = Proxy(lambda: one.table, Pool(loop.time), ProxySettings(no_endpoint_wait=0.3, max_body=2**20))
    server = await loop.create_server(one.proxy.factory(FRONTEND), "127.0.0.1", 0)
    one.address = server.sockets[0].getsockname()
    one.url = f"http://127.0.0.1:{one.address[1]}"
    yield one
    server.close()
    await one.proxy.close()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[Endpoint]]]:
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> Endpoint:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{rest:.*}", handler)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return Endpoint(*runner.addresses[0])

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def raw() -> AsyncIterator[Callable[[Callable[..., Awaitable[None]]], Awaitable[Endpoint]]]:
    servers: list[asyncio.Server] = []

    async def start(handler: Callable[..., Awaitable[None]]) -> Endpoint:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        servers.append(server)
        return Endpoint(*server.sockets[0].getsockname())

    yield start
    for server in servers:
        server.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        yield session


Serve = Callable[[Handler], Awaitable[Endpoint]]
Raw = Callable[[Callable[..., Awaitable[None]]], Awaitable[Endpoint]]


async def test_requests_and_answers_pass_unchanged(
    router: Router, serve: Serve, session: aiohttp.ClientSession
) -> None:
    async def echo(request: web.Request) -> web.Response:
        body = await request.read()
        headers = {"X-Path": request.path_qs, "X-Class": request.headers.get("x-traffic-class", "")}
        return web.Response(body=body, headers=headers, status=201)

    router.behind(await serve(echo))
    body = bytes(range(256)) * 2000
    for _ in range(3):
        async with session.post(router.url + "/v1/x?y=%20z", data=body, headers={"x-traffic-class": "chat"}) as answer:
            assert answer.status == 201
            assert await answer.read() == body
            assert answer.headers["X-Path"] == "/v1/x?y=%20z"
            assert answer.headers["X-Class"] == "chat"
    assert router.proxy.counters.forwarded == 3


async def test_a_chunked_request_body_arrives(router: Router, serve: Serve, session: aiohttp.ClientSession) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d" % number * 1000

    router.behind(await serve(echo))
    async with session.post(router.url, data=pieces()) as answer:
        assert await answer.read() == b"".join(b"%d" % number * 1000 for number in range(5))


async def test_the_least_busy_endpoint_gets_the_next_request(
    router: Router, serve: Serve, session: aiohttp.ClientSession
) -> None:
    release = asyncio.Event()
    started = asyncio.Queue[str]()

    def named(name: str) -> Handler:
        async def handler(_: web.Request) -> web.Response:
            await started.put(name)
            await release.wait()
            return web.Response(text=name)

        return handler

    router.behind(await serve(named("a")), await serve(named("b")))
    held = []
    for _ in range(6):
        held.append(asyncio.create_task(session.get(router.url)))
        await asyncio.wait_for(started.get(), PATIENCE)
    release.set()
    names = sorted([await (await task).text() for task in held])
    assert names == ["a"] * 3 + ["b"] * 3


async def test_an_endpoint_that_refuses_is_passed_over(
    router: Router, serve: Serve, raw: Raw, session: aiohttp.ClientSession
) -> None:
    async def good(request: web.Request) -> web.Response:
        return web.Response(text=await request.text())

    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    refusing = Endpoint("127.0.0.1", 1)
    router.behind(refusing, await raw(resets), await serve(good))
    for number in range(6):
        async with session.post(router.url, data=f"request {number}") as answer:
            assert answer.status == 200
            assert await answer.text() == f"request {number}"
    assert router.proxy.counters.retried > 0


async def test_without_endpoints_requests_wait_a_moment_then_get_503(
    router: Router, serve: Serve, session: aiohttp.ClientSession
) -> None:
    async def good(_: web.Request) -> web.Response:
        return web.Response(text="late")

    async with session.get(router.url) as answer:
        assert answer.status == 503
        assert "ns/svc: no endpoint is ready" in await answer.text()
    router.behind(Endpoint("127.0.0.1", 1))
    async with session.get(router.url) as answer:
        assert answer.status == 503
        assert "no endpoint answered" in await answer.text()
    router.behind()
    endpoint = await serve(good)
    waiting = asyncio.create_task(session.get(router.url))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.1, router.behind, endpoint)
    answer = await waiting
    assert await answer.text() == "late"


async def test_an_answer_streams_while_it_is_made(router: Router, serve: Serve, session: aiohttp.ClientSession) -> None:
    more = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await more.wait()
        await response.write(b"data: 2\n\n")
        return response

    router.behind(await serve(handler))
    async with session.get(router.url) as answer:
        assert await answer.content.readany() == b"data: 1\n\n"
        more.set()
        assert await answer.content.read() == b"data: 2\n\n"


async def test_a_client_that_leaves_ends_the_request_upstream(
    router: Router, serve: Serve, session: aiohttp.ClientSession
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()
        return web.Response()

    router.behind(await serve(handler))
    task = asyncio.create_task(session.get(router.url))
    await begun.wait()
    task.cancel()
    await asyncio.wait_for(ended.wait(), PATIENCE)
    assert router.proxy.counters.retried == 0


async def test_an_answer_that_breaks_off_reaches_the_client_as_a_failure(
    router: Router, raw: Raw, session: aiohttp.ClientSession
) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        writer.transport.abort()

    router.behind(await raw(half), await raw(half))
    with pytest.raises(aiohttp.ClientError):
        async with session.get(router.url) as answer:
            await answer.read()
    assert router.proxy.counters.failed == 1
    assert router.proxy.counters.retried == 0, "a request that was answered in part is not sent again"


async def test_a_kept_connection_that_died_is_no_failure_of_the_endpoint(
    router: Router, raw: Raw, session: aiohttp.ClientSession
) -> None:
    connections = 0

    async def one_answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    router.behind(await raw(one_answer_each))
    for _ in range(3):
        async with session.get(router.url) as answer:
            assert await answer.text() == "ok"
    assert connections == 3
    assert router.proxy.counters.retried == 0


async def test_a_server_that_closes_is_not_asked_again_on_that_connection(
    router: Router, raw: Raw, session: aiohttp.ClientSession
) -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end")
        await writer.drain()
        writer.close()

    router.behind(await raw(closing))
    for _ in range(2):
        async with session.get(router.url) as answer:
            assert await answer.text() == "until the end"
    assert router.proxy.counters.retried == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nbroken header\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n" + b"x" * 2000000, b"413"),
    ],
)
async def test_bad_requests_are_answered(router: Router, sent: bytes, status: bytes) -> None:
    reader, writer = await asyncio.open_connection(*router.address)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.readline(), PATIENCE)
    assert answer.split()[1] == status
    writer.close()


async def test_a_slow_client_holds_the_server_back(router: Router, raw: Raw) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass

    router.behind(await raw(flood))
    _, writer = await asyncio.open_connection(*router.address, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    before = -1
    while before != sent or sent == 0:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < 64 * 2**20, "buffers on the way are bounded"
    writer.transport.abort()
