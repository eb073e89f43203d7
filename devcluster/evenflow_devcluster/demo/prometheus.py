"""A Prometheus of the demo's own, when the binary is on PATH: it scrapes the engines every second."""

import asyncio
import contextlib
import json
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from evenflow_contract import environment
from evenflow_devcluster.demo.children import Children
from evenflow_devcluster.demo.pool_watch import until
from evenflow_devcluster.kube import Json

START_SECONDS = 20.0
FOLLOW_SECONDS = 0.5
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=0.5)


def configuration(targets: Path) -> str:
    """Scrape what `targets` lists: Debian's Prometheus is built without Kubernetes discovery, so the demo does it."""
    job = {
        "job_name": "evenflow-pods",
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "5s"}],
    }
    return yaml.safe_dump({"scrape_configs": [job]}, sort_keys=False)


def targets_document(pods: Sequence[Json]) -> str:
    """Both ports of every pod with an address, labelled as the operator asks for them."""
    return json.dumps(
        [
            {
                "targets": [
                    f"{pod['status']['podIP']}:{port}" for port in (environment.ENGINE_PORT, environment.ADMIN_PORT)
                ],
                "labels": {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"]},
            }
            for pod in pods
            if (pod.get("status") or {}).get("podIP")
        ]
    )


@dataclass(frozen=True, slots=True)
class DemoPrometheus:
    url: str
    targets: Path

    async def follow(self, pods: Callable[[], Sequence[Json]]) -> None:
        """Keep the list of targets up to date until cancelled."""
        written = ""
        while True:
            document = targets_document(pods())
            if document != written:
                fresh = self.targets.with_suffix(".tmp")
                fresh.write_text(document)
                fresh.replace(self.targets)
                written = document
            await asyncio.sleep(FOLLOW_SECONDS)


async def start_if_present(children: Children, folder: Path) -> DemoPrometheus | None:
    """Start one and wait until it is ready; None when there is no binary."""
    binary = shutil.which("prometheus")
    if binary is None:
        return None
    targets = folder / "targets.json"
    targets.write_text("[]")
    file = folder / "prometheus.yml"
    file.write_text(configuration(targets))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        binary,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus-data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    child = await children.start("prometheus", command)

    async def missing() -> str | None:
        child.check()
        return None if await _answers(f"{url}/-/ready") else "prometheus isn't ready"

    await until(missing, START_SECONDS)
    return DemoPrometheus(url, targets)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _answers(url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session, session.get(url) as response:
            return response.status == 200
    return False
