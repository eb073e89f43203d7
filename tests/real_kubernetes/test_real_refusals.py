"""What only a real API server's admission refuses or changes: the pool says so, and goes on once it can."""

from typing import Any

import pytest
from e2e_stack import SPEC, Stack, pool

from evenflow_devcluster.kube import Json, KubeError

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


async def limit_pods(stack: Stack, namespace: str, count: int) -> str:
    """A quota on pods that is in force; returns its path."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await stack.client.create(path, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(count)}}})

    async def uncounted() -> str | None:
        status = (await stack.client.get(f"{path}/few")).get("status") or {}
        return None if "used" in status else "nobody has counted what is used"

    await stack.until(uncounted)
    return f"{path}/few"


async def test_a_quota_that_is_full_is_told_and_waited_for(stack: Stack) -> None:
    namespace = await stack.namespace()
    quota = await limit_pods(stack, namespace, 1)
    await stack.start_operator()
    await create(stack, namespace)
    condition = await stack.wait_condition(namespace, "tiny", "Degraded", "True")
    assert "exceeded quota" in condition["message"], condition
    assert len(await stack.pods(namespace)) == 1
    await stack.client.delete(quota)
    await stack.wait_serving(namespace, "tiny")


async def serving_pool(stack: Stack) -> tuple[str, set[str]]:
    """A namespace with a pool that serves, and its pods' uids."""
    namespace = await stack.namespace()
    await stack.start_operator()
    await create(stack, namespace)
    await stack.wait_serving(namespace, "tiny")
    return namespace, await uids(stack, namespace)


async def uids(stack: Stack, namespace: str) -> set[str]:
    return {one["metadata"]["uid"] for one in await stack.pods(namespace)}


async def replaced(stack: Stack, namespace: str, before: set[str]) -> None:
    async def left() -> str | None:
        live = await uids(stack, namespace)
        return f"{len(live & before)} old of {len(live)}" if live & before or len(live) < len(before) else None

    await stack.until(left, 120.0)
    await stack.wait_serving(namespace, "tiny")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"priorityClassName": "none-such"}, "no PriorityClass with name none-such was found"),
        ({"serviceAccountName": "none-such"}, 'serviceaccount "none-such" not found'),
        ({"hostNetwork": True}, "host namespaces (hostNetwork=true)"),
    ],
)
async def test_a_rollout_that_admission_refuses_costs_no_slot(stack: Stack, template: Json, words: str) -> None:
    namespace, before = await serving_pool(stack)
    await label(stack, namespace, enforce="baseline")
    await stack.patch_spec(namespace, "tiny", {"podTemplate": {"spec": template}})
    condition = await stack.wait_condition(namespace, "tiny", "Degraded", "True", "CreateRefused")
    assert words in condition["message"], condition
    assert (await stack.condition(namespace, "tiny", "Ready"))["reason"] == "AllSlotsReady"
    assert await uids(stack, namespace) == before


async def test_a_quota_as_large_as_the_pool_holds_no_rollout(stack: Stack) -> None:
    namespace, before = await serving_pool(stack)
    await limit_pods(stack, namespace, len(before))
    await stack.patch_spec(namespace, "tiny", {"podTemplate": {"metadata": {"annotations": {"example.com/a": "b"}}}})
    await replaced(stack, namespace, before)


async def test_an_admission_webhook_that_is_down_holds_a_rollout_and_costs_no_slot(stack: Stack) -> None:
    namespace, before = await serving_pool(stack)
    hook = {
        "name": "down.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 1,
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    await stack.client.create(path, {"metadata": {"name": namespace}, "webhooks": [hook]})
    try:
        # Until the API server knows of the webhook, a rollout would just go on.
        await stack.until(lambda: calls_webhook(stack, namespace))
        annotated = {"metadata": {"annotations": {"example.com/a": "b"}}}
        await stack.patch_spec(namespace, "tiny", {"podTemplate": annotated})

        async def said() -> str | None:
            condition = await stack.condition(namespace, "tiny", "Progressing")
            return None if "failed calling webhook" in condition["message"] else condition["message"]

        await stack.until(said)
        assert (await stack.condition(namespace, "tiny", "Degraded"))["status"] == "False"
        assert await uids(stack, namespace) == before
    finally:
        await stack.client.delete(f"{path}/{namespace}")
    await replaced(stack, namespace, before)


async def calls_webhook(stack: Stack, namespace: str) -> str | None:
    body = {"metadata": {"generateName": "a-"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    try:
        made = await stack.client.create(f"/api/v1/namespaces/{namespace}/pods", body)
    except KubeError:
        return None
    await stack.client.delete(f"/api/v1/namespaces/{namespace}/pods/{made['metadata']['name']}", grace_seconds=0)
    return "the webhook isn't called yet"
