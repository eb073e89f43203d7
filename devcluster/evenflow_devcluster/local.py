"""A whole cluster on this computer: API server, nodes and router in one process, its files in one folder."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Self

import yaml

from evenflow_devcluster.agent import AgentSettings, NodeAgent, NodeShape
from evenflow_devcluster.agent.agent import start_guard
from evenflow_devcluster.embedded.cluster import EmbeddedCluster
from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.kube import KubeClient, KubeError
from evenflow_devcluster.router import Router
from evenflow_devcluster.state import ClusterState, claim, cluster_folder, process_start, write_state
from evenflow_operator.api.crd import crd_text
from evenflow_operator.api.rules import cel_twin

_CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_PREFIX = "a100-"
_ESTABLISHED_TRIES = 200

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger(__name__)


def pool_twin(new: dict[str, Any], old: dict[str, Any] | None) -> list[FieldError]:
    """The CEL rules of LLMServingPool for the embedded server, which has no CEL."""
    return [FieldError(error.path, error.message) for error in cel_twin(new, old)]


class LocalCluster:
    """Start with `await LocalCluster.start(folder)`; `stop` ends all processes and ports. Files are the caller's."""

    def __init__(self, server: EmbeddedCluster) -> None:
        self.server = server
        self.agent: NodeAgent | None = None
        self.router: Router | None = None

    @property
    def kubeconfig(self) -> Path:
        return Path(self.server.kubeconfig)

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        nodes: int = 2,
        shape: NodeShape | None = None,
        settings: Callable[[Path], AgentSettings] = AgentSettings,
    ) -> Self:
        """All up, the pool's CRD installed, nodes ready. Raises KubeError or OSError, with nothing left running."""
        definition = yaml.safe_load(crd_text())
        twins = {definition["metadata"]["name"]: pool_twin}
        cluster = cls(await EmbeddedCluster.start(folder, cel_twins=twins))
        try:
            await cluster._install(definition)
            cluster.router = await Router.start(cluster.kubeconfig)
            # This server has one user: pods that ask for their account's token get that one's.
            chosen = replace(settings(folder / "agent"), account_kubeconfig=cluster.kubeconfig)
            names = {f"{NODE_PREFIX}{number}": shape or NodeShape() for number in range(nodes)}
            cluster.agent = await NodeAgent.start(cluster.kubeconfig, names, chosen)
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    async def _install(self, definition: Mapping[str, Any]) -> None:
        async with await KubeClient.connect(self.kubeconfig) as client:
            await client.create(_CRD_PATH, dict(definition))
            for _ in range(_ESTABLISHED_TRIES):
                if await _established(client, str(definition["metadata"]["name"])):
                    return
                await asyncio.sleep(0.05)
            raise TimeoutError("the CustomResourceDefinition was not established in time")

    async def stop(self) -> None:
        """Router, pods and nodes, API server, in this order; every part is ended even if another fails to."""
        parts = [part for part in (self.router, self.agent, self.server) if part is not None]
        for part in parts:
            try:
                await part.stop()
            except (OSError, KubeError, RuntimeError) as error:
                log.warning("%s didn't stop cleanly: %s", type(part).__name__, error)


async def _established(client: KubeClient, name: str) -> bool:
    definition = await client.get(f"{_CRD_PATH}/{name}")
    conditions = (definition.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


async def serve(name: str, nodes: int, on_ready: Callable[[ClusterState], None]) -> None:
    """Run a cluster in this process until SIGINT or SIGTERM, then end and remove all of it.

    Raises ValueError for a bad name, FileExistsError when a cluster of that name is running.
    """
    folder = cluster_folder(name)
    claim(name)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Should this process be killed, its folder goes all the same; the agent has a guard of its own for its processes.
    warden = start_guard(f"EVENFLOW_CLUSTER={secrets.token_hex(16)}", folder)
    started = process_start(os.getpid()) or 0
    state = ClusterState(name, os.getpid(), started, False, folder / "kubeconfig", "", nodes)
    write_state(state)
    cluster: LocalCluster | None = None
    try:
        starting = asyncio.create_task(LocalCluster.start(folder, nodes=nodes))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        cluster = starting.result()
        ready = ClusterState(name, os.getpid(), started, True, cluster.kubeconfig, cluster.server.url, nodes)
        write_state(ready)
        on_ready(ready)
        await stopping
    finally:
        if cluster is not None:
            await cluster.stop()
        assert warden.stdin is not None
        warden.stdin.close()
        await asyncio.to_thread(warden.wait)


def main() -> None:
    """What `evenflow cluster up` starts in the background: NAME NODES."""
    logging.basicConfig(level=logging.WARNING, format=_LOG_FORMAT, stream=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1], int(sys.argv[2]), _log_to_folder))


def _log_to_folder(state: ClusterState) -> None:
    """Once up, nobody reads standard error any more."""
    handler = RotatingFileHandler(state.folder / "cluster.log", maxBytes=2**20, backupCount=1)
    logging.basicConfig(level=logging.WARNING, format=_LOG_FORMAT, handlers=[handler], force=True)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)


if __name__ == "__main__":
    main()
