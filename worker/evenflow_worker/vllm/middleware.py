"""`--middleware evenflow_worker.vllm.TrafficClassMiddleware`: a request's class from its header, for the scheduler.

vLLM carries `vllm_xargs` of the body to the scheduler, but no header. Pure ASGI: streaming isn't touched.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from evenflow_contract import environment as env
from evenflow_contract.errors import ContractError
from evenflow_contract.names import check_class_name
from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.control.classes import route
from evenflow_worker.control.config_file import ConfigFile
from evenflow_worker.control.settings import Settings
from evenflow_worker.vllm.json_edit import set_nested_string
from evenflow_worker.vllm.logs import join_vllm_log
from evenflow_worker.vllm.pushed import config_url, follow_pushes

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS: Final = ("/completions", "/responses", "/messages")
"""Ends of the paths whose bodies may have `vllm_xargs`."""
MAX_BODY_BYTES: Final = 64 * 2**20
POLL_SECONDS: Final = 0.25
HEADER: Final = env.TRAFFIC_CLASS_HEADER.encode()
XARGS: Final = "vllm_xargs"


class TrafficClassMiddleware:
    """Writes the header's class into the body; answers `Connection: close` where the request should go elsewhere.

    Its config is the file's, or what the engine was pushed, whichever is newer; `follow` is the loop that asks for that
    while the application runs. No request waits for either.
    """

    def __init__(
        self,
        app: App,
        *,
        config_path: Path | None = None,
        follow: Callable[[Settings], Coroutine[Any, Any, None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        join_vllm_log()
        self._app = app
        self._settings = Settings(_nothing)
        path = config_path or Path(os.environ.get(env.ENV_CONFIG) or env.DEFAULT_CONFIG_PATH)
        self._file = ConfigFile(path, self._settings)
        url = config_url()
        if follow is None and url is not None:
            follow = partial(follow_pushes, url=url)
        self._follow = follow
        self._clock = clock
        self._next_poll = -1.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" and self._follow is not None:
            # That call lasts as long as the application does.
            task = asyncio.create_task(self._follow(self._settings))
            try:
                await self._app(scope, receive, send)
            finally:
                task.cancel()
            return
        if scope["type"] != "http" or scope.get("method") != "POST":
            await self._app(scope, receive, send)
            return
        name = _class_of(scope)
        if self._misrouted(name):
            send = _closing(send)
        if name is None or not scope["path"].endswith(PATHS):
            await self._app(scope, receive, send)
            return
        body, rest = await _read(receive)
        if rest is None:
            scope = {**scope, "headers": list(scope["headers"])}
            body = set_nested_string(body, XARGS, env.TRAFFIC_CLASS_ARG, name)
            _set_length(scope, len(body))
        await self._app(scope, _replay(body, rest, receive), send)

    def _misrouted(self, name: str | None) -> bool:
        try:
            now = self._clock()
            if now >= self._next_poll:
                self._next_poll = now + POLL_SECONDS
                self._file.poll()
            return route(self._settings.config, name).misrouted
        except Exception:
            log.exception("evenflow: the config file could not be followed")
            return False


def _nothing(config: WorkerConfig) -> None:
    """The middleware only remembers the config."""


def _class_of(scope: Scope) -> str | None:
    """The header's class if it is a possible one; anything else counts as no class."""
    for key, value in scope["headers"]:
        if key.lower() == HEADER:
            try:
                return check_class_name(value.decode("ascii").strip(), env.TRAFFIC_CLASS_HEADER)
            except (UnicodeDecodeError, ContractError):
                return None
    return None


async def _read(receive: Receive) -> tuple[bytes, Message | None]:
    """The whole body; or, if it doesn't end as it should, what came and the message that has to follow it."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts), message
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            return b"".join(parts), None
        if size > MAX_BODY_BYTES:
            return b"".join(parts), {"type": "http.request", "body": b"", "more_body": True}


def _replay(body: bytes, rest: Message | None, receive: Receive) -> Receive:
    queued: list[Message] = [{"type": "http.request", "body": body, "more_body": rest is not None}]
    if rest is not None:
        queued.append(rest)

    async def replayed() -> Message:
        return queued.pop(0) if queued else await receive()

    return replayed


def _set_length(scope: Scope, length: int) -> None:
    scope["headers"] = [
        (key, str(length).encode()) if key.lower() == b"content-length" else (key, value)
        for key, value in scope["headers"]
    ]


def _closing(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", []) if pair[0].lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        await send(message)

    return wrapped
