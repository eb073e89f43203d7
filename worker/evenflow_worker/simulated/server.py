"""The OpenAI-compatible HTTP server of the simulated engine."""

import asyncio
import logging
import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from evenflow_contract.environment import METRICS_PATH, TRAFFIC_CLASS_HEADER
from evenflow_model.fleet.records import FinishedRequest, RequestTooLarge
from evenflow_worker.control.admin import metrics_handler
from evenflow_worker.control.classes import route
from evenflow_worker.metrics import WorkerMetrics
from evenflow_worker.simulated.openai import (
    DONE,
    MAX_BODY_BYTES,
    Answer,
    ApiError,
    ApiRequest,
    Kind,
    event,
    parse_request,
    usage_of,
)
from evenflow_worker.simulated.runner import EngineRunner, EngineStopped, Generation, GenerationSpec, QueueFull

log = logging.getLogger(__name__)

TIMINGS_HEADER = "x-evenflow-timings"
DEFAULT_MEAN_OUTPUT = 200.0
OUTPUT_SPREAD = 0.6
"""Coefficient of variation of drawn output lengths: the default spread of a traffic class."""
BODY_TIMEOUT_SECONDS = 30.0
WRITE_TIMEOUT_SECONDS = 60.0
"""Wall seconds that a client gets to take a chunk before it counts as gone."""

_INTERNAL = "InternalServerError"
_STOPPED = ApiError(500, "the engine stopped before the answer was complete", kind=_INTERNAL)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A request whose choices are all in the engine. `changed` is set whenever one of them moves."""

    request: ApiRequest
    answer: Answer
    generations: tuple[Generation, ...]
    changed: asyncio.Event
    timings: bool
    misrouted: bool

    @property
    def done(self) -> bool:
        return all(generation.finished is not None for generation in self.generations)

    async def wait(self) -> None:
        """Until a choice moved; raises EngineStopped."""
        await self.changed.wait()
        self.changed.clear()
        if any(generation.failed for generation in self.generations):
            raise EngineStopped

    def usage(self) -> dict[str, int]:
        # A prompt counts once, however many answers it gets.
        return usage_of(sum(self.request.prompts), sum(generation.produced for generation in self.generations))


class ApiServer:
    """Handlers of the OpenAI API. `closing` turns readiness off and ends every connection with its answer."""

    def __init__(
        self,
        runner: EngineRunner,
        metrics: WorkerMetrics,
        registry: CollectorRegistry,
        *,
        model_names: tuple[str, ...],
        version: str,
        stream_interval: int,
        seed: int,
    ) -> None:
        self._runner = runner
        self._metrics = metrics
        self._models = model_names
        self._version = version
        self._stream_interval = stream_interval
        self._random = random.Random(seed)
        self._started = int(time.time())
        self.closing = False
        self.app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._errors])
        self.app.router.add_post("/v1/completions", self._completions)
        self.app.router.add_post("/v1/chat/completions", self._chat)
        self.app.router.add_get("/v1/models", self._list_models)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/version", self._show_version)
        self.app.router.add_get(METRICS_PATH, metrics_handler(registry))

    # ------------------------------------------------------------------ small handlers

    @web.middleware
    async def _errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except ApiError as error:
            response = _error_response(error)
        except RequestTooLarge as error:
            response = _error_response(ApiError(400, str(error), param="max_tokens"))
        except QueueFull as error:
            response = _error_response(ApiError(503, str(error), kind="ServiceUnavailableError"))
        except EngineStopped:
            response = _error_response(_STOPPED)
        except web.HTTPException as error:
            response = _error_response(
                ApiError(error.status, f"{request.method} {request.path}: {error.reason}", kind="HTTPError")
            )
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            response = _error_response(
                ApiError(500, "internal error; see the server's log", kind="InternalServerError")
            )
        if self.closing and not response.prepared:
            response.force_close()
        return response

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.closing else 200)

    async def _show_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self._version})

    async def _list_models(self, request: web.Request) -> web.Response:
        models: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "evenflow",
                "root": self._models[0],
                "parent": None,
                "max_model_len": self._runner.core.spec.max_model_len,
                "permission": [],
            }
            for name in self._models
        ]
        return web.json_response({"object": "list", "data": models})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve("completion", request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve("chat", request)

    # ------------------------------------------------------------------ generation

    async def _serve(self, kind: Kind, http: web.Request) -> web.StreamResponse:
        parsed = parse_request(kind, await _body(http))
        if parsed.model is not None and parsed.model not in self._models:
            message = f"The model `{parsed.model}` does not exist; this server has {', '.join(self._models)}."
            raise ApiError(404, message, kind="NotFoundError", param="model")
        accepted = self._accept(parsed, http)
        try:
            if parsed.stream:
                return await self._stream(accepted, http)
            return await self._whole(accepted)
        finally:
            # Also when the client has gone: aiohttp cancels the handler, and the KV memory is free at once.
            for generation in accepted.generations:
                self._runner.abort(generation)

    def _accept(self, parsed: ApiRequest, http: web.Request) -> _Accepted:
        config = self._runner.settings.config
        where = route(config, http.headers.get(TRAFFIC_CLASS_HEADER) or parsed.traffic_class)
        identifier = ("cmpl-" if parsed.kind == "completion" else "chatcmpl-") + uuid.uuid4().hex
        changed = asyncio.Event()
        generations: list[Generation] = []
        arrival = self._runner.clock.now()
        try:
            for position, prompt in enumerate(parsed.prompts):
                spec = self._spec(parsed, prompt, where.traffic_class, arrival)
                for choice in range(parsed.n):
                    name = f"{identifier}-{position * parsed.n + choice}"
                    drawn = replace(spec, request_id=name, output_tokens=self._output_tokens(parsed, spec))
                    generations.append(self._runner.submit(drawn, changed))
        except (RequestTooLarge, QueueFull, EngineStopped, ApiError):
            for generation in generations:
                self._runner.abort(generation)
            raise
        if where.misrouted:
            self._metrics.misrouted()
        return _Accepted(
            request=parsed,
            answer=Answer(parsed.kind, identifier, parsed.model or self._models[0], int(time.time())),
            generations=tuple(generations),
            changed=changed,
            timings=http.headers.get(TIMINGS_HEADER, "").lower() == "true",
            misrouted=where.misrouted,
        )

    def _spec(self, parsed: ApiRequest, prompt: int, traffic_class: str, arrival_s: float) -> GenerationSpec:
        """Without max_tokens an answer may fill what the model's length and the KV memory leave."""
        core = self._runner.core
        room = core.max_request_tokens - prompt
        limit = core.spec.max_model_len
        if prompt >= limit or (parsed.max_tokens is not None and prompt + parsed.max_tokens > limit):
            asked = parsed.max_tokens or 1
            raise ApiError(
                400,
                f"This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens "
                f"and your prompt contains at least {prompt} input tokens, for a total of at least {prompt + asked} "
                "tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
                param="max_tokens" if prompt < limit else None,
            )
        return GenerationSpec(
            request_id="",
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=1,
            max_tokens=parsed.max_tokens or max(room, 1),
            traffic_class=traffic_class,
            interval=self._stream_interval if parsed.stream else None,
        )

    def _output_tokens(self, parsed: ApiRequest, spec: GenerationSpec) -> int:
        """Where the answer stops by itself: hidden length if given, else drawn from the class's prior."""
        if parsed.ignore_eos:
            return spec.max_tokens
        length = parsed.simulated_output_tokens
        if length is None:
            prior = self._runner.settings.config.class_priors.get(spec.traffic_class)
            mean = prior.output_tokens if prior is not None and prior.output_tokens > 0 else DEFAULT_MEAN_OUTPUT
            variance = math.log1p(OUTPUT_SPREAD**2)
            length = round(self._random.lognormvariate(math.log(mean) - variance / 2.0, math.sqrt(variance)))
        return max(min(max(length, parsed.min_tokens), spec.max_tokens), 1)

    async def _whole(self, accepted: _Accepted) -> web.Response:
        while not accepted.done:
            await accepted.wait()
        finished = _results(accepted)
        document = accepted.answer.whole([(item.output_tokens, item.reason) for item in finished], accepted.usage())
        if accepted.timings:
            document["evenflow"] = _timings(finished)
        response = web.json_response(document)
        if accepted.misrouted:
            response.force_close()
        return response

    async def _stream(self, accepted: _Accepted, http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        if accepted.misrouted or self.closing:
            response.force_close()
        await response.prepare(http)
        try:
            await self._send(accepted, response)
        except (ConnectionError, TimeoutError):
            log.info("a client left, or took no data for %g s: %s", WRITE_TIMEOUT_SECONDS, accepted.answer.response_id)
            response.force_close()
        return response

    async def _send(self, accepted: _Accepted, response: web.StreamResponse) -> None:
        sent = [-1 if accepted.request.kind == "chat" else 0] * len(accepted.generations)
        try:
            while not accepted.done:
                await accepted.wait()
                await _write(response, _new_chunks(accepted, sent))
            await _write(response, self._tail(accepted) + DONE)
        except EngineStopped:
            await _write(response, event(_STOPPED.document()))
        await response.write_eof()

    def _tail(self, accepted: _Accepted) -> bytes:
        document = accepted.answer.tail()
        if accepted.request.include_usage:
            document["usage"] = accepted.usage()
        if accepted.timings:
            document["evenflow"] = _timings(_results(accepted))
        return event(document) if accepted.request.include_usage or accepted.timings else b""


def _error_response(error: ApiError) -> web.Response:
    return web.json_response(error.document(), status=error.status)


async def _body(http: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            return await http.read()
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_SECONDS:g} s", kind="Timeout") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", kind="RequestTooLarge") from error


