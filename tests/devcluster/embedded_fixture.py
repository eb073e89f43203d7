"""A small HTTP client on an embedded cluster, for the tests beside it."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from evenflow_devcluster.embedded.cluster import EmbeddedCluster

PODS = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}
WAIT = 5.0


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


class Http:
    def __init__(self, cluster: EmbeddedCluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.session = session

    async def send(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        if body is not None:
            options["data"] = json.dumps(body)
            options.setdefault("headers", {}).setdefault("Content-Type", "application/json")
        async with self.session.request(method, self.cluster.url + path, **options) as response:
            return response.status, await response.json()

    async def good(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        status, answer = await self.send(method, path, body, **options)
        assert status < 300, answer
        return answer

    @asynccontextmanager
    async def watch(self, path: str, **params: Any) -> AsyncIterator["Events"]:
        query = {"watch": "true", **{key: str(value) for key, value in params.items()}}
        async with self.session.get(self.cluster.url + path, params=query) as response:
            yield Events(response)


class Events:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self._content = response.content

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event; ("END", {}) when the server has ended the watch."""
        line = await asyncio.wait_for(self._content.readline(), WAIT)
        if not line:
            return "END", {}
        event = json.loads(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        found = []
        for _ in range(count):
            kind, obj = await self.next()
            found.append((kind, obj["metadata"]["name"]))
        return found


@asynccontextmanager
async def embedded(folder: Path, **options: Any) -> AsyncIterator[Http]:
    cluster = await EmbeddedCluster.start(folder, **{"controllers": False, **options})
    try:
        # As a client would: everything from the kubeconfig.
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=_ca(config))
        headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            yield Http(cluster, session)
    finally:
        await cluster.stop()


def _ca(config: Any) -> str:
    return base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
