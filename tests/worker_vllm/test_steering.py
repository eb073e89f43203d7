"""The worker laid over a scheduler that behaves as vLLM's does, as far as the worker can see; vLLM isn't needed."""

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from evenflow_contract.worker_config import Admission, ClassPrior, WorkerConfig
from evenflow_worker.vllm.events import HookFailed, Misrouted
from evenflow_worker.vllm.hooks import Hooks
from evenflow_worker.vllm.mixin import EvenflowScheduling
from evenflow_worker.vllm.record import record_of

CONFIG = WorkerConfig(
    generation=1,
    aging_seconds=0.0,
    classes=("short", "long"),
    class_priors={"short": ClassPrior(10, 5), "long": ClassPrior(10, 50)},
)


class Status:
    def __init__(self, name: str) -> None:
        self.name = name


class FakeRequest:
    def __init__(self, request_id: str, prompt: int, traffic_class: str | None, adapter: int | None) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = self.num_tokens = prompt
        self.num_computed_tokens = self.num_output_tokens = self.num_output_placeholders = self.num_preemptions = 0
        self.max_tokens = 1000
        self.sampling_params = SimpleNamespace(extra_args={"traffic_class": traffic_class} if traffic_class else None)
        self.prompt_token_ids = [1] * prompt
        self.block_hashes: list[Any] = []
        self.lora_request = None if adapter is None else SimpleNamespace(lora_int_id=adapter)
        self.status = Status("WAITING")

    def is_finished(self) -> bool:
        return self.status.name.startswith("FINISHED")


class FakeScheduler:
    """One adapter at a time, one token per request and pass, a fixed number of sequences."""

    def __init__(self, max_num_seqs: int = 4) -> None:
        self.max_num_seqs = max_num_seqs
        self.waiting: Any = deque_queue()
        self.deferred_waiting: set[Any] = set()
        self.blocked: set[str] = set()
        self.running: list[Any] = []
        self.requests: dict[str, Any] = {}
        self.policy = SimpleNamespace(value="fcfs")
        self.pause_state = SimpleNamespace(name="UNPAUSED")
        self.max_num_scheduled_tokens = 2048
        self.max_model_len = 2000
        self.block_size = self.hash_block_size = 16
        self.lora_config: Any = SimpleNamespace()
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[1])
        self.free = 100
        pool = SimpleNamespace(
            num_gpu_blocks=101, get_num_free_blocks=lambda: self.free, get_cached_block=lambda *a: None
        )
        self.kv_cache_manager = SimpleNamespace(watermark_blocks=3, enable_caching=False, block_pool=pool)

    def add_request(self, request: Any) -> None:
        self.waiting.add_request(request)
        self.requests[request.request_id] = request

    def schedule(self) -> Any:
        adapters = {r.lora_request.lora_int_id for r in self.running if r.lora_request}
        skipped = []
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting.peek_request()
            adapter = request.lora_request and request.lora_request.lora_int_id
            assert self.waiting.pop_request() is request
            crowded = adapter is not None and adapters and adapter not in adapters
            if crowded or request.request_id in self.blocked:
                getattr(self, "deferred_waiting", set()).add(request)
                skipped.append(request)
                continue
            getattr(self, "deferred_waiting", set()).discard(request)
            request.status = Status("RUNNING")
            self.running.append(request)
            adapters |= {adapter} if adapter is not None else set()
        self.waiting.prepend_requests(skipped)
        scheduled = {}
        for request in self.running:
            scheduled[request.request_id] = request.num_tokens - request.num_computed_tokens
            request.num_computed_tokens = request.num_tokens
        return SimpleNamespace(num_scheduled_tokens=scheduled)

    def tokens(self) -> None:
        for request in self.running:
            request.num_output_tokens += 1
            request.num_tokens += 1

    def preempt_last(self) -> Any:
        request = self.running.pop()
        self._preempt_request(request)
        return request

    def _preempt_request(self, request: Any) -> None:
        request.status = Status("PREEMPTED")
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.prepend_request(request)

    def finish(self, request: Any, status: str = "FINISHED_STOPPED") -> None:
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove_requests([request])
        request.status = Status(status)
        self._free_request(request)

    def _free_request(self, request: Any) -> None:
        del self.requests[request.request_id]

    def shutdown(self) -> None: ...


def deque_queue() -> Any:
    queue = deque[Any]()
    return SimpleNamespace(prepend_request=queue.appendleft)


