"""Open-loop replay: every request is sent when the trace says, whatever has become of those before it."""

import asyncio
import contextlib
import json
import logging
import random
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import aiohttp

from evenflow_devcluster.replay.results import ReplayResult, RequestOutcome, summarise
from evenflow_model.traces import TraceRequest

_TAIL = 16 * 1024
_RETRY_LIMIT = 2.0
_RETRY_STATUS = frozenset((408, 425, 429))

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The options of `replay`."""

    model: str
    time_scale: float
    max_tokens: int
    max_model_len: int
    attempts: int
    retry_base: float
    request_timeout: float


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Where a replay stands, in requests."""

    total: int = 0
    sent: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0


class _Refused(Exception):
    """An answer that a retry wouldn't change."""


class _Broken(Exception):
    """An attempt that failed and may be repeated."""


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def token_limit(request: TraceRequest, settings: ReplaySettings) -> int:
    """max_tokens of a request. Raises ValueError for one that can't produce its output under the limits."""
    limit = min(settings.max_tokens, settings.max_model_len - request.prompt_tokens)
    if limit < request.output_tokens:
        raise ValueError(
            f"a request of {request.prompt_tokens} + {request.output_tokens} tokens doesn't fit max_tokens "
            f"{settings.max_tokens} and max_model_len {settings.max_model_len}; cut the trace or raise the limits"
        )
    return limit


@lru_cache(maxsize=4)
def _zeros(count: int) -> str:
    return "0," * count


def request_body(request: TraceRequest, settings: ReplaySettings) -> bytes:
    """A streaming completion with a prompt of token ids; the output length is known to the engine alone."""
    # The prompt is cut from one long string: building a list of 60,000 numbers for every request costs too much.
    room = 1 << (request.prompt_tokens - 1).bit_length()
    prompt = _zeros(max(room, 1 << 16))[: 2 * request.prompt_tokens - 1]
    rest = {
        "model": settings.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": token_limit(request, settings),
        "temperature": 0,
        "vllm_xargs": {
            "traffic_class": request.traffic_class,
            "simulated_output_tokens": request.output_tokens,
        },
    }
    return f'{{"prompt":[{prompt}],{json.dumps(rest)[1:]}'.encode()


async def replay(
    requests: Sequence[TraceRequest],
    urls: Mapping[str, str],
    *,
    model: str,
    max_model_len: int,
    time_scale: float,
    max_tokens: int = 4096,
    attempts: int = 8,
    retry_base: float = 0.1,
    request_timeout: float = 600.0,
    rng: random.Random | None = None,
    on_progress: Callable[[ReplayProgress], None] | None = None,
) -> ReplayResult:
    """Send `requests`, sorted by arrival, each to the base URL of its class; cancelling ends every request.

    `time_scale` engine seconds pass per wall second; `retry_base` and `request_timeout` are wall seconds. `max_tokens`
    is the limit that every request names: the same for all, so that it doesn't tell the output length. `on_progress`
    is called after every send and every end and must be quick. Raises ValueError before anything is sent when a class
    has no URL or a request can't fit.
    """
    settings = ReplaySettings(model, time_scale, max_tokens, max_model_len, attempts, retry_base, request_timeout)
    return await _Replay(requests, urls, settings, rng or random.Random(), on_progress).run()


