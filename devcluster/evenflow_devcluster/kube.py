"""Raw JSON access to a Kubernetes API server through a kubeconfig: requests, and lists kept fresh by a watch."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as kube_config

Json = dict[str, Any]
Change = Callable[[Json | None, Json | None], None]
"""Called with (old, new): old is None for a new object, new is None for a deleted one. Must not block."""

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
_WATCH_SECONDS = 300
# A server sends bookmarks about once a minute, so a stream that is silent for longer is dead.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 30, sock_connect=5, sock_read=90)
_PAGE = 500
_MAX_LINE = 16 * 2**20

_NETWORK_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)

log = logging.getLogger(__name__)


class KubeError(Exception):
    """An answer other than 2xx. `status` is the HTTP code, `reason` the machine-readable one of the Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class KubeClient:
    """Requests to one API server. Close it, or use it as an async context manager."""

    def __init__(self, api_client: Any) -> None:
        self._api = api_client
        self._host: str = api_client.configuration.host

    @classmethod
    async def connect(cls, kubeconfig: Path | str) -> "KubeClient":
        """Read the kubeconfig. No request is made."""
        return cls(await kube_config.new_client_from_config(config_file=str(kubeconfig), persist_config=False))

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()

    async def get(self, path: str, **query: str) -> Json:
        return await self._json("GET", path, query)

    async def create(self, path: str, body: Json) -> Json:
        return await self._json("POST", path, {}, body)

    async def patch(self, path: str, body: Json, *, content_type: str = MERGE_PATCH, **query: str) -> Json:
        return await self._json("PATCH", path, query, body, content_type)

    async def delete(self, path: str, *, uid: str | None = None, grace_seconds: int | None = None) -> Json:
        """Options travel in the body: a DELETE with a body ignores its query parameters (docs/kubernetes.md §2.1)."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._json("DELETE", path, {}, options)

    async def list(self, path: str, **query: str) -> tuple[list[Json], str]:
        """All items, page by page, and the resourceVersion to watch from."""
        items: list[Json] = []
        token = ""
        while True:
            page = await self.get(path, **query, limit=str(_PAGE), **({"continue": token} if token else {}))
            items.extend(page.get("items") or [])
            meta = page.get("metadata") or {}
            token = meta.get("continue") or ""
            if not token:
                return items, str(meta.get("resourceVersion", ""))

    async def watch(self, path: str, resource_version: str, **query: str) -> AsyncIterator[Json]:
        """Watch events, bookmarks included, until the server ends the stream."""
        query |= {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        response = await self._send("GET", path, query, None, None, _WATCH_TIMEOUT)
        try:
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                if len(pending) > _MAX_LINE:
                    raise KubeError(500, "InternalError", f"a watch event of more than {_MAX_LINE} bytes")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
        finally:
            response.close()

    async def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        content_type: str | None = None,
    ) -> Json:
        response = await self._send(method, path, query, body, content_type, _REQUEST_TIMEOUT)
        data: Json = json.loads(await response.read() or b"{}")
        return data

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        content_type: str | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": "evenflow-devcluster"}
        if body is not None:
            headers["Content-Type"] = content_type or "application/json"
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        answer = await self._api.call_api(method, url, header_params=headers, body=body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 400:
            raise _error(response.status, await response.read())
        return response


def _error(status: int, body: bytes) -> KubeError:
    try:
        document = json.loads(body)
        return KubeError(status, str(document.get("reason", "")), str(document.get("message", ""))[:500])
    except (ValueError, AttributeError):
        return KubeError(status, "", body[:200].decode(errors="replace"))


class Informer:
    """Keeps the objects under one list path in `store` (by namespace/name) and reports every change.

    A dropped stream is resumed from the last resourceVersion; 410 Gone, and anything not understood, leads to a new
    list. Failures back off from 0.1 s to 10 s with jitter, and never end `run`.
    """

    def __init__(self, client: KubeClient, path: str, on_change: Change, *, rng: random.Random, **query: str) -> None:
        self.store: dict[str, Json] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._path = path
        self._query = query
        self._on_change = on_change
        self._rng = rng
        self._version = ""

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._relist()
                await self._follow()
                failures = 0
            except KubeError as error:
                if error.status == 410:
                    self._version = ""
                    continue
                failures += 1
                log.warning("watch of %s: %s", self._path, error)
            except _NETWORK_ERRORS as error:
                failures += 1
                log.info("watch of %s dropped: %s", self._path, error or type(error).__name__)
            except ValueError as error:
                self._version = ""
                failures += 1
                log.warning("watch of %s sent what isn't JSON: %s", self._path, error)
            # Never straight back: a server that ends every stream at once must not be hammered.
            await asyncio.sleep(min(10.0, 0.1 * 2 ** min(failures, 7)) * self._rng.uniform(0.5, 1.0))

    async def _relist(self) -> None:
        items, version = await self._client.list(self._path, **self._query)
        fresh = {_key(item): item for item in items}
        for key in [key for key in self.store if key not in fresh]:
            self._apply(key, None)
        for key, item in fresh.items():
            self._apply(key, item)
        self._version = version
        self.synced.set()

    async def _follow(self) -> None:
        async for event in self._client.watch(self._path, self._version, **self._query):
            kind, item = event.get("type"), event.get("object") or {}
            if kind == "ERROR":
                # Whatever it is, the way back is a new list.
                self._version = ""
                raise KubeError(int(item.get("code") or 500), str(item.get("reason", "")), str(item.get("message", "")))
            version = (item.get("metadata") or {}).get("resourceVersion")
            if version:
                self._version = str(version)
            if kind in ("ADDED", "MODIFIED"):
                self._apply(_key(item), item)
            elif kind == "DELETED":
                self._apply(_key(item), None)

    def _apply(self, key: str, item: Json | None) -> None:
        old = self.store.get(key)
        if item is None:
            if old is None:
                return
            del self.store[key]
        else:
            if old is not None and old["metadata"].get("resourceVersion") == item["metadata"].get("resourceVersion"):
                return
            self.store[key] = item
            if old is not None and old["metadata"].get("uid") != item["metadata"].get("uid"):
                # Deleted and made again between two lists: two objects, so two changes.
                self._on_change(old, None)
                old = None
        self._on_change(old, item)


def _key(item: Json) -> str:
    meta = item["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"
