"""How the worker steers a real scheduler: order, cap, victims, watermark, classes, predictors, faults."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_kit import make_engine
from vllm_steered import SVF, Clock, apply, engine, no_hook_failed, running, waiting

from evenflow_contract.worker_config import Admission, Predictor, WorkerConfig
from evenflow_worker.predict import Prompt
from evenflow_worker.vllm.events import HookFailed, Misrouted, ModelAsked
from evenflow_worker.vllm.record import record_of

pytestmark = pytest.mark.vllm


def test_smallest_volume_first_and_a_live_change_of_policy(model_dir: Path) -> None:
    made = engine(model_dir, max_num_seqs=1)
    made.add("a", 10, 50, traffic_class="long")
    made.add("b", 10, 5, traffic_class="short")
    made.add("c", 200, 5, traffic_class="short")
    made.add("d", 5, 5, traffic_class="short")
    assert waiting(made) == ["d", "b", "c", "a"]
    apply(made, replace(SVF, generation=2, policy="FCFS"))
    made.step()
    assert running(made) == ["a"]
    assert waiting(made) == ["b", "c", "d"]


def test_a_cap_in_requests_admits_its_long_run_rate(model_dir: Path) -> None:
    config = replace(SVF, admission=Admission("Limited", "Requests", 0.7, 0.0))
    made = engine(model_dir, config, num_blocks=4000, max_num_seqs=256)
    for number in range(200):
        made.add(f"r{number}", 5, 400, traffic_class="long")
    for _ in range(200):
        made.step()
    counters = made.scheduler.evenflow.steering.counters
    # The first enters an idle engine for free of waiting; then 0.7 a step.
    assert abs(counters.admitted_new.total() - 140) <= 1


def test_an_idle_engine_always_admits_one(model_dir: Path) -> None:
    made = engine(model_dir, replace(SVF, admission=Admission("Limited", "Volume", 1e-6, 0.0)))
    for number in range(3):
        made.add(f"r{number}", 5, 3, traffic_class="short")
    made.run()
    assert made.scheduler.evenflow.steering.counters.iterations == 9, "one after the other"
    assert made.finished == ["r0", "r1", "r2"]


@pytest.mark.parametrize(("victim", "expected"), [("LargestVolume", "big"), ("LeastProgress", "late")])
def test_the_victim(model_dir: Path, victim: str, expected: str) -> None:
    config = replace(SVF, victim=victim)  # type: ignore[arg-type]
    made = engine(model_dir, config, num_blocks=9, block_size=16, max_model_len=128)
    made.add("big", 60, 60, traffic_class="long")
    made.step()
    made.add("late", 40, 60, traffic_class="short")
    for _ in range(40):
        before = {name: request.num_preemptions for name, request in made.scheduler.requests.items()}
        made.step()
        evicted = [name for name, r in made.scheduler.requests.items() if r.num_preemptions > before[name]]
        if evicted:
            break
    assert evicted == [expected]
    made.run()
    no_hook_failed(made)
    counters = made.scheduler.evenflow.steering.counters
    assert counters.recomputed_tokens > 0
    assert counters.admitted_resumed.total() == counters.evictions.total() >= 1


def test_the_watermark_is_live_and_the_servers_own_stands_without_an_operator(model_dir: Path) -> None:
    made = engine(model_dir, num_blocks=101)
    manager = made.scheduler.kv_cache_manager
    apply(made, replace(SVF, generation=2, admission=Admission(watermark=0.25)))
    assert manager.watermark_blocks == 25
    apply(made, replace(SVF, generation=3, admission=Admission()))
    assert manager.watermark_blocks == 0
    stock = make_engine(model_dir, num_blocks=101)
    stock.scheduler.kv_cache_manager.watermark_blocks = 7
    hooks = type(stock.scheduler.evenflow)(stock.scheduler)
    hooks.steering.offer(replace(WorkerConfig(), policy="SJF"))
    hooks.take_config()
    assert stock.scheduler.kv_cache_manager.watermark_blocks == 7


def test_aging_brings_the_largest_to_its_turn(model_dir: Path) -> None:
    clock = Clock()
    made = engine(model_dir, replace(SVF, aging_seconds=1.0), max_num_seqs=1, clock=clock)
    made.add("large", 100, 50, traffic_class="long")
    for step in range(4000):
        clock.now = step * 0.3
        if len(made.scheduler.waiting) < 4:
            made.add(f"r{step}", 10, 3, traffic_class="short")
        made.step()
        if "large" in running(made):
            break
    assert "large" in running(made), "starved"
    assert clock.now > 1.0


# ---------------------------------------------------------------------- classes, predictors, faults


def test_classes_are_folded_and_misrouted_ones_counted(model_dir: Path) -> None:
    made = engine(model_dir)
    for name in ("short", "elsewhere", None):
        made.add(f"r-{name}", 5, 2, traffic_class=name)
    made.run()
    counters = made.scheduler.evenflow.steering.counters
    assert counters.completed == {"short": 1, "default": 2}
    assert sum(isinstance(event, Misrouted) for event in made.scheduler.evenflow.steering.events) == 1


class Oracle:
    def predict(self, batch: Sequence[Prompt]) -> Sequence[float]:
        return [float((prompt.token_ids or [0])[-1]) for prompt in batch]


def test_a_trained_model_re_keys_what_waits(model_dir: Path) -> None:
    made = engine(model_dir, max_num_seqs=1)
    made.scheduler.evenflow.models.use(Oracle)
    made.add("running", 5, 200)
    made.step()
    for name, last in (("a", 300), ("b", 20), ("c", 100)):
        made.add(name, [*([4] * 9), last], 5)
    assert waiting(made) == ["a", "b", "c"], "until the model has answered, the prior decides"
    events = made.scheduler.evenflow.steering.events
    for _ in range(6000):
        if sum(event.batch for event in events if isinstance(event, ModelAsked)) == 4:
            break
        time.sleep(0.01)
    for _ in range(100):
        made.step()
        if waiting(made) != ["a", "b", "c"]:
            break
    assert waiting(made) == ["b", "c", "a"]
    no_hook_failed(made)
    made.scheduler.evenflow.models.close()


def test_max_tokens_is_a_bound_that_the_simulated_engine_does_not_use(model_dir: Path) -> None:
    """The one difference by design: a client's max_tokens bounds the prediction here, because vLLM stops there."""
    made = engine(model_dir)
    request = made.add("r", 10, 2, max_tokens=7, traffic_class="long")
    record = record_of(request)
    assert record is not None
    assert record.predicted == 7


