"""The admin server beside the engine, its reports, and the names that are checked at start; without vLLM."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerState
from evenflow_worker.control.admin import AdminAccess
from evenflow_worker.control.settings import Source
from evenflow_worker.vllm import hooks, steering
from evenflow_worker.vllm.control import ControlThread
from evenflow_worker.vllm.events import HOOKS, Completion, FellBack, HookFailed, Misrouted, ModelAsked
from evenflow_worker.vllm.names import missing_attributes, missing_names
from evenflow_worker.vllm.queue import VolumeQueue
from evenflow_worker.vllm.reports import EngineReport
from evenflow_worker.vllm.steering import Steering

CONFIG = WorkerConfig(generation=4, policy="SJF", classes=("chat",))
SECONDS = 10.0


class FakeScheduler:
    """What the reports read of a scheduler."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.block_size = 16
        self.unfinished = 0
        self.kv_cache_manager = SimpleNamespace(
            block_pool=SimpleNamespace(num_gpu_blocks=101, get_num_free_blocks=lambda: 75)
        )

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.requests) - len(self.running)

    def get_num_unfinished_requests(self) -> int:
        return self.unfinished


class Parts:
    def __init__(self, *, stock: str | None = None) -> None:
        self.scheduler = FakeScheduler()
        self.steering = Steering(
            VolumeQueue(),
            capacity_tokens=1600,
            block_size=16,
            max_model_len=1000,
            cached_tokens=lambda request: 0,
            clock=lambda: 0.0,
        )
        self.peaks = SimpleNamespace(peaks=lambda now, current: {10: current})
        self.registry = CollectorRegistry()
        hooks: Any = None if stock else SimpleNamespace(steering=self.steering, peaks=self.peaks)
        self.report = EngineReport(self.scheduler, self.registry, hooks, version="vLLM 9.9.9", stock_reason=stock)


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_an_idle_engine_is_by_the_new_config_at_once(parts: Parts) -> None:
    parts.report.settings.apply(CONFIG.to_json(), Source.FILE)
    state = parts.report.state()
    assert (state.applied_generation, state.policy, state.config_hash) == (4, "SJF", CONFIG.content_hash())


def test_a_busy_engine_is_so_only_when_it_took_it(parts: Parts) -> None:
    parts.scheduler.unfinished = 1
    parts.report.settings.apply(CONFIG.to_json(), Source.FILE)
    assert parts.report.state().applied_generation == 0
    assert parts.registry.get_sample_value("evenflow_applied_generation") == 0
    assert parts.steering.take_offered()
    assert parts.report.state().applied_generation == 4
    assert parts.registry.get_sample_value("evenflow_applied_generation") == 4


def test_a_config_that_the_engine_could_not_take_is_not_reported(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: WorkerConfig) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(parts.steering.predictor, "configure", broken)
    parts.report.settings.apply(CONFIG.to_json(), Source.FILE)
    with pytest.raises(RuntimeError):
        parts.steering.take_offered()
    assert parts.report.state().applied_generation == 0
    assert parts.registry.get_sample_value("evenflow_applied_generation") == 0


def test_events_reach_lengths_and_metrics(parts: Parts) -> None:
    parts.report.settings.apply(CONFIG.to_json(), Source.FILE)
    parts.steering.events += [
        Completion("chat", 10, 20, 25.0),
        Completion("gone", 10, 30, None),
        HookFailed("gate"),
        FellBack("late", 3),
        ModelAsked(5, 0.01),
        Misrouted(),
    ]
    lengths = parts.report.lengths()
    assert {name: one.outputs for name, one in lengths.classes.items()} == {"chat": {20: 1.0}, "default": {30: 1.0}}
    sample = parts.registry.get_sample_value
    assert sample("evenflow_hook_errors_total", {"hook": "gate"}) == 1
    assert sample("evenflow_predictor_fallback_total", {"reason": "late"}) == 3
    assert sample("evenflow_predictor_batch_size_count") == 1
    assert sample("evenflow_misrouted_requests_total") == 1
    assert sample("evenflow_kv_usage_peak_ratio", {"window": "10s"}) == 0.25
    assert not parts.steering.events


def test_every_hook_has_its_series_before_it_fails_for_the_first_time(parts: Parts) -> None:
    sources = "".join(Path(str(module.__file__)).read_text() for module in (hooks, steering))
    assert set(re.findall(r"failed\(\"(\w+)\"\)", sources)) == set(HOOKS)
    for hook in HOOKS:
        assert parts.registry.get_sample_value("evenflow_hook_errors_total", {"hook": hook}) == 0


def test_stock_scheduling_says_so() -> None:
    parts = Parts(stock="this vLLM lacks Scheduler.waiting")
    parts.report.settings.apply(CONFIG.to_json(), Source.FILE)
    document = parts.report.state().document()
    assert (document["scheduler"], document["policy"]) == ("stock", "FCFS")
    assert document["reason"] == "this vLLM lacks Scheduler.waiting"
    sample = parts.registry.get_sample_value
    assert sample("evenflow_iterations_total") is None, "zero would say that the engine stands still"
    assert sample("evenflow_evictions_total", {"traffic_class": "chat"}) is None
    assert sample("evenflow_applied_generation") == 4


