"""A plain HTTP client of a Kubernetes API server, made from a kubeconfig: requests in, answers out, nothing hidden."""

import asyncio
import base64
import json
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

PATIENCE = 20.0
"""Seconds that a controller of a real cluster may take."""
DISCOVERY_PATIENCE = 75.0
"""A real garbage collector and disruption controller learn of a new kind every 30 s."""


def url(resource: str, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    """The path of `pods`, `leases.coordination.k8s.io`, `gadgets.example.com`; every group here is served as v1."""
    plural, _, group = resource.partition(".")
    parts = ["/apis/" + group if group else "/api", "v1"]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(plural)
    parts += [part for part in (name, sub) if part is not None]
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Access:
    """What a kubeconfig's current context says."""

    server: str
    token: str | None
    tls: ssl.SSLContext

    @classmethod
    def read(cls, kubeconfig: Path) -> "Access":
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        tls = ssl.create_default_context()
        if "certificate-authority-data" in cluster:
            tls.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        elif "certificate-authority" in cluster:
            tls.load_verify_locations(cafile=cluster["certificate-authority"])
        if "client-certificate-data" in user:
            with tempfile.TemporaryDirectory() as folder:
                certificate, key = Path(folder, "crt"), Path(folder, "key")
                certificate.write_bytes(base64.b64decode(user["client-certificate-data"]))
                key.write_bytes(base64.b64decode(user["client-key-data"]))
                tls.load_cert_chain(certificate, key)
        elif "client-certificate" in user:
            tls.load_cert_chain(user["client-certificate"], user["client-key"])
        return cls(cluster["server"].rstrip("/"), user.get("token"), tls)


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


class Client:
    def __init__(self, access: Access, session: aiohttp.ClientSession) -> None:
        self._access = access
        self._session = session

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
        **params: Any,
    ) -> Answer:
        """Send as is: `body` may be an object or raw text, `params` become the query."""
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        headers = {"Accept": accept, **self._authorization(token)}
        if data is not None:
            headers["Content-Type"] = content_type
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with self._session.request(
            method, self._access.server + path, data=data, headers=headers, params=_query(params), timeout=timeout
        ) as response:
            text = await response.text()
            # The OpenAPI index is JSON that calls itself plain text.
            body = json.loads(text) if "json" in response.content_type or text.startswith("{") else text
            return Answer(response.status, body, response.headers.getall("Warning", []))

    def _authorization(self, token: str | None) -> dict[str, str]:
        token = token or self._access.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The body of an answer that must be a success."""
        answer = await self.send(method, path, body, **options)
        assert 200 <= answer.status < 300, f"{method} {path}: {answer.status} {answer.body}"
        return answer.body

    async def refused(self, code: int, method: str, path: str, body: Any = None, **options: Any) -> Object:
        """The Status of an answer that must be this error."""
        answer = await self.send(method, path, body, **options)
        assert answer.status == code, f"{method} {path}: {answer.status} instead of {code}: {answer.body}"
        status: Object = answer.body
        assert isinstance(status, dict), f"{method} {path}: {code} without a Status: {status!r}"
        assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
        assert status["code"] == code
        return status

    async def get(self, resource: str, namespace: str | None, name: str) -> Object:
        found: Object = await self.ok("GET", url(resource, namespace, name))
        return found

    async def create(self, resource: str, namespace: str | None, body: Object, **params: Any) -> Object:
        created: Object = await self.ok("POST", url(resource, namespace), body, **params)
        return created

    async def patch(
        self,
        resource: str,
        namespace: str | None,
        name: str,
        patch: Any,
        *,
        kind: str = MERGE,
        sub: str | None = None,
        **params: Any,
    ) -> Object:
        path = url(resource, namespace, name, sub)
        patched: Object = await self.ok("PATCH", path, patch, content_type=kind, **params)
        return patched

    async def delete(
        self, resource: str, namespace: str | None, name: str, options: Object | None = None, **params: Any
    ) -> Object:
        answer: Object = await self.ok("DELETE", url(resource, namespace, name), options, **params)
        return answer

    async def items(self, resource: str, namespace: str | None, **params: Any) -> list[Object]:
        listed: list[Object] = (await self.ok("GET", url(resource, namespace), **params))["items"] or []
        return listed

    async def names(self, resource: str, namespace: str | None, **params: Any) -> list[str]:
        return sorted(item["metadata"]["name"] for item in await self.items(resource, namespace, **params))

    async def exists(self, resource: str, namespace: str | None, name: str) -> bool:
        answer = await self.send("GET", url(resource, namespace, name))
        assert answer.status in (200, 404), answer
        return answer.status == 200

    async def gone(
        self, resource: str, namespace: str | None, name: str, patience: float = PATIENCE, uid: str | None = None
    ) -> None:
        """Wait until the object isn't there (or another has its name)."""

        async def check() -> bool:
            answer = await self.send("GET", url(resource, namespace, name))
            return answer.status == 404 or (uid is not None and answer.body["metadata"]["uid"] != uid)

        await eventually(check, f"{resource} {name} is gone", patience)

    async def settled(
        self,
        resource: str,
        namespace: str | None,
        name: str,
        condition: Callable[[Object], Any],
        patience: float = PATIENCE,
    ) -> Object:
        """Wait until the object satisfies the condition; returns it."""
        found: Object = {}

        async def check() -> bool:
            nonlocal found
            found = await self.get(resource, namespace, name)
            return bool(condition(found))

        await eventually(check, lambda: f"{resource} {name} as wanted, last {json.dumps(found)}", patience)
        return found

    @asynccontextmanager
    async def watch(self, resource: str, namespace: str | None, **params: Any) -> AsyncIterator["Watch"]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE)
        async with self._session.get(
            self._access.server + url(resource, namespace),
            params=_query({"watch": "true", **params}),
            headers=self._authorization(None),
            timeout=timeout,
        ) as response:
            yield Watch(response)


class Watch:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    async def next(self, patience: float = PATIENCE) -> Object | None:
        """The next event, None when the server ended the stream."""
        async with asyncio.timeout(patience):
            line = await self._response.content.readline()
        return json.loads(line) if line.strip() else None

    async def take(self, count: int, patience: float = PATIENCE) -> list[tuple[str, str]]:
        """Type and object name of the next `count` events that aren't bookmarks."""
        found: list[tuple[str, str]] = []
        while len(found) < count:
            event = await self.next(patience)
            assert event is not None, f"the watch ended after {found}"
            if event["type"] != "BOOKMARK":
                found.append((event["type"], event["object"]["metadata"]["name"]))
        return found

    async def rest(self, patience: float = PATIENCE) -> list[Object]:
        """Every event up to the end of the stream."""
        events = []
        while (event := await self.next(patience)) is not None:
            events.append(event)
        return events


def _query(params: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in params.items()}


async def eventually(
    check: Callable[[], Awaitable[Any]], what: str | Callable[[], str], patience: float = PATIENCE
) -> None:
    """Ask again until true; fails with `what` was expected after `patience` seconds."""
    deadline = time.monotonic() + patience
    pause = 0.005
    while not await check():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience} s: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.5)
