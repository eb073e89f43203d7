"""The admin API that both engines serve on the admin port (docs/design.md §6.4)."""

import hmac
import ipaddress
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from evenflow_contract import environment as env
from evenflow_contract.errors import ContractError
from evenflow_contract.reading import MAX_DOCUMENT_BYTES
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_worker.control.settings import Applied, Refused, SameAlready, Settings, Source, StaleGeneration

log = logging.getLogger(__name__)


class AdminEngine(Protocol):
    """What the admin API asks of an engine, from the admin server's event loop: must be cheap and thread-safe."""

    def state(self) -> WorkerState: ...

    def lengths(self) -> WorkerLengths: ...


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Who may push a config: the bearer of the token when a token file is set; without one, anybody on a loopback
    address, or anywhere once `write_open` says that a NetworkPolicy guards the port."""

    host: str
    token_file: Path | None = None
    write_open: bool = False

    @staticmethod
    def from_environment(host: str, environ: Mapping[str, str] = os.environ) -> "AdminAccess":
        token_file = environ.get(env.ENV_ADMIN_TOKEN_FILE)
        return AdminAccess(
            host=host,
            token_file=Path(token_file) if token_file else None,
            write_open=environ.get(env.ENV_ADMIN_WRITE) == "open",
        )

    def refusal(self, authorization: str | None) -> tuple[int, str] | None:
        """HTTP status and message if a push must be refused, else None."""
        if self.token_file is None:
            if self.write_open or is_loopback(self.host):
                return None
            return 403, (
                f"config pushes are not accepted on {self.host} without a token: set {env.ENV_ADMIN_TOKEN_FILE}, or "
                f"{env.ENV_ADMIN_WRITE}=open where a NetworkPolicy guards the port; the pod annotation still works"
            )
        try:
            token = read_token(self.token_file)
        except ContractError as error:
            log.error("admin token: %s", error)
            return 401, "the admin token is not readable on the worker; see its log"
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(_bytes(given.strip()), _bytes(token)):
            return None
        return 401, "send `Authorization: Bearer <token>` with the pool's admin token"


def _bytes(text: str) -> bytes:
    """Header bytes that aren't UTF-8 arrive as surrogates."""
    return text.encode("utf-8", "surrogateescape")


def is_loopback(host: str) -> bool:
    """True for loopback addresses and the name localhost; False for a wildcard or any other name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path) -> str:
    """The bearer token of the admin API, read anew each time because mounted secrets rotate.

    Raises ContractError if the file cannot be read or holds no token.
    """
    try:
        with path.open("rb") as file:
            token = file.read(4096).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(env.ENV_ADMIN_TOKEN_FILE, str(error), "mount a readable file with the token") from error
    if not token:
        raise ContractError(env.ENV_ADMIN_TOKEN_FILE, f"{path} is empty", "put the token into it")
    return token


def metrics_handler(registry: CollectorRegistry) -> Callable[[web.Request], Awaitable[web.Response]]:
    """`GET /metrics` of a registry in the format that the client accepts."""

    async def metrics(request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(registry), headers={"Content-Type": content_type})

    return metrics


def admin_app(
    engine: AdminEngine, settings: Settings, registry: CollectorRegistry, access: AdminAccess
) -> web.Application:
    """The aiohttp application; the caller binds it to EVENFLOW_ADMIN_HOST and EVENFLOW_ADMIN_PORT."""

    async def state(request: web.Request) -> web.Response:
        return web.json_response(engine.state().document())

    async def lengths(request: web.Request) -> web.Response:
        return web.json_response(engine.lengths().document())

    async def config(request: web.Request) -> web.Response:
        return web.json_response(settings.config.document())

    async def put_config(request: web.Request) -> web.Response:
        refusal = access.refusal(request.headers.get("Authorization"))
        if refusal is not None:
            status, message = refusal
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
            return _problem(status, message, headers=headers)
        try:
            document = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _problem(413, f"send at most {MAX_DOCUMENT_BYTES} bytes")
        return _answer(settings, document)

    app = web.Application(client_max_size=MAX_DOCUMENT_BYTES)
    app.router.add_get(env.METRICS_PATH, metrics_handler(registry))
    app.router.add_get(env.STATE_PATH, state)
    app.router.add_get(env.LENGTHS_PATH, lengths)
    app.router.add_get(env.CONFIG_PATH, config)
    app.router.add_put(env.CONFIG_PATH, put_config)
    return app


def _answer(settings: Settings, document: bytes) -> web.Response:
    match settings.apply(document, Source.PUSH):
        case Applied(generation):
            log.info("config generation %d applied from a push", generation)
            return web.json_response({"appliedGeneration": generation})
        case SameAlready(generation):
            return web.json_response({"appliedGeneration": generation})
        case StaleGeneration(generation, config_hash):
            return _problem(
                409,
                f"generation {generation} is applied; send a higher one",
                appliedGeneration=generation,
                configHash=config_hash,
            )
        case Refused(error):
            log.warning("pushed config refused, the last good one stays: %s", error)
            return _problem(422, str(error), field=error.field, found=error.found, remedy=error.remedy)


def _problem(status: int, message: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> web.Response:
    body = json.dumps({"error": message, **fields})
    return web.Response(status=status, text=body, content_type="application/json", headers=headers)