def test_a_model_named_by_the_config_is_loaded_and_asked(model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    weights = np.zeros(512, dtype=np.float32)
    weights[9] = 2.0
    np.savez(path, weights=weights, bias=np.float64(3.0), slope=np.float64(0.0))
    made = engine(model_dir, replace(SVF, predictor=Predictor("Model", str(path))))
    request = made.add("r", [9] * 20, 500)
    record = record_of(request)
    assert record is not None
    for _ in range(6000):
        made.scheduler.evenflow._take_predictions()
        if record.predicted == pytest.approx(math.exp(5.0), rel=1e-5):
            break
        time.sleep(0.01)
    assert record.predicted == pytest.approx(math.exp(5.0), rel=1e-5)
    apply(made, replace(SVF, generation=2))
    assert not made.scheduler.evenflow.models.enabled
    no_hook_failed(made)


FAULTS = (
    *("register", "enqueue", "begin", "sort", "allows_head", "admitted", "evicted", "finished", "recompute", "apply"),
    *("_cached_tokens", "hooks._take_predictions", "hooks._skipped", "hooks.models", "hooks.peaks"),
)


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_of_ours_stops_the_engine(
    model_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = engine(model_dir, num_blocks=9, max_model_len=128)
    hooks = made.scheduler.evenflow
    steering = hooks.steering
    # As with adapters, and with a model beside: a look at both in the first pass.
    hooks._looks_at_skipped = True
    hooks.models.done.append((made.request("gone", 20, 20), 5.0))

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("boom")

    if name == "enqueue":
        monkeypatch.setattr(steering, "_key_of", broken)
    elif name.startswith("hooks."):
        part = name.removeprefix("hooks.")
        monkeypatch.setattr(hooks, part, broken if part.startswith("_") else object())
    else:
        monkeypatch.setattr(steering, name, broken)
    # A cap that asks and never refuses, so that there are evictions, too.
    steering.offer(replace(SVF, generation=2, admission=Admission("Limited", "Volume", 100.0)))
    for number in range(12):
        made.add(f"r{number}", 20 + number, 20)
    with caplog.at_level(logging.CRITICAL):
        made.run()
    assert sorted(made.finished) == sorted(f"r{number}" for number in range(12))
    assert made.free_blocks == 8
    assert [event for event in steering.events if isinstance(event, HookFailed)], "and nobody would know"