class Steered(EvenflowScheduling, FakeScheduler):  # type: ignore[misc]
    pass


class Bench:
    def __init__(self, config: WorkerConfig = CONFIG, **options: Any) -> None:
        self.now = 0.0
        self.scheduler: Any = Steered(**options)
        assert isinstance(self.scheduler.evenflow, Hooks), self.scheduler.evenflow
        self.steering = self.scheduler.evenflow.steering
        self.steering.clock = lambda: self.now
        self.apply(config)

    def apply(self, config: WorkerConfig) -> None:
        self.steering.offer(config)
        self.scheduler.evenflow.take_config()

    def add(self, name: str, prompt: int = 10, kind: str | None = "short", adapter: int | None = None) -> FakeRequest:
        request = FakeRequest(name, prompt, kind, adapter)
        self.scheduler.add_request(request)
        return request

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]

    def failures(self) -> list[Any]:
        return [event for event in self.steering.events if isinstance(event, HookFailed)]


def test_order_cap_and_truth_of_the_length() -> None:
    bench = Bench(replace(CONFIG, admission=Admission("Limited", "Requests", 1.0, 0.0)))
    for name, prompt, kind in (("a", 10, "long"), ("b", 50, "short"), ("c", 10, "short")):
        bench.add(name, prompt, kind)
    bench.scheduler.schedule()
    assert bench.running == ["c"]
    assert len(bench.scheduler.waiting) == 2
    assert bench.scheduler.waiting
    bench.scheduler.schedule()
    assert bench.running == ["c", "b"]
    assert not bench.failures()


def test_an_evicted_request_is_keyed_by_volume_let_in_and_counted() -> None:
    bench = Bench(replace(CONFIG, admission=Admission("Limited", "Requests", 0.001, 0.0)))
    request = bench.add("a", 10, "short")
    bench.scheduler.schedule()
    for _ in range(7):
        bench.scheduler.tokens()
        bench.scheduler.schedule()
    bench.add("other", 10, "short")
    bench.scheduler.evenflow._in_pass = True
    bench.scheduler.preempt_last()
    record = record_of(request)
    assert record is not None
    assert (record.predicted, record.highest_computed) == (8.0, 17)
    assert bench.waiting == ["other", "a"], "it turned out longer than the other is predicted to be"
    bench.scheduler.finish(bench.scheduler.requests["other"], "FINISHED_ABORTED")
    bench.scheduler.schedule()
    assert bench.running == ["a"]
    counters = bench.steering.counters
    assert (counters.evictions, counters.admitted_resumed) == ({"short": 1}, {"short": 1})
    assert counters.admitted_new == {"short": 1}
    assert counters.recomputed_tokens == 17
    assert not bench.failures()


def test_a_due_request_holds_back_those_that_would_keep_it_out() -> None:
    bench = Bench(replace(CONFIG, aging_seconds=1.0), max_num_seqs=2)
    first = bench.add("first", adapter=1)
    bench.scheduler.schedule()
    bench.add("other", 5, adapter=2)
    bench.now = 2.9
    second = bench.add("second", adapter=1)
    bench.scheduler.schedule()
    assert bench.running == ["first", "second"], "not due yet"
    bench.scheduler.finish(first)
    bench.add("third", adapter=1)
    bench.now = 3.5
    bench.scheduler.schedule()
    assert bench.running == ["second"], "due: nobody new enters before it"
    bench.scheduler.finish(second)
    bench.scheduler.schedule()
    assert bench.running[0] == "other"
    assert not bench.failures()


def test_an_idle_engine_holds_nobody_back() -> None:
    """Whatever else keeps the due request out (a KV transfer, say), nothing of ours may stall the engine."""
    bench = Bench(replace(CONFIG, aging_seconds=1.0))
    first = bench.add("first", adapter=1)
    bench.scheduler.schedule()
    bench.add("other", adapter=2)
    bench.scheduler.schedule()
    bench.now = 3.5
    bench.scheduler.blocked = {"other"}
    for name in ("third", "fourth"):
        bench.add(name)
    bench.scheduler.schedule()
    assert bench.running == ["first"]
    bench.scheduler.finish(first)
    bench.scheduler.schedule()
    assert bench.running == ["third"], "one, and the next after it still waits"