class _Replay:
    def __init__(
        self,
        requests: Sequence[TraceRequest],
        urls: Mapping[str, str],
        settings: ReplaySettings,
        rng: random.Random,
        on_progress: Callable[[ReplayProgress], None] | None,
    ) -> None:
        missing = sorted({request.traffic_class for request in requests} - urls.keys())
        if missing:
            raise ValueError(f"no URL for class {missing[0]!r}; known are {sorted(urls)}")
        for request in requests:
            token_limit(request, settings)
        self._requests = requests
        self._urls = {name: url.rstrip("/") + "/v1/completions" for name, url in urls.items()}
        self._settings = settings
        self._rng = rng
        self._on_progress = on_progress
        self._outcomes: list[RequestOutcome] = []
        self._sent = 0
        self._retried = 0
        self._failed = 0
        self._start = 0.0

    async def run(self) -> ReplayResult:
        raise_file_limit()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15)
        timeout = aiohttp.ClientTimeout(total=self._settings.request_timeout, sock_connect=5)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**18) as session,
            asyncio.TaskGroup() as group,
        ):
            self._start = asyncio.get_running_loop().time()
            for request in self._requests:
                delay = request.arrival_s / self._settings.time_scale - self._wall()
                if delay > 0:
                    await asyncio.sleep(delay)
                group.create_task(self._one(session, request))
        return summarise(self._outcomes)

    def _wall(self) -> float:
        return asyncio.get_running_loop().time() - self._start

    def _report(self) -> None:
        if self._on_progress is not None:
            completed = len(self._outcomes) - self._failed
            self._on_progress(ReplayProgress(len(self._requests), self._sent, completed, self._failed, self._retried))

    async def _one(self, session: aiohttp.ClientSession, request: TraceRequest) -> None:
        scale = self._settings.time_scale
        body = request_body(request, self._settings)
        sent = self._wall()
        self._sent += 1
        self._report()
        error = ""
        attempt = 0
        while attempt < self._settings.attempts:
            attempt += 1
            try:
                first = await self._attempt(session, request, body)
            except (_Broken, aiohttp.ClientError, TimeoutError, OSError) as failure:
                error = f"{type(failure).__name__}: {failure}"
                log.info("attempt %d of a %s request failed: %s", attempt, request.traffic_class, error)
                if attempt == 1:
                    self._retried += 1
                if attempt == self._settings.attempts:
                    break
                pause = min(_RETRY_LIMIT, self._settings.retry_base * 2 ** (attempt - 1))
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            except _Refused as failure:
                error = str(failure)
                break
            else:
                times = ((first - sent) * scale, (self._wall() - sent) * scale)
                self._outcomes.append(RequestOutcome(request, sent * scale, *times, attempt))
                self._report()
                return
        self._failed += 1
        self._outcomes.append(RequestOutcome(request, sent * scale, None, None, attempt, error))
        self._report()

    async def _attempt(self, session: aiohttp.ClientSession, request: TraceRequest, body: bytes) -> float:
        """One attempt; returns when the first token arrived, in wall seconds of the replay."""
        headers = {"Content-Type": "application/json", "x-traffic-class": request.traffic_class}
        async with session.post(self._urls[request.traffic_class], data=body, headers=headers) as response:
            if response.status != 200:
                text = f"{response.status}: {(await response.text())[:300]}"
                if response.status >= 500 or response.status in _RETRY_STATUS:
                    raise _Broken(text)
                raise _Refused(text)
            first: float | None = None
            tail = b""
            async for data in response.content.iter_any():
                if first is None and b"data:" in data:
                    first = self._wall()
                tail = (tail + data)[-_TAIL:]
        generated = generated_tokens(tail)
        if generated != request.output_tokens or first is None:
            raise _Broken(f"{generated} tokens came instead of {request.output_tokens}")
        return first


def generated_tokens(tail: bytes) -> int:
    """The completion tokens that a finished stream reports at its end. Raises _Broken for one that didn't finish."""
    *events, last = [line[5:].strip() for line in tail.split(b"\n") if line.startswith(b"data:")] or [b""]
    if last != b"[DONE]" or not events:
        raise _Broken(f"the stream ended with {last[:200]!r} instead of [DONE]")
    try:
        document = json.loads(events[-1])
    except ValueError:
        raise _Broken(f"the event before the end isn't JSON: {events[-1][:200]!r}") from None
    if "error" in document:
        raise _Broken(f"the server broke off: {json.dumps(document['error'])[:200]}")
    usage = document.get("usage") or {}
    count = usage.get("completion_tokens")
    if not isinstance(count, int):
        raise _Broken("the stream has no usage at its end")
    return count
