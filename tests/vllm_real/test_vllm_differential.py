"""The simulated engine beside vLLM's scheduler: the same requests must be admitted, evicted and completed in step."""

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from vllm_kit import Engine, make_engine

from evenflow_contract.worker_config import Admission, ClassPrior, Proxies, WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec
from evenflow_worker.simulated.core import EngineCore

pytestmark = pytest.mark.vllm

SEQUENCES = int(os.environ.get("EVENFLOW_DIFFERENTIAL_SEQUENCES", "1000"))
REQUIRED = 0.95
CLASSES = ("chat", "code")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Step:
    admitted: tuple[str, ...]
    evicted: tuple[str, ...]
    finished: tuple[str, ...]
    tokens: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class Case:
    spec: EngineSpec
    config: WorkerConfig
    arrivals: tuple[tuple[int, EngineRequest], ...]
    aborts: tuple[tuple[int, str], ...]
    changes: tuple[tuple[int, WorkerConfig], ...]


def draw_config(source: random.Random, generation: int) -> WorkerConfig:
    limited = source.random() < 0.6
    return WorkerConfig(
        generation=generation,
        policy=source.choice(("SVF", "OneBitSVF", "SJF", "FCFS")),
        victim=source.choice(("LargestVolume", "LeastProgress")),
        aging_seconds=source.choice((0.0, 0.05, 1.0, 30.0)),
        proxies=Proxies(20, 5, 60) if source.random() < 0.3 else None,
        classes=CLASSES,
        admission=Admission(
            "Limited" if limited else "Off",
            source.choice(("Requests", "Volume")),
            source.choice((0.03, 0.4, 0.9, 1.0, 2.5)) if limited else None,
            source.choice((0.0, 0.01, 0.05, 0.3)),
        ),
        class_priors={"chat": ClassPrior(20, 30)} if source.random() < 0.5 else {},
    )


