"""Engines that answer nonsense, errors or nothing: caps and replicas hold, and the condition says why."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cluster_kit import Stage, eventually, running, stage

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_operator import main
from evenflow_operator.adapters.scrape import ScrapeMetrics

POOL = {"replicas": 1, "metrics": {"intervalSeconds": 1, "staleAfterSeconds": 2}}


class Engine:
    """Both ports of one pod. `trouble` is what it answers to a scrape instead of its metrics."""

    def __init__(self) -> None:
        self.config = WorkerConfig()
        self.trouble: str | None = None
        self.pushed: list[int] = []
        self.iterations = 0

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        if self.trouble == "hang":
            await asyncio.sleep(60)
        if self.trouble == "500":
            return web.Response(status=500)
        self.iterations += 100
        value = "NaN" if self.trouble == "nan" else "0"
        lines = [
            f"vllm:num_preemptions_total {value}",
            "vllm:num_requests_running 3",
            "vllm:num_requests_waiting 0",
            f"vllm:generation_tokens_total {self.iterations}",
            f'evenflow_admitted_requests_total{{kind="new",traffic_class="chat"}} {self.iterations}',
            f'evenflow_completed_requests_total{{traffic_class="chat"}} {self.iterations}',
            f"evenflow_iterations_total {self.iterations}",
            'evenflow_kv_usage_peak_ratio{window="10s"} 0.5',
            "evenflow_kv_capacity_tokens 430000",
            "evenflow_recomputed_tokens_total 0",
            f"evenflow_applied_generation {self.config.generation}",
        ]
        port = request.url.port
        wanted = [line for line in lines if line.startswith("vllm:") == (port == 8000)]
        return web.Response(text="\n".join(wanted) + "\n")

    async def state(self, _: web.Request) -> web.Response:
        generation, digest = self.config.generation, self.config.content_hash()
        state = WorkerState(generation, digest, "fake", "evenflow", "SVF", 430_000, 16, self.iterations, 3, 0)
        return web.json_response(state.document())

    async def lengths(self, _: web.Request) -> web.Response:
        return web.json_response(WorkerLengths({}).document())

    async def push(self, request: web.Request) -> web.Response:
        config = WorkerConfig.parse(await request.text())
        self.pushed.append(config.generation)
        self.config = config
        return web.json_response({"appliedGeneration": config.generation})


@contextlib.asynccontextmanager
async def engine_of(s: Stage) -> AsyncIterator[Engine]:
    """An engine on the address of the pool's only pod, with the config of its annotation."""
    await eventually(lambda: bool(s.pods()) and bool(s.pods()[0].get("status", {}).get("podIP")), "the pod runs")
    pod = s.pods()[0]
    engine = Engine()
    engine.config = annotated(pod)
    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", engine.metrics),
            web.get("/evenflow/v1/state", engine.state),
            web.get("/evenflow/v1/lengths", engine.lengths),
            web.put("/evenflow/v1/config", engine.push),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    for port in (8000, 8010):
        await web.TCPSite(runner, pod["status"]["podIP"], port).start()
    try:
        yield engine
    finally:
        await runner.cleanup()


def annotated(pod: Any) -> WorkerConfig:
    return WorkerConfig.parse(pod["metadata"]["annotations"]["evenflow.dev/worker-config"])


@pytest.mark.parametrize(
    ("trouble", "says"), [("nan", "not a number"), ("500", "HTTP 500"), ("hang", "no answer within")]
)
async def test_caps_and_replicas_hold_and_the_condition_says_why(
    tmp_path: Path, trouble: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "ScrapeMetrics", functools.partial(ScrapeMetrics, timeout=0.5))
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool(**POOL)
        async with engine_of(s) as engine:
            await eventually(lambda: s.condition("MetricsAvailable").get("status") == "True", "metrics are there")
            await eventually(lambda: s.condition("CapsConverged").get("status") == "True", "caps are applied")
            before = s.pods()[0]
            engine.trouble = trouble
            await eventually(
                lambda: (
                    s.condition("MetricsAvailable").get("status") == "False"
                    and says in s.condition("MetricsAvailable")["message"]
                ),
                f"the condition says {says!r}: {json.dumps(s.condition('MetricsAvailable'))}",
                limit=15,
            )
            after = s.pods()[0]
            assert after["metadata"]["uid"] == before["metadata"]["uid"]
            assert annotated(after) == annotated(before)
            assert len(s.names()) == 1
            engine.trouble = None
            await eventually(lambda: s.condition("MetricsAvailable").get("status") == "True", "and recovers", limit=15)


async def test_a_cap_in_the_spec_reaches_the_engine_without_waiting_for_a_sample(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool(replicas=1, metrics={"intervalSeconds": 300, "staleAfterSeconds": 3600})
        async with engine_of(s) as engine:
            await eventually(lambda: s.is_ready(), "ready")
            await s.patch_pool("llama", {"admission": {"mode": "Fixed", "capMicro": 700_000}})
            await eventually(lambda: engine.config.admission.per_iteration == 0.7, "the cap is applied", limit=5)
            assert annotated(s.pods()[0]) == engine.config, "the annotation came first and says the same"


async def test_a_prometheus_that_is_down_holds_and_is_named(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings(prometheus_url="http://127.0.0.1:1")):
        await s.apply_pool(**POOL)
        async with engine_of(s):
            await eventually(
                lambda: s.condition("MetricsAvailable").get("reason") == "SourceUnavailable",
                "the source is named",
                limit=15,
            )
            assert "Prometheus" in s.condition("MetricsAvailable")["message"]
            assert len(s.names()) == 1
