"""Requests whose KV comes from another engine, or goes there: disaggregated prefill, and sessions that hold memory."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from vllm.v1.request import Request
from vllm_kit import Engine
from vllm_remote import step
from vllm_steered import SVF, engine, no_hook_failed, running

from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_worker.control.settings import Source
from evenflow_worker.vllm.reports import EngineReport

pytestmark = pytest.mark.vllm


def decoder(model: Path, config: WorkerConfig = SVF, **options: int) -> Engine:
    made = engine(model, config, remote=True, **options)
    assert made.scheduler.connector is not None
    return made


def add_remote(made: Engine, name: str, prompt: int, output: int, remote: int, *, traffic_class: str) -> Request:
    """A request of whose prompt `remote` tokens are computed elsewhere."""
    made.scheduler.connector.tokens[name] = remote
    return made.add(name, prompt, output, traffic_class=traffic_class)


def test_what_came_from_elsewhere_and_holds_memory_is_not_put_behind_others(model_dir: Path) -> None:
    """It may find no room for the rest of its prompt. Behind a request that doesn't fit beside it both would wait for
    ever, in an engine that runs nothing."""
    made = decoder(model_dir, num_blocks=9, max_model_len=128)
    made.add("runs", 10, 30, traffic_class="short")
    step(made)
    add_remote(made, "held", 100, 20, 64, traffic_class="long")
    step(made)
    assert made.scheduler.connector.loading == ["held"]
    for _ in range(9):
        step(made)
    step(made, received=("held",))
    step(made)
    assert (made.scheduler.requests["held"].status.name, running(made)) == ("WAITING", ["runs"]), "no room for the rest"
    made.add("smaller", 90, 5, traffic_class="short")
    for _ in range(100):
        step(made)
    assert sorted(made.finished) == ["held", "runs", "smaller"]
    assert made.free_blocks == 8
    no_hook_failed(made)


def test_a_session_that_holds_memory_is_not_put_behind_others(model_dir: Path) -> None:
    """vLLM up to 0.30 queues it with all others when more input comes."""
    made = engine(model_dir, num_blocks=9, max_model_len=128)

    def chunk(tokens: int) -> Request:
        made.outputs["session"] = 3
        return made.request("session", tokens, 3, max_tokens=60, traffic_class="long", resumable=True)

    made.scheduler.add_request(chunk(50))
    for _ in range(6):
        made.step()
    made.add("runs", 10, 20, traffic_class="short")
    made.step()
    made.scheduler.add_request(chunk(7))
    made.add("smaller", 90, 5, traffic_class="short")
    for _ in range(40):
        made.step()
    assert made.finished.count("session") == 2, "its input is worked off"
    made.abort(["session"])
    made.run(40)
    assert made.finished[-1] == "smaller"
    no_hook_failed(made)


def test_a_session_keeps_its_place_when_the_queue_is_keyed_again(model_dir: Path) -> None:
    made = engine(model_dir, num_blocks=40, max_num_seqs=2)
    made.outputs["session"] = 3
    made.scheduler.add_request(made.request("session", 50, 3, max_tokens=60, traffic_class="long", resumable=True))
    for _ in range(6):
        made.step()
    made.add("runs", 10, 200, traffic_class="short")
    made.step()
    made.add("smaller", 10, 5, traffic_class="short")
    made.scheduler.add_request(made.request("session", 7, 3, max_tokens=60, traffic_class="long", resumable=True))
    made.scheduler.evenflow.steering.offer(replace(SVF, generation=2, policy="SJF"))
    made.step()
    assert running(made) == ["runs", "session"]
    no_hook_failed(made)


def test_loads_from_elsewhere_are_charged_to_the_cap_when_they_take_memory(model_dir: Path) -> None:
    config = replace(SVF, admission=Admission("Limited", "Requests", 0.5, 0.0))
    made = decoder(model_dir, config, num_blocks=4000)
    for number in range(40):
        add_remote(made, f"r{number}", 32, 900, 31, traffic_class="short")
    loading = made.scheduler.connector.loading
    counters = made.scheduler.evenflow.steering.counters
    for number in range(1, 41):
        arriving = tuple(name for name in loading[:-2] if made.scheduler.requests[name].status.name != "RUNNING")
        step(made, received=arriving if number % 4 == 0 else ())
        assert len(loading) <= 0.5 * number + 2, "past the cap"
        assert counters.admitted_new.total() == len(loading)
    assert len(loading) >= 19, "nor below it"
    assert 10 <= len(running(made)) <= len(loading)
    assert counters.admitted_resumed.total() == 0
    no_hook_failed(made)


def test_one_load_enters_an_idle_engine_whatever_the_cap(model_dir: Path) -> None:
    made = decoder(model_dir, replace(SVF, admission=Admission("Limited", "Volume", 1e-6, 0.0)), num_blocks=400)
    for number in range(3):
        add_remote(made, f"r{number}", 32, 3, 31, traffic_class="short")
    loading = made.scheduler.connector.loading
    for number in range(3):
        for _ in range(5):
            step(made)
        assert loading == [f"r{one}" for one in range(number + 1)]
        step(made, received=(f"r{number}",))
        for _ in range(4):
            step(made)
        assert made.finished == loading[: number + 1]
        loading.sort()
    no_hook_failed(made)


def test_a_finished_request_whose_memory_is_being_sent_waits_for_nothing(model_dir: Path) -> None:
    made = decoder(model_dir, num_blocks=100)
    made.scheduler.connector.sends = True
    report = EngineReport(made.scheduler, CollectorRegistry(), made.scheduler.evenflow, version="vLLM")
    report.settings.apply(SVF.document(), Source.PUSH)
    made.add("sent", 10, 3, traffic_class="short")
    made.add("waits", 10, 30, traffic_class="short")
    for _ in range(4):
        step(made)
    assert made.finished == ["sent"]
    assert "sent" in made.scheduler.requests, "vLLM still holds it"
    figures = report.figures()
    assert figures is not None
    assert figures.waiting == {}
    assert report.state().in_flight == {"short": 1, "long": 0, "default": 0}
    step(made, sent=("sent",))
    assert "sent" not in made.scheduler.requests
    no_hook_failed(made)