def test_a_request_that_waits_for_its_own_grammar_holds_nobody_back() -> None:
    """No other request keeps it out, so that holding them back would only leave the engine idle."""
    bench = Bench(replace(CONFIG, aging_seconds=1.0))
    bench.add("first", adapter=1)
    bench.scheduler.schedule()
    compiling = bench.add("compiling", adapter=2)
    compiling.status = Status("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR")
    bench.scheduler.blocked = {"compiling"}
    bench.scheduler.schedule()
    bench.now = 100.0
    bench.add("second")
    bench.scheduler.schedule()
    assert bench.running == ["first", "second"]
    assert not bench.failures()


def test_a_prediction_that_comes_late_decides_about_the_victim() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.add(name)
    bench.scheduler.schedule()
    assert bench.running == ["a", "b", "c"]
    bench.steering.predict(bench.scheduler.requests["a"], 900.0)
    bench.steering.sort(bench.scheduler.running)
    assert bench.running == ["b", "c", "a"]


def test_only_what_ran_to_its_end_is_learnt_from() -> None:
    bench = Bench()
    for status, output in (("FINISHED_STOPPED", 40), ("FINISHED_ABORTED", 900), ("FINISHED_LENGTH_CAPPED", 60)):
        request = bench.add(status)
        bench.scheduler.schedule()
        request.num_output_tokens = output
        bench.scheduler.finish(request, status)
    assert bench.steering.counters.completed == {"short": 2}
    assert 5 < bench.steering.predictor.predict("short", 10) < 60


def test_an_abort_by_a_stop_string_is_an_end() -> None:
    bench = Bench()
    for name, output in (("never ran", 0), ("stopped", 12)):
        request = bench.add(name)
        request.sampling_params.stop = ["END"]
        request.num_output_tokens = output
        bench.scheduler.finish(request, "FINISHED_ABORTED")
    assert bench.steering.counters.completed == {"short": 1}


def test_a_class_that_is_not_listed_is_default_and_misrouted() -> None:
    bench = Bench()
    record = record_of(bench.add("a", kind="elsewhere"))
    assert record is not None
    assert record.traffic_class == "default"
    assert [event for event in bench.steering.events if isinstance(event, Misrouted)]


def test_the_watermark_is_the_operators_once_there_is_one() -> None:
    bench = Bench(replace(CONFIG, generation=0))
    manager = bench.scheduler.kv_cache_manager
    assert manager.watermark_blocks == 3
    bench.apply(replace(CONFIG, generation=1, admission=Admission(watermark=0.1)))
    assert manager.watermark_blocks == 10


@pytest.mark.parametrize("broken", [None, "begin", "recompute"])
def test_vllms_own_pass_runs_exactly_once(broken: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever our hooks do; and what it raises is vLLM's to handle, with the queue as it was."""
    bench = Bench()
    passes: list[Any] = []
    original = FakeScheduler.schedule
    monkeypatch.setattr(FakeScheduler, "schedule", lambda self: passes.append(self) or original(self))
    if broken is not None:
        monkeypatch.setattr(bench.steering, broken, None)
    bench.add("a")
    bench.scheduler.schedule()
    assert (len(passes), bench.running) == (1, ["a"])
    assert len(bench.failures()) == (broken is not None)

    def fails(self: Any) -> Any:
        raise OSError("the pass fails")

    monkeypatch.setattr(FakeScheduler, "schedule", fails)
    bench.apply(replace(CONFIG, generation=2, admission=Admission("Limited", "Requests", 0.001)))
    bench.add("b")
    with pytest.raises(OSError, match="the pass fails"):
        bench.scheduler.schedule()
    assert bench.scheduler.waiting, "the gate is gone with the pass"


def test_without_a_list_of_the_skipped_the_cap_still_holds() -> None:
    """It has had another name before, so nothing else may hang on it."""
    bench = Bench(replace(CONFIG, admission=Admission("Limited", "Requests", 1.0, 0.0)))
    del bench.scheduler.deferred_waiting
    for name in ("a", "b", "c"):
        bench.add(name)
    bench.scheduler.schedule()
    assert bench.running == ["a"]
    assert not bench.failures()


@pytest.mark.parametrize("name", ["pause_state", "block_size", "kv_cache_config"])
def test_a_scheduler_without_a_name_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FakeScheduler.__init__

    def without(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        delattr(self, name)

    monkeypatch.setattr(FakeScheduler, "__init__", without)
    scheduler: Any = Steered()
    assert scheduler.evenflow == f"this vLLM lacks Scheduler.{name}"
