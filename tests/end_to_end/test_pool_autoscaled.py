"""The built-in autoscaler with real processes: load rises, replicas rise; it falls, they drain one at a time."""

import asyncio
import random

import pytest
from e2e_stack import Stack, pool

from evenflow_contract import labels
from evenflow_devcluster.replay.client import replay
from evenflow_model.traces import TraceRequest

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

TIME_SCALE = 5
PHASES = ((6.0, 2.0), (20.0, 20.0), (28.0, 1.5))
"""Wall seconds and requests per second. One engine of four sequences sustains nearly eight."""


def load(seed: int) -> list[TraceRequest]:
    rng = random.Random(seed)
    begin, requests = 0.0, []
    for seconds, rate in PHASES:
        for number in range(round(seconds * rate)):
            at = begin + number / rate
            output = rng.randint(120, 280)
            requests.append(TraceRequest(TIME_SCALE * at, rng.randint(100, 300), output, traffic_class="chat"))
        begin += seconds
    return requests


async def test_replicas_follow_the_load_and_no_request_is_lost(stack: Stack, seed: int) -> None:
    namespace = await stack.namespace()
    engine = {
        "type": "Simulated",
        "simulated": {"timeScale": TIME_SCALE, "streamInterval": 64, "startupSeconds": 2},
        "kvCacheTokens": 60_000,
        "maxNumSeqs": 4,
    }
    autoscaling = {"minReplicas": 1, "maxReplicas": 3, "scaleDownStabilizationSeconds": 4}
    classes = [{"name": "chat", "promptTokens": 200, "outputTokens": 200, "outputSpreadPercent": 20}]
    await stack.start_operator()
    manifest = pool(namespace, "tiny", replicas=1, engine=engine, autoscaling=autoscaling, trafficClasses=classes)
    await stack.create(manifest)
    await stack.wait_serving(namespace, "tiny")
    urls = await stack.service_urls(namespace, "tiny", ["chat"])
    sending = asyncio.create_task(replay(load(seed), urls, model="tiny", max_model_len=8192, time_scale=TIME_SCALE))
    wanted, draining, most = [1], 0, 0

    async def up_and_down() -> str | None:
        nonlocal draining, most
        replicas = (await stack.get_pool(namespace, "tiny"))["spec"]["replicas"]
        pods = await stack.pods(namespace)
        if replicas != wanted[-1]:
            wanted.append(replicas)
        notes = [pod["metadata"].get("annotations", {}) for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        draining = max(draining, sum(1 for note in notes if labels.DRAIN_STARTED in note))
        most = max(most, len(pods))
        done = max(wanted) > 1 and replicas == 1 and len(pods) == 1 and sending.done()
        return None if done else f"replicas so far: {wanted}, {len(pods)} pods"

    await stack.until(up_and_down, 80.0)
    result = await sending
    assert (result.completed, result.failed, result.retried) == (result.requests, 0, 0)
    status = (await stack.get_pool(namespace, "tiny"))["status"]
    top = wanted.index(max(wanted))
    assert wanted[: top + 1] == sorted(wanted[: top + 1])
    assert (wanted[top], most) == (3, 3), status["decisions"]
    assert wanted[top:] == [3, 2, 1]
    assert draining == 1
    written = [one for one in status["decisions"] if one["type"] == "Scale" and "replicas" in one["inputs"]]
    assert [one["inputs"]["replicas"] for one in written[-2:]] == ["2", "1"]
    assert "maxNumSeqs binds" in written[-1]["message"]
