"""Requests that take other ways through a real scheduler: none lost, none counted twice."""

import random
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest
from vllm_kit import Engine
from vllm_steered import SVF, Clock, engine, no_hook_failed, running, waiting

from evenflow_contract.worker_config import Admission
from evenflow_worker.vllm.record import record_of

pytestmark = pytest.mark.vllm


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


class Compiled(StructuredOutputGrammar):  # type: ignore[misc]
    """A grammar that accepts whatever comes."""

    def accept_tokens(self, *args: Any) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


# What else is abstract differs between releases, and nothing here asks for it.
Compiled.__abstractmethods__ = frozenset()


def add_structured(made: Engine, name: str, *, traffic_class: str = "short") -> Future[Any]:
    """A request whose grammar is compiled when the future gets its result."""
    request = made.request(name, 5, 3, traffic_class=traffic_class)
    assert request.sampling_params is not None
    request.sampling_params.structured_outputs = StructuredOutputsParams(regex="w+")
    request.structured_output_request = StructuredOutputRequest.from_sampling_params(request.sampling_params)
    assert request.structured_output_request is not None
    compiling: Future[Any] = Future()
    request.structured_output_request.grammar = compiling
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    made.scheduler.add_request(request)
    return compiling


def test_structured_output_waits_for_its_grammar_and_keeps_its_place(model_dir: Path) -> None:
    made = engine(model_dir, max_num_seqs=1)
    compiling = add_structured(made, "grammar")
    made.add("a", 10, 2, traffic_class="short")
    made.add("b", 10, 2, traffic_class="short")
    made.step()
    assert running(made) == ["a"], "the others don't wait for the grammar"
    assert "grammar" in made.scheduler.requests
    compiling.set_result(Compiled())
    made.step()
    made.step()
    assert running(made) == ["grammar"], "smallest of all, once it may"
    made.run()
    assert sorted(made.finished) == ["a", "b", "grammar"]
    assert made.scheduler.evenflow.steering.counters.admitted_new.total() == 3
    no_hook_failed(made)


def test_a_grammar_that_takes_long_stops_nobody_and_costs_no_place(model_dir: Path) -> None:
    """While it is compiled no other request is in its way, so none is held back. Then its whole wait counts."""
    clock = Clock()
    made = engine(model_dir, replace(SVF, aging_seconds=1.0), max_num_seqs=1, clock=clock)
    compiling = add_structured(made, "grammar", traffic_class="long")
    for step in range(400):
        clock.now = step * 0.25
        if len(made.scheduler.requests) < 4:
            made.add(f"r{step}", 10, 3, traffic_class="short")
        made.step()
    assert clock.now > 3.0, "due long ago"
    assert len(made.finished) > 90, "the engine served on"
    assert "grammar" not in running(made)
    compiling.set_result(Compiled())
    for _ in range(4):
        made.step()
        made.add(f"late{len(made.outputs)}", 5, 3, traffic_class="short")
    assert "grammar" in [*running(made), *made.finished], "of a large class, but it waited longest by far"
    made.run()
    no_hook_failed(made)


def test_grammars_compiled_together_are_charged_to_the_cap(model_dir: Path) -> None:
    """vLLM up to 0.30 would admit them all at once, from a list of its own that it asks before the queue."""
    config = replace(SVF, admission=Admission("Limited", "Requests", 0.5, 0.0))
    made = engine(model_dir, config, num_blocks=4000)
    made.add("first", 5, 900, traffic_class="short")
    made.step()
    grammars = [add_structured(made, f"g{number}") for number in range(10)]
    made.step()
    for number in range(20):
        made.add(f"r{number}", 5, 900, traffic_class="short")
    for compiling in grammars:
        compiling.set_result(Compiled())
    counters = made.scheduler.evenflow.steering.counters
    for step in range(3, 41):
        made.step()
        assert counters.admitted_new.total() <= 0.5 * step + 2, "past the cap"
    assert 19 <= counters.admitted_new.total() <= 22
    assert sum(name.startswith("g") for name in (*made.finished, *running(made))) == 10
    no_hook_failed(made)


def test_a_grammar_that_cannot_be_compiled_ends_its_request_only(model_dir: Path) -> None:
    made = engine(model_dir)
    compiling = add_structured(made, "grammar")
    made.add("other", 10, 3, traffic_class="short")
    made.step()
    compiling.set_exception(ValueError("no such grammar"))
    made.run(20)
    assert not made.scheduler.requests
    counters = made.scheduler.evenflow.steering.counters
    assert (counters.admitted_new, counters.completed) == ({"short": 1}, {"short": 1})
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


def test_what_was_cached_since_is_found_when_the_queue_is_keyed_again(model_dir: Path) -> None:
    clock = Clock()
    made = engine(
        model_dir, replace(SVF, aging_seconds=30.0), clock=clock, caching=True, num_blocks=200, max_num_seqs=1
    )
    shared = [9] * 160
    made.add("first", shared, 2, traffic_class="short")
    second = made.add("second", [*shared, 5, 6, 7], 5, traffic_class="long")
    record = record_of(second)
    assert record is not None
    before = (record.cached, record.metric)
    assert before[0] == 0
    for _ in range(2):
        made.step()
    assert made.finished == ["first"]
    made.add("third", [4] * 20, 8, traffic_class="short")
    made.scheduler.waiting.remove_request(second)
    made.scheduler.waiting.add_request(second)
    assert record.cached == 0, "asked at enqueue and when the queue is keyed again, not each time"
    made.step()
    clock.now = 10.0
    made.step()
    assert record.cached == 160
    assert record.metric < before[1]
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


def test_what_is_dropped_while_it_is_computed_again_counts_once_each_time(model_dir: Path) -> None:
    made = engine(model_dir, max_num_batched_tokens=64, num_blocks=100)
    request = made.add("r", 200, 100)
    for _ in range(6):
        made.step()
    record = record_of(request)
    assert record is not None
    made.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert record.highest_computed == 202
    for _ in range(2):
        made.step()
    made.scheduler.reset_prefix_cache(reset_running_requests=True)
    for _ in range(8):
        made.step()
    assert made.scheduler.evenflow.steering.counters.recomputed_tokens == 2 * 64 + 202
    no_hook_failed(made)
