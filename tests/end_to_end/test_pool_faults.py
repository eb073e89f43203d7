"""Nothing is lost and nothing is doubled when parts die, specs are bad, or pools come and go under load."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e_stack import Stack, pool

from evenflow_contract import labels
from evenflow_contract.worker_state import WorkerState
from evenflow_devcluster.demo.pool_watch import worker_state
from evenflow_devcluster.kube import Json
from evenflow_devcluster.replay.client import replay
from evenflow_devcluster.replay.results import ReplayResult
from evenflow_model.traces import TraceRequest

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

TIME_SCALE = 20


def load(count: int, seconds: float, seed: int = 1) -> list[TraceRequest]:
    """`count` requests of both classes over `seconds` of engine time."""
    rng = random.Random(seed)
    return [
        TraceRequest(
            arrival_s=rng.uniform(0, seconds),
            prompt_tokens=rng.randint(100, 2000),
            output_tokens=rng.randint(5, 300),
            traffic_class=rng.choice(["chat", "code"]),
        )
        for _ in range(count)
    ]


async def send(stack: Stack, namespace: str, name: str, requests: list[TraceRequest], **options: Any) -> ReplayResult:
    urls = await stack.service_urls(namespace, name, ["chat", "code"])
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    return await replay(ordered, urls, model="tiny", max_model_len=8192, time_scale=TIME_SCALE, **options)


async def engine_state(address: str) -> WorkerState | None:
    async with aiohttp.ClientSession() as session:
        return await worker_state(session, address)


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def slots(pods: list[Json]) -> Counter[str]:
    return Counter(
        pod["metadata"]["labels"][labels.SLOT] for pod in pods if not pod["metadata"].get("deletionTimestamp")
    )


async def test_the_operator_may_be_killed_at_any_moment(stack: Stack, seed: int) -> None:
    namespace = await stack.namespace()
    rng = random.Random(seed)
    await stack.create(pool(namespace, "tiny"))
    for _ in range(4):
        operator = await stack.start_operator()
        await asyncio.sleep(rng.uniform(1.2, 3.0))  # the moment is what is random here, there is no event to await
        operator.kill()
        await operator.process.wait()
        counted = slots(await stack.pods(namespace))
        assert set(counted) <= {"0", "1"}
        assert all(count == 1 for count in counted.values()), counted
    await stack.start_operator()
    await stack.wait_serving(namespace, "tiny")
    pods = uids(await stack.pods(namespace))

    sending = asyncio.create_task(send(stack, namespace, "tiny", load(120, 120.0)))
    for _ in range(2):
        stack.operators[-1].kill()
        await stack.operators[-1].process.wait()
        await stack.start_operator()
    result = await sending
    assert (result.completed, result.failed) == (120, 0)
    await stack.wait_serving(namespace, "tiny")
    assert uids(await stack.pods(namespace)) == pods


async def test_an_engine_killed_under_load_is_replaced_and_no_request_is_lost(stack: Stack) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    await stack.create(pool(namespace, "tiny"))
    await stack.wait_serving(namespace, "tiny")
    sending = asyncio.create_task(send(stack, namespace, "tiny", load(150, 150.0)))
    victim = (await stack.pods(namespace))[0]

    async def busy() -> str | None:
        status = await engine_state(victim["status"]["podIP"])
        return None if status is not None and status.running > 0 else "the engine has nothing to lose yet"

    await stack.until(busy)
    path = f"/api/v1/namespaces/{namespace}/pods/{victim['metadata']['name']}"
    await stack.client.delete(path, uid=victim["metadata"]["uid"], grace_seconds=0)
    result = await sending
    assert result.requests == 150
    assert (result.completed, result.failed) == (150, 0)
    await stack.wait_serving(namespace, "tiny")
    pods = await stack.pods(namespace)
    assert slots(pods) == {"0": 1, "1": 1}
    assert victim["metadata"]["uid"] not in uids(pods)


def engine_process(address: str) -> int:
    """Process id of the engine that listens on a pod's address."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if b"evenflow_worker.simulated" in command and address.encode() in command:
                    return int(name)
    raise AssertionError(f"no engine process on {address}")


async def test_an_engine_process_killed_under_load_comes_back_in_its_pod(stack: Stack) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    await stack.create(pool(namespace, "tiny"))
    await stack.wait_serving(namespace, "tiny")
    before = await stack.pods(namespace)
    sending = asyncio.create_task(send(stack, namespace, "tiny", load(120, 120.0)))
    address = before[0]["status"]["podIP"]

    async def busy() -> str | None:
        state = await engine_state(address)
        return None if state is not None and state.running > 0 else "the engine has nothing to lose yet"

    await stack.until(busy)
    os.kill(engine_process(address), signal.SIGKILL)
    result = await sending
    assert (result.completed, result.failed) == (120, 0)
    assert result.retried > 0
    await stack.wait_serving(namespace, "tiny")
    after = await stack.pods(namespace)
    assert uids(after) == uids(before)
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in after}
    assert restarts[before[0]["metadata"]["name"]] == 1


