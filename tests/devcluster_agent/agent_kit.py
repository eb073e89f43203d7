"""What the tests of the node agent share: pods that answer, and a cluster that waits for what is to come true."""

import asyncio
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from evenflow_devcluster.kube import KubeClient, KubeError
from evenflow_devcluster.local import LocalCluster

Json = dict[str, Any]
PATIENCE = 20.0
PODS = "/api/v1/namespaces/default/pods"

SERVER = textwrap.dedent("""
    import http.server, os, pathlib, sys
    root = pathlib.Path(os.environ.get("ROOT", "."))
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_GET(self):
            name = self.path.strip("/")
            if name == "crash":
                os._exit(3)
            if name == "pid":
                data, status = str(os.getpid()).encode(), 200
            elif name.startswith("env/"):
                data, status = os.environ.get(name[4:], "").encode(), 200
            else:
                file = root / name
                status = 200 if file.exists() else 503
                data = file.read_bytes() if file.is_file() else b"-"
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        def log_message(self, *args):
            pass
    print("listening on", os.environ["IP"], flush=True)
    http.server.ThreadingHTTPServer((os.environ["IP"], 8000), Handler).serve_forever()
""")
IP = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@dataclass
class World:
    cluster: LocalCluster
    client: KubeClient
    serial: int = 0

    def name(self) -> str:
        self.serial += 1
        return f"pod-{self.serial}"

    async def create(self, container: Json, **spec: Any) -> str:
        name = spec.pop("name", None) or self.name()
        metadata = {"name": name, "labels": {"app": name}, "annotations": spec.pop("annotations", {})}
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [{"name": "engine", "image": "none", **container}], **spec},
        }
        await self.client.create(PODS, document)
        return name

    async def get(self, name: str) -> Json:
        return await self.client.get(f"{PODS}/{name}")

    async def until(self, name: str, wanted: Callable[[Json], bool]) -> Json:
        pod: Json = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while not wanted(pod := await self.get(name)):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"never came true; last status: {pod.get('status')}") from None
        return pod

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.exists(name):
                await asyncio.sleep(0.02)

    async def exists(self, name: str) -> bool:
        try:
            await self.get(name)
        except KubeError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def event(self, name: str, reason: str, words: str) -> None:
        """Wait for an event about the pod with this reason and these words."""
        found: list[str] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while not any(text.startswith(reason) and words in text for text in found):
                    await asyncio.sleep(0.02)
                    items, _ = await self.client.list("/api/v1/namespaces/default/events")
                    mine = [item for item in items if item["involvedObject"]["name"] == name]
                    found = [f"{item['reason']} {item['message']}" for item in mine]
        except TimeoutError:
            raise AssertionError(f"no event {reason} with {words!r}; there are {found}") from None

    async def remove(self, name: str) -> None:
        await self.client.delete(f"{PODS}/{name}", grace_seconds=0)
        await self.gone(name)


def server(**more: Any) -> Json:
    return {
        "readinessProbe": {"httpGet": {"port": "http", "path": "/pid"}, "periodSeconds": 1},
        "command": ["python", "-c", SERVER],
        "ports": [{"name": "http", "containerPort": 8000}],
        **more,
        "env": [IP, *more.get("env", [])],
    }


def condition(pod: Json, kind: str) -> Json:
    found = [item for item in pod.get("status", {}).get("conditions") or [] if item["type"] == kind]
    return found[0] if found else {"status": "absent"}


def is_ready(pod: Json) -> bool:
    return bool(condition(pod, "Ready")["status"] == "True")


def engine(pod: Json) -> Json:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


def http() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE))


async def fetch(pod: Json, path: str) -> str:
    async with http() as session, session.get(f"http://{pod['status']['podIP']}:8000/{path}") as answer:
        return await answer.text()


async def eventually(question: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await question():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
