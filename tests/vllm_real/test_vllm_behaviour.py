"""How the worker steers a real scheduler: order, cap, victims, watermark, and the requests that take other ways."""

import logging
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vllm_kit
from vllm.lora.request import LoRARequest
from vllm.pooling_params import PoolingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request
from vllm_kit import Engine, make_engine

from evenflow_contract.worker_config import Admission, ClassPrior, WorkerConfig
from evenflow_worker.predict import Prompt
from evenflow_worker.vllm import factory, mixin
from evenflow_worker.vllm.events import HookFailed, Misrouted, ModelAsked
from evenflow_worker.vllm.names import TESTED_VERSIONS
from evenflow_worker.vllm.record import record_of

pytestmark = pytest.mark.vllm

SVF = WorkerConfig(
    generation=1,
    aging_seconds=0.0,
    classes=("short", "long"),
    class_priors={"short": ClassPrior(10, 5), "long": ClassPrior(10, 50)},
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def engine(model: Path, config: WorkerConfig = SVF, **options: Any) -> Engine:
    made = make_engine(model, clock=options.pop("clock", Clock()), **options)
    apply(made, config)
    return made


def apply(made: Engine, config: WorkerConfig) -> None:
    made.scheduler.evenflow.steering.offer(config)
    made.scheduler.evenflow.take_config()


def running(made: Engine) -> list[str]:
    return [request.request_id for request in made.scheduler.running]


def waiting(made: Engine) -> list[str]:
    return [request.request_id for request in made.scheduler.waiting]


def no_hook_failed(made: Engine) -> None:
    assert not [event for event in made.scheduler.evenflow.steering.events if isinstance(event, HookFailed)]


# ---------------------------------------------------------------------- order and admission


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


# ---------------------------------------------------------------------- requests that take other ways


def test_every_child_of_one_prompt_counts_once(model_dir: Path) -> None:
    made = engine(model_dir)
    for child in range(4):
        made.add(f"{child}-0-parent", 20, 5, traffic_class="short")
    made.run()
    counters = made.scheduler.evenflow.steering.counters
    assert counters.completed == counters.admitted_new == {"short": 4}


def lora(number: int) -> LoRARequest:
    return LoRARequest(lora_name=f"adapter-{number}", lora_int_id=number, lora_path="nowhere")


@pytest.mark.parametrize("aging", [0.0, 1.0])
def test_an_adapter_that_is_kept_out_gets_its_turn_with_aging(model_dir: Path, aging: float) -> None:
    """One adapter at a time: without aging, requests for the one in use could keep the other out for ever."""
    clock = Clock()
    config = replace(SVF, aging_seconds=aging)
    made = engine(model_dir, config, clock=clock, max_loras=1, max_num_seqs=4, num_blocks=400)
    made.add("first", 20, 40, lora=lora(1), traffic_class="short")
    made.step()
    made.add("other", 20, 5, lora=lora(2), traffic_class="short")
    entered = None
    for step in range(400):
        clock.now = step * 0.05
        if len(made.scheduler.requests) < 8:
            made.add(f"r{step}", 20, 20, lora=lora(1), traffic_class="short")
        made.step()
        if "other" in running(made) or "other" in made.finished:
            entered = clock.now
            break
    if aging:
        assert entered is not None, "held out for ever"
        assert entered >= 3.0, "before it was due nobody has to wait for it"
    else:
        assert entered is None
    no_hook_failed(made)


def test_structured_output_waits_for_its_grammar_and_keeps_its_place(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(model_dir, max_num_seqs=1)
    ready = False
    blocked = made.request("grammar", 5, 3, traffic_class="short")
    blocked.status = vllm_kit.RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    def promote(request: Request) -> bool:
        if request.status != vllm_kit.RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return original(request)
        if ready:
            request.status = vllm_kit.RequestStatus.WAITING
        return ready

    name = next(
        name
        for name in ("_handle_blocked_waiting_request", "_try_promote_blocked_waiting_request")
        if hasattr(made.scheduler, name)
    )
    original = getattr(made.scheduler, name)
    monkeypatch.setattr(made.scheduler, name, promote)
    made.scheduler.add_request(blocked)
    made.add("a", 10, 2, traffic_class="short")
    made.add("b", 10, 2, traffic_class="short")
    made.step()
    assert running(made) == ["a"], "the others don't wait for the grammar"
    assert blocked.request_id in made.scheduler.requests
    ready = True
    made.step()
    made.step()
    assert running(made) == ["grammar"], "smallest of all, once it may"
    made.run()
    assert sorted(made.finished) == ["a", "b", "grammar"]
    assert made.scheduler.evenflow.steering.counters.admitted_new.total() == 3
    no_hook_failed(made)


def test_a_session_with_streamed_input_is_one_request(model_dir: Path) -> None:
    made = engine(model_dir)

    def chunk(tokens: int, *, last: bool = False) -> Request:
        request = made.request("session", tokens, 3, max_tokens=3, traffic_class="short", resumable=not last)
        made.outputs["session"] = 10_000
        return request

    made.scheduler.add_request(chunk(10))
    for _ in range(6):
        made.step()
    made.scheduler.add_request(chunk(7))
    for _ in range(6):
        made.step()
    made.add("other", 10, 3, traffic_class="short")
    for _ in range(6):
        made.step()
    counters = made.scheduler.evenflow.steering.counters
    assert counters.admitted_new == {"short": 2}
    made.abort(["session"])
    assert made.run(100) >= 0
    assert not made.scheduler.requests
    assert counters.completed == {"short": 1}
    no_hook_failed(made)


def test_a_pooling_request_costs_one_pass(model_dir: Path) -> None:
    made = engine(model_dir)
    request = Request(
        request_id="pool",
        prompt_token_ids=[5] * 30,
        sampling_params=None,
        pooling_params=PoolingParams(task="embed"),
    )
    made.outputs["pool"] = 1
    made.scheduler.add_request(request)
    record = record_of(request)
    assert record is not None
    assert (record.predicted, record.traffic_class) == (1.0, "default")
    assert waiting(made) == ["pool"]
    made.schedule()
    assert running(made) == ["pool"]
    made.in_flight.clear()
    made.abort(["pool"])
    no_hook_failed(made)


def test_cached_prompt_tokens_are_no_volume(model_dir: Path) -> None:
    made = engine(model_dir, caching=True, num_blocks=200, max_num_seqs=1)
    shared = [9] * 160
    made.add("first", shared, 2, traffic_class="short")
    made.run()
    made.add("running", [4] * 20, 8, traffic_class="short")
    made.step()
    made.add("cached", [*shared, 5, 6, 7], 5, traffic_class="short")
    made.add("smaller", [11] * 40, 5, traffic_class="short")
    record = record_of(made.scheduler.requests["cached"])
    assert record is not None
    assert (record.prompt, record.cached, record.own_prompt) == (163, 160, 3)
    assert waiting(made) == ["cached", "smaller"]
    hits = made.scheduler.kv_cache_manager.get_computed_blocks(made.scheduler.requests["cached"])[1]
    assert hits == 160, "our look-up and vLLM's agree"
    made.run()
    no_hook_failed(made)


def test_our_look_up_agrees_with_vllms_for_random_prompts(model_dir: Path, seed: int) -> None:
    source = random.Random(seed)
    made = engine(model_dir, caching=True, num_blocks=60, block_size=4, max_model_len=200)
    prompts: list[list[int]] = []
    for number in range(300):
        base = source.choice(prompts)[: source.randrange(1, 80)] if prompts and source.random() < 0.7 else []
        prompt = [*base, *(source.randrange(3, 9) for _ in range(source.randrange(1, 60)))][:150]
        prompts.append(prompt)
        request = made.add(f"r{number}", prompt, source.randrange(1, 20))
        record = record_of(request)
        assert record is not None
        assert record.cached == made.scheduler.kv_cache_manager.get_computed_blocks(request)[1]
        for _ in range(source.randrange(4)):
            made.step()
    made.run()
    no_hook_failed(made)


def test_abort_anywhere(model_dir: Path) -> None:
    made = engine(model_dir, num_blocks=9)
    for number in range(10):
        made.add(f"r{number}", 30, 20)
    for _ in range(3):
        made.step()
    made.abort(sorted(made.scheduler.requests))
    assert not len(made.scheduler.waiting)
    assert not made.scheduler.requests
    assert made.free_blocks == 8
    assert made.scheduler.evenflow.steering.counters.completed.total() == 0


def test_paused_it_collects_no_credit_and_loses_nothing(model_dir: Path) -> None:
    config = replace(SVF, admission=Admission("Limited", "Requests", 1.0, 0.0))
    made = engine(model_dir, config, num_blocks=4000)
    made.add("first", 5, 300)
    made.step()
    for number in range(20):
        made.add(f"r{number}", 5, 300)
    before = made.scheduler.evenflow.steering.bucket.credit
    made.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    for _ in range(10):
        made.step()
    assert made.scheduler.evenflow.steering.bucket.credit == before
    assert running(made) == ["first"]
    made.scheduler.set_pause_state(PauseState.UNPAUSED)
    made.step()
    assert 1 <= len(running(made)) - 1 <= 2
    made.run()
    assert len(made.finished) == 21


def test_dropping_the_cache_is_no_eviction(model_dir: Path) -> None:
    made = engine(model_dir)
    for number in range(5):
        made.add(f"r{number}", 20, 10)
    made.step()
    assert made.scheduler.reset_prefix_cache(reset_running_requests=True)
    made.run()
    counters = made.scheduler.evenflow.steering.counters
    assert counters.evictions.total() == 0
    assert counters.admitted_new.total() == 5
    assert counters.admitted_resumed.total() == 5


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
    for _ in range(1000):
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


@pytest.mark.parametrize(
    "name",
    ["register", "enqueue", "begin", "sort", "allows_head", "admitted", "evicted", "finished", "recompute", "apply"],
)
def test_no_fault_of_ours_stops_the_engine(
    model_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = engine(model_dir, num_blocks=9, max_model_len=128)
    steering = made.scheduler.evenflow.steering

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("boom")

    if name == "enqueue":
        monkeypatch.setattr(steering, "_key_of", broken)
    else:
        monkeypatch.setattr(steering, name, broken)
    steering.offer(replace(SVF, generation=2))
    for number in range(12):
        made.add(f"r{number}", 20 + number, 20)
    with caplog.at_level(logging.CRITICAL):
        made.run()
    assert sorted(made.finished) == sorted(f"r{number}" for number in range(12))
    assert made.free_blocks == 8
    assert [event for event in steering.events if isinstance(event, HookFailed)], "and nobody would know"


# ---------------------------------------------------------------------- start


def test_the_expected_release_is_what_is_tested() -> None:
    expected = os.environ.get("EVENFLOW_EXPECT_VLLM")
    if expected is None:
        pytest.skip("EVENFLOW_EXPECT_VLLM is not set: whatever vLLM is installed is tested")
    assert factory.vllm_version() == expected
    assert expected.startswith(TESTED_VERSIONS)


def test_a_missing_name_means_stock_scheduling(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow_worker.vllm.names.METHODS", ("schedule", "gone_tomorrow"))
    config = vllm_kit.make_config(model_dir)
    scheduler, reason = vllm_kit.built(config)
    assert reason is not None
    assert "Scheduler.gone_tomorrow" in reason
    assert type(scheduler) is factory.stock_class(False)


def test_a_missing_attribute_of_the_built_scheduler_too(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow_worker.vllm.names.KV_ATTRIBUTES", ("gone_tomorrow",))
    scheduler, reason = vllm_kit.built(vllm_kit.make_config(model_dir))
    assert reason == "this vLLM lacks KVCacheManager.gone_tomorrow"
    made = Engine(scheduler, 16, False)
    made.add("a", 5, 3)
    made.run()
    assert made.finished == ["a"]


def test_a_set_up_that_fails_means_stock_scheduling(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scheduler: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(mixin, "Hooks", broken)
    scheduler, reason = vllm_kit.built(vllm_kit.make_config(model_dir))
    assert reason is not None
    assert "boom" in reason
    made = Engine(scheduler, 16, False)
    made.add("a", 5, 3)
    made.run()
    assert made.finished == ["a"]


def test_with_vllms_own_priorities_it_stands_aside(model_dir: Path) -> None:
    made = make_engine(model_dir, policy="priority")
    assert isinstance(made.scheduler.evenflow, str)
    made.add("a", 5, 3)
    made.run()
    assert made.finished == ["a"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_right_base_for_each_mode(model_dir: Path, asynchronous: bool) -> None:
    made = make_engine(model_dir, asynchronous=asynchronous)
    assert isinstance(made.scheduler, factory.stock_class(asynchronous))
    assert type(made.scheduler).__module__ == "evenflow_worker.vllm.factory"