@pytest.mark.parametrize("missing", ["get_request_counts", "block_size", "kv_cache_manager"])
def test_stock_scheduling_says_so_whatever_name_is_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(stock=f"this vLLM lacks Scheduler.{missing}")
    request = SimpleNamespace(request_id="a")
    parts.scheduler.requests, parts.scheduler.running = {"a": request, "b": SimpleNamespace()}, [request]
    if missing == "get_request_counts":
        monkeypatch.delattr(FakeScheduler, missing)
    else:
        delattr(parts.scheduler, missing)
    state = WorkerState.parse(parts.report.state().document())
    assert (state.scheduler, state.running, state.waiting) == ("stock", 1, 1)
    assert b'scheduler="stock"' in generate_latest(parts.registry)


class Running:
    def __init__(self, parts: Parts, config: Path, port: int = 0) -> None:
        self.control = ControlThread(parts.report, parts.registry, AdminAccess("127.0.0.1"), port, config)
        self.control.start()

    def url(self, path: str) -> str:
        assert self.control.bound.wait(SECONDS)
        return f"http://127.0.0.1:{self.control.port}{path}"


@pytest.fixture
def running(parts: Parts, tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    running = Running(parts, tmp_path / "config.json")
    yield running
    running.control.stop()


async def test_the_thread_serves_and_follows_the_file(parts: Parts, running: Running, tmp_path: Path) -> None:
    assert parts.steering.offered, "the file was read before the thread started"
    async with aiohttp.ClientSession() as session:
        async with session.get(running.url("/evenflow/v1/state")) as answer:
            assert (await answer.json())["appliedGeneration"] == 4
        async with session.put(
            running.url("/evenflow/v1/config"), data=json.dumps({**CONFIG.document(), "generation": 5})
        ) as answer:
            assert await answer.json() == {"appliedGeneration": 5}
        async with session.get(running.url("/metrics")) as answer:
            assert "evenflow_applied_generation 5.0" in await answer.text()
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG.document(), "generation": 6}))
        async with asyncio.timeout(SECONDS):
            while parts.report.settings.config.generation != 6:
                await asyncio.sleep(0.02)
    parts.steering.take_offered()
    assert parts.steering.config.generation == 6


def test_a_port_that_is_taken_for_days_keeps_nothing_and_holds_up_no_shutdown(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    tried = threading.Event()

    class Site(web.TCPSite):
        async def start(self) -> None:
            left.append(len(self._runner.sites))
            if len(left) == 4:
                monkeypatch.setattr("evenflow_worker.vllm.control.BIND_RETRY_SECONDS", 3600.0)
                tried.set()
            await super().start()

    monkeypatch.setattr(web, "TCPSite", Site)
    monkeypatch.setattr("evenflow_worker.vllm.control.BIND_RETRY_SECONDS", 0.001)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        running = Running(parts, tmp_path / "none.json", other.getsockname()[1])
        assert tried.wait(SECONDS)
        running.control.stop(timeout=SECONDS)
    assert left == [0, 0, 0, 0]
    assert not running.control._thread.is_alive()


def test_an_idle_engine_keeps_only_the_newest_of_many_configs(parts: Parts) -> None:
    for generation in range(1, 1000):
        parts.report.settings.apply(replace(CONFIG, generation=4 + generation).to_json(), Source.FILE)
    assert len(parts.steering.offered) == 1
    parts.steering.take_offered()
    assert parts.steering.config.generation == 1003


def test_a_port_that_is_taken_ends_nothing(parts: Parts, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        logged = threading.Event()
        running = Running(parts, tmp_path / "none.json", other.getsockname()[1])
        for _ in range(500):
            if "the engine serves without it" in caplog.text:
                logged.set()
                break
            logged.wait(0.01)
        assert logged.is_set()
        assert not running.control.bound.is_set()
    running.control.stop(timeout=0.1)


class Queue:
    __abstractmethods__ = frozenset({"add_request", "peek_request", "new_tomorrow"})


def test_what_vllm_lacks_is_named() -> None:
    class Scheduler:
        def schedule(self) -> None: ...

    class Request:
        def __init__(self) -> None:
            self.num_prompt_tokens = 1

    found = missing_names(Scheduler, Request, Queue, VolumeQueue)
    assert "Scheduler.add_request" in found
    assert "Scheduler.schedule" not in found
    assert "Request.max_tokens" in found
    assert "Request.num_prompt_tokens" not in found
    assert found[-1] == "RequestQueue.new_tomorrow is unknown to us"
    assert "Scheduler.kv_cache_manager" in missing_attributes(Scheduler())
