"""The promise of the demo, offline: the first 300 s of a production trace on four engines, stock beside SVF."""

from pathlib import Path

import pytest

from evenflow_contract.worker_config import Admission, ClassPrior, WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec, FinishedRequest
from evenflow_model.traces import read_trace, take_slice
from evenflow_worker.simulated.core import EngineCore

TRACE = Path(__file__).resolve().parents[2] / "examples" / "traces" / "mooncake_conversation.csv.gz"
CLASSES = {
    "classes": ("chat", "document"),
    "class_priors": {"chat": ClassPrior(3400, 330), "document": ClassPrior(19_000, 370)},
}
STOCK = WorkerConfig(policy="FCFS", victim="LeastProgress", aging_seconds=0.0, **CLASSES)
AFTER = WorkerConfig(admission=Admission("Limited", "Volume", 2.5, 0.05), **CLASSES)


@pytest.fixture(scope="module")
def trace() -> list[EngineRequest]:
    cut = take_slice(read_trace(TRACE).requests, seconds=300, max_total_tokens=65_536)
    return [
        EngineRequest(
            str(number),
            one.prompt_tokens,
            one.output_tokens,
            one.output_tokens,
            "chat" if one.prompt_tokens < 8192 else "document",
            one.arrival_s,
        )
        for number, one in enumerate(cut)
    ]


def replay(trace: list[EngineRequest], config: WorkerConfig) -> tuple[list[FinishedRequest], list[EngineCore]]:
    spec = EngineSpec(kv_tokens=430_000, max_model_len=65_536)
    cores = [EngineCore(spec, config) for _ in range(4)]
    done: list[FinishedRequest] = []
    for until, request in [(request.arrival_s, request) for request in trace] + [(1e9, None)]:
        for core in cores:
            while core.has_work and core.now < until:
                done += core.step().finished
            if not core.has_work:
                core.advance_idle(until)
        if request is not None:
            min(cores, key=lambda core: core.running + core.waiting).add(request)
    return done, cores


def test_after_beats_before_on_a_production_trace(trace):
    before, before_cores = replay(trace, STOCK)
    after, after_cores = replay(trace, AFTER)
    assert len(before) == len(after) == len(trace) == 888
    assert sum(core.counters.evictions.total() for core in before_cores) >= 5
    assert sum(core.counters.evictions.total() for core in after_cores) <= 1
    latency = [[one.finished_s - one.arrival_s for one in done] for done in (before, after)]
    first = [[one.first_token_s - one.arrival_s for one in done] for done in (before, after)]
    assert sum(latency[1]) <= 0.8 * sum(latency[0])
    assert sum(first[1]) <= 0.45 * sum(first[0])


def test_the_same_trace_gives_the_same_run(trace):
    assert replay(trace[:200], AFTER)[0] == replay(trace[:200], AFTER)[0]
