"""A Prometheus of the demo's own, when the binary is on PATH: it finds the pods through the cluster's API."""

import contextlib
import shutil
import socket
from pathlib import Path

import aiohttp
import yaml

from evenflow_contract import labels
from evenflow_devcluster.demo.children import Child, Children
from evenflow_devcluster.demo.pool_watch import until

START_SECONDS = 20.0
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=0.5)


def configuration(kubeconfig: Path) -> str:
    """Scrape every port of every pod that belongs to a pool; `namespace` and `pod` are what the operator asks by."""
    pool_label = "__meta_kubernetes_pod_label_" + labels.POOL.replace(".", "_").replace("/", "_")
    relabel = [
        {"source_labels": [pool_label], "regex": ".+", "action": "keep"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "regex": labels.ENGINE_CONTAINER, "action": "keep"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    ]
    job = {
        "job_name": "evenflow-pods",
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
        "relabel_configs": relabel,
    }
    return yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}, sort_keys=False)


async def start_if_present(children: Children, folder: Path, kubeconfig: Path) -> tuple[Child, str] | None:
    """Start one and wait until it is ready; None when there is no binary. Returns the process and its URL."""
    binary = shutil.which("prometheus")
    if binary is None:
        return None
    file = folder / "prometheus.yml"
    file.write_text(configuration(kubeconfig))
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
    return child, url


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _answers(url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session, session.get(url) as response:
            return response.status == 200
    return False
