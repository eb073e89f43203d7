"""The WorkerAdmin port over HTTP (docs/design.md §6.4)."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from evenflow_contract.environment import ADMIN_PORT, CONFIG_PATH, LENGTHS_PATH, STATE_PATH
from evenflow_contract.errors import ContractError
from evenflow_contract.reading import MAX_DOCUMENT_BYTES
from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import MAX_LENGTHS_BYTES, WorkerLengths, WorkerState
from evenflow_operator.adapters.http import TooLarge, base_url, read_bounded, session
from evenflow_operator.ports import WorkerError

CONCURRENCY = 64
TIMEOUT_SECONDS = 3.0


class HttpWorkerAdmin:
    """One session for all pods; close it when done."""

    def __init__(
        self, *, timeout: float = TIMEOUT_SECONDS, concurrency: int = CONCURRENCY, port: int = ADMIN_PORT
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._slots = asyncio.Semaphore(concurrency)
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def push(self, ip: str, config: WorkerConfig, token: str | None) -> int:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        body = config.to_json().encode()
        answer = await self._request("PUT", ip, CONFIG_PATH, MAX_DOCUMENT_BYTES, headers=headers, data=body)
        try:
            applied = json.loads(answer)["appliedGeneration"]
        except (ValueError, KeyError, TypeError):
            applied = None
        if not isinstance(applied, int) or isinstance(applied, bool):
            raise WorkerError(0, f"PUT {CONFIG_PATH}: the answer names no appliedGeneration")
        return applied

    async def state(self, ip: str) -> WorkerState:
        answer = await self._request("GET", ip, STATE_PATH, MAX_DOCUMENT_BYTES)
        try:
            return WorkerState.parse(answer)
        except ContractError as error:
            raise WorkerError(0, f"GET {STATE_PATH}: {error}") from error

    async def lengths(self, ip: str) -> WorkerLengths:
        answer = await self._request("GET", ip, LENGTHS_PATH, MAX_LENGTHS_BYTES)
        try:
            return WorkerLengths.parse(answer)
        except ContractError as error:
            raise WorkerError(0, f"GET {LENGTHS_PATH}: {error}") from error

    async def _request(
        self,
        method: str,
        ip: str,
        path: str,
        limit: int,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> bytes:
        if self._session is None:
            self._session = session()
        url = base_url(ip, self._port) + path
        options: dict[str, Any] = {"timeout": self._timeout, "allow_redirects": False}
        try:
            async with self._slots, self._session.request(method, url, headers=headers, data=data, **options) as answer:
                body = await read_bounded(answer, limit)
                if answer.status != 200:
                    text = body[:300].decode("utf-8", "replace")
                    raise WorkerError(answer.status, f"{method} {path}: HTTP {answer.status} {text}")
                return body
        except TimeoutError as error:
            raise WorkerError(0, f"{method} {path}: no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError, TooLarge) as error:
            raise WorkerError(0, f"{method} {path}: {type(error).__name__}: {str(error)[:200]}") from error
