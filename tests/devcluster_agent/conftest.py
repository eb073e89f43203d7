"""One cluster with two nodes for each module of tests that run pods."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from agent_kit import World

from evenflow_devcluster.agent import AgentSettings
from evenflow_devcluster.kube import KubeClient
from evenflow_devcluster.local import LocalCluster


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = await LocalCluster.start(
        folder, settings=lambda path: AgentSettings(path, crash_backoff=0.2, crash_backoff_limit=0.4)
    )
    async with await KubeClient.connect(cluster.kubeconfig) as client:
        yield World(cluster, client)
    await cluster.stop()
    assert not list((folder / "agent").iterdir())
