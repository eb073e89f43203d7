"""The cluster under test: the one that EVENFLOW_TEST_KUBECONFIG names, else an embedded one for this session."""

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from suite_client import PATIENCE, Access, Client, eventually, url
from suite_kubectl import Kubectl
from suite_objects import Gadgets, gadget_definition, unique


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    named = os.environ.get("EVENFLOW_TEST_KUBECONFIG")
    if named:
        yield Path(named)
        return
    from evenflow_devcluster.embedded.cluster import EmbeddedCluster

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded cluster", daemon=True)
    thread.start()
    start = EmbeddedCluster.start(tmp_path_factory.mktemp("cluster"))
    cluster = asyncio.run_coroutine_threadsafe(start, loop).result(PATIENCE)
    yield cluster.kubeconfig
    asyncio.run_coroutine_threadsafe(cluster.stop(), loop).result(PATIENCE)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)
    loop.close()


@pytest.fixture(scope="session")
def access(kubeconfig: Path) -> Access:
    return Access.read(kubeconfig)


@pytest.fixture(scope="session")
def gadgets(access: Access) -> Iterator[Gadgets]:
    """The suite's custom kind, installed for the session."""
    tag = secrets.token_hex(3)
    made = Gadgets(f"g{tag}.contract.test", tag)

    async def install() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls)) as session:
            api = Client(access, session)
            await api.create("customresourcedefinitions.apiextensions.k8s.io", None, gadget_definition(made.group, tag))

            async def served() -> bool:
                return (await api.send("GET", url(made.resource))).status == 200

            await eventually(served, f"{made.resource} is served")

    async def remove() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls)) as session:
            await Client(access, session).delete("customresourcedefinitions.apiextensions.k8s.io", None, made.resource)

    asyncio.run(install())
    yield made
    asyncio.run(remove())


@pytest.fixture
async def api(access: Access) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls)) as session:
        yield Client(access, session)


@pytest.fixture
async def ns(api: Client) -> AsyncIterator[str]:
    """A namespace of this test's own."""
    name = unique("contract")
    await api.create("namespaces", None, {"metadata": {"name": name}})
    yield name
    # No kubelet ends the pods that a test has put on a node.
    await api.send("DELETE", url("pods", name), {"gracePeriodSeconds": 0})
    await api.send("DELETE", url("namespaces", None, name))


@pytest.fixture
async def node_labels(api: Client) -> AsyncIterator[dict[str, str]]:
    """Labels that only this test's nodes carry; nodes that carry them are removed afterwards."""
    key, value = "contract.test/run", secrets.token_hex(6)
    yield {key: value}
    for name in await api.names("nodes", None, labelSelector=f"{key}={value}"):
        await api.send("DELETE", url("nodes", None, name))


@pytest.fixture
def kubectl(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory, ns: str) -> Kubectl:
    cache = tmp_path_factory.getbasetemp() / "kubectl-cache"
    return Kubectl(Path(sys.executable).with_name("kubectl"), kubeconfig, cache, ns)
