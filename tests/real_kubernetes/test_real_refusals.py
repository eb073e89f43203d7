"""What only a real API server's admission refuses or changes: the pool says so, and goes on once it can."""

from typing import Any

import pytest
from e2e_stack import SPEC, Stack, pool

from evenflow_devcluster.kube import Json

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


async def label(stack: Stack, namespace: str, **levels: str) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    await stack.client.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})


async def create(stack: Stack, namespace: str, **template: Any) -> None:
    await stack.create(pool(namespace, "tiny", podTemplate={"spec": template}))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"priorityClassName": "none-such"}, "no PriorityClass with name none-such was found"),
        ({"serviceAccountName": "none-such"}, 'serviceaccount "none-such" not found'),
        (
            {"containers": [{"name": "engine", "resources": {"limits": {"example.com/gpu": "0.5"}}}]},
            "example.com/gpu",
        ),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]},
            "tolerationSeconds",
        ),
    ],
)
async def test_a_refused_pod_is_told(stack: Stack, template: Json, words: str) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    await create(stack, namespace, **template)
    condition = await stack.wait_condition(namespace, "tiny", "Degraded", "True")
    assert words in condition["message"], condition
    assert await stack.pods(namespace) == []


@pytest.mark.parametrize("engine", ["Simulated", "VLLM"])
async def test_pods_meet_the_restricted_pod_security_standard(stack: Stack, engine: str) -> None:
    namespace = await stack.namespace()
    await label(stack, namespace, enforce="restricted")
    await stack.start_operator()
    spec = {**SPEC["engine"], "type": engine}
    await stack.create(pool(namespace, "tiny", engine=spec, podTemplate={"spec": {"hostNetwork": True}}))
    condition = await stack.wait_condition(namespace, "tiny", "Degraded", "True")
    assert "host namespaces (hostNetwork=true)" in condition["message"]
    assert "restricted volume types" not in condition["message"]
    await stack.patch_spec(namespace, "tiny", {"podTemplate": None})

    async def made() -> str | None:
        pods = await stack.pods(namespace)
        return None if len(pods) == 2 else f"{len(pods)} pods"

    await stack.until(made)


async def test_a_namespace_that_goes_takes_its_pool_along_quietly(stack: Stack) -> None:
    namespace = await stack.namespace()
    operator = await stack.start_operator()
    await create(stack, namespace)
    await stack.wait_serving(namespace, "tiny")
    await stack.client.delete(f"/api/v1/namespaces/{namespace}")

    async def gone() -> str | None:
        items, _ = await stack.client.list("/api/v1/namespaces")
        return namespace if any(one["metadata"]["name"] == namespace for one in items) else None

    await stack.until(gone)
    about = [line for line in operator.tail(200).splitlines() if namespace in line and "WARNING" in line]
    assert about == []


async def test_a_quota_that_is_full_is_told_and_waited_for(stack: Stack) -> None:
    namespace = await stack.namespace()
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await stack.client.create(path, quota)
    await stack.client.patch(f"{path}/few/status", {"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}})
    await stack.start_operator()
    await create(stack, namespace)
    condition = await stack.wait_condition(namespace, "tiny", "Degraded", "True")
    assert "exceeded quota" in condition["message"], condition
    assert len(await stack.pods(namespace)) == 1
    await stack.client.delete(f"{path}/few")
    await stack.wait_serving(namespace, "tiny")