async def test_a_pool_deleted_and_made_again_under_load(stack: Stack) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    first = await stack.create(pool(namespace, "tiny"))
    await stack.wait_serving(namespace, "tiny")
    old = uids(await stack.pods(namespace))
    sending = asyncio.create_task(send(stack, namespace, "tiny", load(60, 60.0)))
    await stack.delete_pool(namespace, "tiny")
    second = await stack.create(pool(namespace, "tiny"))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    result = await sending
    assert result.completed + result.failed == result.requests == 60
    await stack.wait_serving(namespace, "tiny")

    async def old_gone() -> str | None:
        left = old & uids(await stack.pods(namespace))
        return f"{len(left)} pods of the deleted pool left" if left else None

    await stack.until(old_gone)
    pods = await stack.pods(namespace)
    assert slots(pods) == {"0": 1, "1": 1}
    owners = {owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"]}
    assert owners == {second["metadata"]["uid"]}
    again = await send(stack, namespace, "tiny", load(30, 20.0))
    assert (again.completed, again.failed) == (30, 0)


async def test_pools_are_told_apart_by_name_and_by_namespace(stack: Stack) -> None:
    here, there = await stack.namespace(), await stack.namespace()
    await stack.start_operator()
    for namespace, name in ((here, "one"), (here, "two"), (there, "one")):
        await stack.create(pool(namespace, name, replicas=1))
    for namespace, name in ((here, "one"), (here, "two"), (there, "one")):
        await stack.wait_serving(namespace, name)
    assert len(await stack.pods(here)) == 2
    before = uids(await stack.pods(there))
    await stack.delete_pool(here, "one")

    async def gone() -> str | None:
        left = await stack.pods(here, f"{labels.POOL}=one")
        return f"{len(left)} pods left" if left else None

    await stack.until(gone)
    assert uids(await stack.pods(there)) == before
    assert len(await stack.pods(here, f"{labels.POOL}=two")) == 1
    for namespace, name in ((here, "two"), (there, "one")):
        result = await send(stack, namespace, name, load(10, 5.0))
        assert (result.completed, result.failed) == (10, 0)


async def test_a_bad_pool_hurts_nobody(stack: Stack) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    await stack.client.create(
        f"/api/v1/namespaces/{namespace}/services",
        {"metadata": {"name": "bad-chat"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "else"}}},
    )
    accelerator = {"products": ["NVIDIA-A100-SXM4-80GB"], "parallelism": {"tensor": 8}}
    await stack.create(pool(namespace, "bad", replicas=9, accelerator=accelerator))
    await stack.create(pool(namespace, "good"))
    await stack.wait_serving(namespace, "good")
    result = await send(stack, namespace, "good", load(20, 10.0))
    assert (result.completed, result.failed) == (20, 0)
    condition = await stack.wait_condition(namespace, "bad", "SpecValid", "False", "NameConflict")
    assert "bad-chat" in condition["message"]
    service = await stack.client.get(f"/api/v1/namespaces/{namespace}/services/bad-chat")
    assert service["spec"]["selector"] == {"app": "else"}
    status = (await stack.get_pool(namespace, "bad"))["status"]
    assert any("nvidia.com/gpu" in (slot.get("message") or "") for slot in status["slots"]), status["slots"]


async def test_scaling_up_and_down_drains_and_loses_nothing(stack: Stack) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    await stack.create(pool(namespace, "tiny"))
    await stack.wait_serving(namespace, "tiny")
    sending = asyncio.create_task(send(stack, namespace, "tiny", load(200, 300.0)))
    await stack.patch_spec(namespace, "tiny", {"replicas": 3})
    await stack.wait_serving(namespace, "tiny")
    await stack.patch_spec(namespace, "tiny", {"replicas": 1})

    async def down() -> str | None:
        pods = await stack.pods(namespace)
        return None if len(pods) == 1 else f"{len(pods)} pods"

    await stack.until(down, 120.0)
    result = await sending
    assert (result.completed, result.failed, result.retried) == (200, 0, 0)
    types = {one["type"] for one in (await stack.get_pool(namespace, "tiny"))["status"]["decisions"]}
    assert {"Scale", "DeletePod"} <= types, types


def tolerating(**toleration: Any) -> dict[str, Any]:
    """A pod template; `tolerationSeconds` makes one that every API server refuses."""
    entry = {"key": "example.com/a", "operator": "Exists", "effect": "NoSchedule", **toleration}
    return {"podTemplate": {"spec": {"tolerations": [entry]}}}


async def test_a_refused_pod_template_costs_no_slot_and_a_corrected_one_is_rolled_out(stack: Stack) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    await stack.create(pool(namespace, "tiny"))
    await stack.wait_serving(namespace, "tiny")
    before = uids(await stack.pods(namespace))
    sending = asyncio.create_task(send(stack, namespace, "tiny", load(150, 300.0)))
    await stack.patch_spec(namespace, "tiny", tolerating(tolerationSeconds=3))
    condition = await stack.wait_condition(namespace, "tiny", "Degraded", "True", "CreateRefused")
    assert "tolerationSeconds" in condition["message"], condition
    await stack.wait_condition(namespace, "tiny", "Progressing", "False", "RolloutStuck")
    assert (await stack.condition(namespace, "tiny", "Ready"))["reason"] == "AllSlotsReady"
    pods = await stack.pods(namespace)
    assert uids(pods) == before
    assert all(one["metadata"]["labels"].get(labels.SERVING) == "true" for one in pods)

    await stack.patch_spec(namespace, "tiny", {"podTemplate": None})
    await stack.patch_spec(namespace, "tiny", tolerating())

    async def rolled_out() -> str | None:
        live = await stack.pods(namespace)
        left = before & uids(live)
        return f"{len(left)} old pods" if left or len(live) < len(before) else None

    await stack.until(rolled_out, 120.0)
    await stack.wait_serving(namespace, "tiny")
    await stack.wait_condition(namespace, "tiny", "Degraded", "False")
    result = await sending
    assert (result.completed, result.failed) == (150, 0)