async def _write(response: web.StreamResponse, data: bytes) -> None:
    if data:
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            await response.write(data)


def _new_chunks(accepted: _Accepted, sent: list[int]) -> bytes:
    """What hasn't been sent yet; `sent` is moved on. Tokens that came while the client was slow go in one chunk."""
    parts: list[bytes] = []
    for index, generation in enumerate(accepted.generations):
        produced, finished = generation.produced, generation.finished
        if produced and sent[index] < 0:
            parts.append(event(accepted.answer.role(index)))
            sent[index] = 0
        if produced > sent[index] >= 0:
            reason = finished.reason if finished is not None else None
            parts.append(event(accepted.answer.chunk(index, produced - sent[index], reason)))
            sent[index] = produced
    return b"".join(parts)


def _results(accepted: _Accepted) -> list[FinishedRequest]:
    return [generation.finished for generation in accepted.generations if generation.finished is not None]


def _timings(finished: list[FinishedRequest]) -> dict[str, Any]:
    """Engine seconds since the arrival: of the first choice to start, the last to end, and evictions of all."""
    return {
        "queue_s": max(min(item.admitted_s - item.arrival_s for item in finished), 0.0),
        "ttft_s": min(item.first_token_s - item.arrival_s for item in finished),
        "latency_s": max(item.finished_s - item.arrival_s for item in finished),
        "evictions": sum(item.evictions for item in finished),
    }
