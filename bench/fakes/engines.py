"""Engines that only answer: many addresses, one process, for what an operator asks of them."""

import asyncio
import json
import os
import resource
import socket
import time
from collections import Counter

from evenflow_contract import environment, metrics
from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import ClassLengths, WorkerLengths, WorkerState

KV_TOKENS = 430_000
STEPS_PER_SECOND = 40
SPARE_FILES = 2000
_OTHERS = "".join(
    f'vllm:phase_{number // 20}_seconds_bucket{{engine="0",le="{number % 20}",model_name="m"}} 0\n'
    for number in range(400)
)
"""A page of vLLM has hundreds of series that the operator doesn't read."""
_ENGINE_PAGE = f"""{_OTHERS}\
{metrics.VLLM_RUNNING}{{engine="0"}} 20
{metrics.VLLM_WAITING}{{engine="0"}} 2
{metrics.VLLM_PREEMPTIONS}{{engine="0"}} 0
{metrics.VLLM_GENERATION_TOKENS}{{engine="0"}} %(tokens)d
{metrics.VLLM_ITERATION_TOKENS_COUNT}{{engine="0"}} %(steps)d
"""
_WORKER_PAGE = f"""\
{metrics.ADMITTED_REQUESTS}{{traffic_class="chat",kind="new"}} %(requests)d
{metrics.COMPLETED_REQUESTS}{{traffic_class="chat"}} %(requests)d
{metrics.EVICTIONS}{{traffic_class="chat"}} 0
{metrics.ITERATIONS} %(steps)d
{metrics.RECOMPUTED_TOKENS} 0
{metrics.KV_CAPACITY_TOKENS} {KV_TOKENS}
{metrics.APPLIED_GENERATION} %(generation)d
{metrics.KV_USAGE_PEAK_RATIO}{{window="10s"}} 0.6
{metrics.KV_USAGE_PEAK_RATIO}{{window="30s"}} 0.6
{metrics.KV_USAGE_PEAK_RATIO}{{window="60s"}} 0.6
"""


class StubEngines:
    """Every engine runs 20 requests, evicts nothing and applies what it is told. Close it in the end."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(1, (soft - SPARE_FILES) // 2)
        self._net = f"127.{128 + os.getpid() % 64}"
        self._configs: dict[str, WorkerConfig] = {}
        self._servers: list[asyncio.Server] = []
        self._began = time.monotonic()
        self._started = 0
        self._lengths = json.dumps(_lengths().document()).encode()
        self.pushed: Counter[float | None] = Counter()
        """Configs taken, by cap."""

    async def start(self, config: WorkerConfig) -> str:
        """Address of one more engine. Where files run out, those that come late share addresses with the first."""
        number = self._started % self._most
        address = f"{self._net}.{number // 250}.{number % 250 + 1}"
        self._started += 1
        if address not in self._configs:
            for port in (environment.ENGINE_PORT, environment.ADMIN_PORT):
                listener = socket.socket()
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port))
                server = await asyncio.get_running_loop().create_server(lambda: _Answers(self), sock=listener)
                self._servers.append(server)
        self._configs[address] = config
        return address

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def answer(self, address: str, port: int, path: str, body: bytes) -> bytes:
        config = self._configs[address]
        if path == environment.CONFIG_PATH:
            config = self._configs[address] = WorkerConfig.parse(body)
            self.pushed[config.admission.per_iteration] += 1
            return json.dumps({"appliedGeneration": config.generation}).encode()
        steps = int((time.monotonic() - self._began) * STEPS_PER_SECOND)
        if path == environment.STATE_PATH:
            return json.dumps(_state(config, steps).document()).encode()
        if path == environment.LENGTHS_PATH:
            return self._lengths
        page = _ENGINE_PAGE if port == environment.ENGINE_PORT else _WORKER_PAGE
        figures = {"steps": steps, "tokens": 20 * steps, "requests": steps // 10, "generation": config.generation}
        return (page % figures).encode()


class _Answers(asyncio.Protocol):
    """As much of HTTP as the operator's client speaks: one request after the other on a connection that stays."""

    def __init__(self, engines: StubEngines) -> None:
        self._engines = engines
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address, self._port = transport.get_extra_info("sockname")

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = int(fields.get("content-length", 0))
        if len(rest) < length:
            return
        self._received = rest[length:]
        body = self._engines.answer(self._address, self._port, lines[0].split(" ")[1], rest[:length])
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def _state(config: WorkerConfig, steps: int) -> WorkerState:
    return WorkerState(
        applied_generation=config.generation,
        config_hash=config.content_hash(),
        engine="stub",
        scheduler="evenflow",
        policy=config.policy,
        kv_capacity_tokens=KV_TOKENS,
        block_size=16,
        iterations=steps,
        running=20,
        waiting=2,
        in_flight={"chat": 20},
    )


def _lengths() -> WorkerLengths:
    """What a worker has learnt: 400 distinct lengths per class, as spread as chats are."""
    outputs = {length: 1.0 / length for length in range(1, 801, 2)}
    chat = ClassLengths(completed=2000, outputs=outputs, prompt_mean=1024.0, prompt_quantiles={0.5: 900.0, 0.9: 2000.0})
    return WorkerLengths({"chat": chat, "code": chat})
