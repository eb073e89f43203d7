"""A cluster, an operator and pools as real processes: one cluster a module, one namespace (or two) a test."""

import asyncio
import copy
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest_asyncio

from evenflow_devcluster.demo.children import Child, Children
from evenflow_devcluster.demo.pool_watch import POOLS, PoolWatch, until
from evenflow_devcluster.kube import Json, KubeClient, KubeError
from evenflow_devcluster.state import read_state

EVENFLOW = str(Path(sys.executable).with_name("evenflow"))
NODES = Path(__file__).parents[1] / "real_kubernetes" / "nodes.py"
PATIENCE = 60.0

SPEC: Json = {
    "model": {"name": "tiny", "maxModelLen": 8192},
    "replicas": 2,
    "engine": {
        "type": "Simulated",
        "simulated": {"stepTimeModel": "A100-8B", "timeScale": 20, "streamInterval": 64},
        "kvCacheTokens": 60000,
    },
    "scheduling": {"policy": "SVF"},
    "trafficClasses": [
        {"name": "chat", "promptTokens": 600, "outputTokens": 200, "minReplicas": 2},
        {"name": "code", "promptTokens": 1500, "outputTokens": 40, "minReplicas": 2},
    ],
    "metrics": {"intervalSeconds": 1, "staleAfterSeconds": 5},
    "rollout": {"drainTimeoutSeconds": 20},
}


def pool(namespace: str, name: str, **spec: Any) -> Json:
    """A small simulated pool; `spec` replaces whole parts of the usual one."""
    return {
        "apiVersion": "serving.evenflow.dev/v1alpha1",
        "kind": "LLMServingPool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**copy.deepcopy(SPEC), **spec},
    }


@dataclass
class Stack:
    """Everything a test needs: the API, the folder for logs, and the processes it may kill."""

    client: KubeClient
    kubeconfig: Path
    children: Children
    operators: list[Child] = field(default_factory=list)

    async def start_operator(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        name = f"operator-{secrets.token_hex(3)}"
        command = [EVENFLOW, "operator", "--kubeconfig", str(self.kubeconfig), "--no-leader-election", *arguments]
        child = await self.children.start(name, command, environment)
        self.operators.append(child)
        return child

    async def stop_operators(self) -> None:
        for child in self.operators:
            await child.stop()
        self.operators.clear()

    async def namespace(self) -> str:
        name = f"e2e-{secrets.token_hex(4)}"
        await self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    async def get_pool(self, namespace: str, name: str) -> Json:
        return await self.client.get(f"{POOLS.format(namespace=namespace)}/{name}")

    async def pods(self, namespace: str, selector: str = "") -> list[Json]:
        query = {"labelSelector": selector} if selector else {}
        items, _ = await self.client.list(f"/api/v1/namespaces/{namespace}/pods", **query)
        return items

    async def create(self, manifest: Json) -> Json:
        namespace = manifest["metadata"]["namespace"]
        return await self.client.create(POOLS.format(namespace=namespace), manifest)

    async def patch_spec(self, namespace: str, name: str, spec: Mapping[str, Any]) -> Json:
        return await self.client.patch(f"{POOLS.format(namespace=namespace)}/{name}", {"spec": dict(spec)})

    async def delete_pool(self, namespace: str, name: str) -> None:
        await self.client.delete(f"{POOLS.format(namespace=namespace)}/{name}")

    async def condition(self, namespace: str, name: str, kind: str) -> Mapping[str, Any]:
        status = (await self.get_pool(namespace, name)).get("status") or {}
        found = [one for one in status.get("conditions") or () if one["type"] == kind]
        return found[0] if found else {}

    async def wait_condition(
        self, namespace: str, name: str, kind: str, status: str, reason: str | None = None, timeout: float = PATIENCE
    ) -> Mapping[str, Any]:
        async def missing() -> str | None:
            condition = await self.condition(namespace, name, kind)
            if condition.get("status") == status and reason in (None, condition.get("reason")):
                return None
            return f"{kind} is {json.dumps(condition)}, not {status} {reason or ''}"

        await self.until(missing, timeout)
        return await self.condition(namespace, name, kind)

    async def wait_serving(self, namespace: str, name: str, timeout: float = PATIENCE) -> None:
        """Wait until every slot's engine runs the spec that stands there now."""
        watch = PoolWatch(self.client, namespace, name)
        task = asyncio.create_task(watch.run())
        try:
            manifest = await self.get_pool(namespace, name)
            await watch.wait_applied(manifest, timeout)
        except Exception as error:
            error.add_note("\n".join(child.tail(30) for child in self.operators))
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def service_urls(self, namespace: str, name: str, classes: list[str]) -> dict[str, str]:
        return await PoolWatch(self.client, namespace, name).service_urls(classes, PATIENCE)

    async def until(self, missing: Callable[[], Awaitable[str | None]], timeout: float = PATIENCE) -> None:
        try:
            await until(missing, timeout)
        except Exception as error:
            error.add_note("\n".join(child.tail(30) for child in self.operators))
            raise


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[tuple[Path, Children]]:
    """An embedded cluster, or nodes and a router of ours for the one that EVENFLOW_TEST_KUBECONFIG names."""
    folder = Path(tempfile.mkdtemp(prefix="evenflow-e2e-"))
    named = os.environ.get("EVENFLOW_TEST_KUBECONFIG")
    try:
        async with Children(folder) as children:
            if named:
                child = await children.start("nodes", [sys.executable, str(NODES), named, str(folder / "nodes")])

                async def unready() -> str | None:
                    child.check()
                    return None if "ready" in child.tail() else "the nodes aren't up"

                await until(unready, PATIENCE)
                yield Path(named), children
                return
            command = [EVENFLOW, "cluster", "up", "--foreground", "--name", "e2e", "--nodes", "2"]
            child = await children.start("cluster", command, {"EVENFLOW_HOME": str(folder)})

            async def missing() -> str | None:
                child.check()
                return "the cluster isn't up" if read_state("e2e", home=folder) is None else None

            await until(missing, PATIENCE)
            state = read_state("e2e", home=folder)
            assert state is not None
            yield state.kubeconfig, children
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="module")
async def stack(cluster: tuple[Path, Children]) -> AsyncIterator[Stack]:
    kubeconfig, children = cluster
    async with await KubeClient.connect(kubeconfig) as client:
        stack = Stack(client, kubeconfig, children)
        yield stack
        await stack.stop_operators()
        namespaces, _ = await client.list("/api/v1/namespaces")
        for namespace in namespaces:
            if namespace["metadata"]["name"].startswith("e2e-"):
                try:
                    await client.delete(f"/api/v1/namespaces/{namespace['metadata']['name']}")
                except KubeError as error:
                    if error.status not in (404, 409):
                        raise

        async def pods_left() -> str | None:
            items, _ = await client.list("/api/v1/pods")
            ours = [item for item in items if item["metadata"]["namespace"].startswith("e2e-")]
            return f"{len(ours)} pods left" if ours else None

        await until(pods_left, PATIENCE)