def draw(seed: int) -> Case:
    source = random.Random(seed)
    block = source.choice((1, 4, 16))
    max_len = source.choice((60, 150, 300))
    usable = max(source.choice((4, 12, 50, 200)), -(-max_len // block) + 1)
    spec = EngineSpec(
        kv_tokens=usable * block,
        max_model_len=max_len,
        block_size=block,
        max_num_seqs=source.choice((1, 3, 8, 64)),
        max_num_batched_tokens=source.choice((64, 100, 256, 2048)),
    )
    count = source.randint(5, 60)
    step, arrivals = 0, []
    burst = source.random() < 0.3
    for number in range(count):
        step += 0 if burst else int(source.expovariate(0.5))
        prompt = min(source.randint(1, 40) if source.random() < 0.7 else source.randint(1, max_len - 1), max_len - 1)
        output = source.randint(1, min(max_len - prompt, 60))
        name = source.choice((*CLASSES, "unlisted"))
        arrivals.append((step, EngineRequest(f"r{number}", prompt, output, max_len - prompt, name, 0.0)))
    aborts = tuple(
        (source.randint(0, step + 60), f"r{source.randrange(count)}") for _ in range(source.choice((0, 0, 4)))
    )
    changes = tuple(
        (source.randint(0, step + 30), draw_config(source, generation + 2))
        for generation in range(source.choice((0, 0, 3)))
    )
    return Case(
        spec, draw_config(source, 1), tuple(arrivals), aborts, tuple(sorted(changes, key=lambda c: c[1].generation))
    )


def run_simulated(case: Case) -> tuple[list[Step], list[float]]:
    core = EngineCore(case.spec, case.config)
    steps: list[Step] = []
    times: list[float] = []
    arrivals, changes = list(case.arrivals), list(case.changes)
    index = 0
    while arrivals or core.has_work:
        for at, config in [change for change in changes if change[0] <= index]:
            changes.remove((at, config))
            core.apply(config)
        while arrivals and arrivals[0][0] <= index:
            core.add(_at(arrivals.pop(0)[1], core.now))
        for at, name in case.aborts:
            if at == index:
                core.abort(name)
        times.append(core.now)
        index += 1
        if not core.has_work:
            steps.append(Step((), (), (), 0, core.free_blocks))
            continue
        outcome = core.step()
        steps.append(
            Step(
                (*outcome.admitted_new, *outcome.admitted_resumed) and _in_order(outcome),
                outcome.evicted,
                tuple(done.request_id for done in outcome.finished),
                outcome.scheduled_tokens,
                core.free_blocks,
            )
        )
    return steps, times


def _at(request: EngineRequest, now: float) -> EngineRequest:
    return EngineRequest(
        request.request_id, request.prompt_tokens, request.output_tokens, request.max_tokens, request.traffic_class, now
    )


def _in_order(outcome: object) -> tuple[str, ...]:
    return tuple(sorted((*outcome.admitted_new, *outcome.admitted_resumed)))  # type: ignore[attr-defined]


def run_real(case: Case, model: Path, times: list[float]) -> list[Step]:
    clock = Clock()
    spec = case.spec
    engine: Engine = make_engine(
        model,
        clock=clock,
        num_blocks=spec.kv_tokens // spec.block_size + 1,
        block_size=spec.block_size,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_model_len=spec.max_model_len,
    )
    scheduler = engine.scheduler
    scheduler.evenflow.steering.offer(case.config)
    scheduler.evenflow.take_config()
    steps: list[Step] = []
    arrivals, changes = list(case.arrivals), list(case.changes)
    for index, now in enumerate(times):
        clock.now = now
        for at, config in [change for change in changes if change[0] <= index]:
            changes.remove((at, config))
            scheduler.evenflow.steering.offer(config)
            scheduler.evenflow.take_config()
        while arrivals and arrivals[0][0] <= index:
            request = arrivals.pop(0)[1]
            engine.add(
                request.request_id, request.prompt_tokens, request.output_tokens, traffic_class=request.traffic_class
            )
        engine.abort(name for at, name in case.aborts if at == index)
        if not scheduler.requests:
            steps.append(Step((), (), (), 0, engine.free_blocks))
            continue
        before = {request.request_id for request in scheduler.running}
        evictions = {name: request.num_preemptions for name, request in scheduler.requests.items()}
        scheduled = engine.schedule()
        evicted = tuple(
            name for name, request in scheduler.requests.items() if request.num_preemptions > evictions[name]
        )
        admitted = tuple(sorted(r.request_id for r in scheduler.running if r.request_id not in before))
        done = engine.update()
        steps.append(Step(admitted, evicted, tuple(done), scheduled.total_num_scheduled_tokens, engine.free_blocks))
    assert not scheduler.requests
    assert "HookFailed" not in repr(scheduler.evenflow.steering.events)
    return steps


def test_the_simulated_engine_follows_vllm_step_for_step(model_dir: Path) -> None:
    wrong: list[str] = []
    for seed in range(SEQUENCES):
        case = draw(seed)
        simulated, times = run_simulated(case)
        real = run_real(case, model_dir, times)
        normal = [
            Step(s.admitted, tuple(sorted(s.evicted)), tuple(sorted(s.finished)), s.tokens, s.free_blocks)
            for s in simulated
        ]
        found = [
            Step(s.admitted, tuple(sorted(s.evicted)), tuple(sorted(s.finished)), s.tokens, s.free_blocks) for s in real
        ]
        if normal != found:
            at = next(i for i, (a, b) in enumerate(zip(normal, found, strict=True)) if a != b)
            wrong.append(f"seed {seed} step {at} of {len(times)}: simulated {normal[at]} vllm {found[at]}")
    assert len(wrong) <= (1.0 - REQUIRED) * SEQUENCES, "\n".join(wrong[:20])
    print(f"{SEQUENCES - len(wrong)} of {SEQUENCES} sequences identical")
