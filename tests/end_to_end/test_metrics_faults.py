"""A metric that is missing, late or NaN is not zero: caps and replicas hold, and a condition says why."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from e2e_stack import Stack, pool

from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_devcluster.kube import Json

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

FAKE = str(Path(__file__).with_name("fake_engine.py"))


def lying(mode: str) -> Json:
    """A podTemplate that replaces the engine by one with broken metrics."""
    command = [sys.executable, FAKE, "$(POD_IP)", mode]
    return {"spec": {"containers": [{"name": labels.ENGINE_CONTAINER, "command": command, "args": []}]}}


def caps(pods: list[Json]) -> dict[str, float | None]:
    configs = {
        pod["metadata"]["name"]: WorkerConfig.parse(pod["metadata"]["annotations"][labels.WORKER_CONFIG])
        for pod in pods
    }
    return {name: config.admission.per_iteration for name, config in configs.items()}


@pytest.mark.parametrize(
    ("mode", "reason"), [("nan", "MetricsInvalid"), ("error", "MetricsMissing"), ("hang", "MetricsMissing")]
)
async def test_engines_with_broken_metrics_hold_their_caps(stack: Stack, mode: str, reason: str) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    await stack.create(pool(namespace, "tiny", podTemplate=lying(mode)))
    condition = await stack.wait_condition(namespace, "tiny", "MetricsAvailable", "False")
    assert condition["reason"] == reason, condition
    before = caps(await stack.pods(namespace))
    assert len(before) == 2

    async def polled_again() -> str | None:
        status = (await stack.get_pool(namespace, "tiny"))["status"]
        return None if status.get("readyReplicas") == 2 else f"{status.get('readyReplicas')} ready"

    await stack.until(polled_again)
    assert caps(await stack.pods(namespace)) == before
    assert (await stack.get_pool(namespace, "tiny"))["spec"]["replicas"] == 2


@asynccontextmanager
async def stub_prometheus(mode: str) -> AsyncIterator[str]:
    """A Prometheus that answers nothing useful."""

    async def answer(_request: web.Request) -> web.Response:
        if mode == "hang":
            await asyncio.sleep(60)
        return web.Response(status=500, text="boom")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("mode", ["hang", "error"])
async def test_a_prometheus_that_is_no_use_stops_nothing(stack: Stack, mode: str) -> None:
    namespace = await stack.namespace()
    async with stub_prometheus(mode) as url:
        await stack.start_operator("--prometheus-url", url)
        await stack.create(pool(namespace, "tiny"))
        await stack.wait_serving(namespace, "tiny")
        condition = await stack.wait_condition(namespace, "tiny", "MetricsAvailable", "False", "SourceUnavailable")
        assert condition["message"]
        before = caps(await stack.pods(namespace))
        # The operator still acts on the spec while its metric source is down.
        await stack.patch_spec(namespace, "tiny", {"replicas": 3})
        await stack.wait_serving(namespace, "tiny")
        after = caps(await stack.pods(namespace))
        assert {name: after[name] for name in before} == before
