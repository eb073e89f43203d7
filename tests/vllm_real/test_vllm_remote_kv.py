"""Requests whose KV comes from another engine, or goes there: disaggregated prefill, and sessions that hold memory."""

import random
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


@pytest.mark.parametrize("seed", range(30))
def test_random_loads_and_sends_lose_nothing(model_dir: Path, seed: int) -> None:
    source = random.Random(seed)
    longest, block = source.choice((60, 150, 300)), source.choice((4, 16))
    blocks = max(source.choice((12, 30, 100)), -(-longest // block) + 1)
    made = decoder(
        model_dir,
        num_blocks=blocks + 1,
        block_size=block,
        max_model_len=longest,
        max_num_seqs=source.choice((1, 3, 16)),
        max_num_batched_tokens=source.choice((64, 256)),
        caching=source.random() < 0.5,
    )
    scheduler, remote = made.scheduler, made.scheduler.connector
    remote.sends = source.random() < 0.5
    aborted: set[str] = set()
    arrived: set[str] = set()

    def transfer(likely: float) -> None:
        loading = [name for name in remote.loading if name in scheduler.requests and name not in arrived]
        sending = [n for n, r in scheduler.requests.items() if r.is_finished() and n not in loading and remote.sends]
        received = tuple(name for name in loading if source.random() < likely)
        arrived.update(received)
        step(made, received=received, sent=tuple(name for name in sending if source.random() < likely))

    for _ in range(source.randint(20, 120)):
        choice = source.random()
        if choice < 0.35:
            prompt, name = source.randint(2, longest - 2), f"r{len(made.outputs)}"
            elsewhere = source.choice((0, prompt, source.randint(1, prompt)))
            output = min(source.randint(1, longest - prompt), 60)
            add_remote(made, name, prompt, output, elsewhere, traffic_class=source.choice(("short", "long")))
        elif choice < 0.40:
            alive = sorted(name for name, request in scheduler.requests.items() if not request.is_finished())
            names = source.sample(alive, min(len(alive), 2))
            aborted.update(names)
            made.abort(names)
        elif choice < 0.45:
            cap = Admission("Limited", source.choice(("Requests", "Volume")), source.choice((0.03, 0.9, 2.5)), 0.01)
            policy = source.choice(("SVF", "FCFS"))
            made.scheduler.evenflow.steering.offer(
                replace(SVF, policy=policy, admission=source.choice((cap, Admission())))
            )
        else:
            transfer(0.3)
    for _ in range(5000):
        if not scheduler.requests:
            break
        transfer(1.0)
    assert not scheduler.requests, "a request waits for ever"
    assert made.free_blocks == blocks, "a block leaked"
    assert len(made.finished) == len(set(made.finished))
    assert set(made.finished) | aborted == set(made.outputs)
    counters = scheduler.evenflow.steering.counters
    assert counters.completed.total() == len(made.finished)
    assert counters.completed.total() <= counters.admitted_new.total() <= len(made.outputs)
    no_hook_failed(made)
