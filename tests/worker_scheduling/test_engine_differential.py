"""The simulated engine against a literal reference and against its own invariants, under random abuse."""

import random
from collections import Counter
from dataclasses import replace

from sched_reference_engine import ReferenceEngine

from evenflow_contract.worker_config import Admission, ClassPrior, Predictor, Proxies, WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec, RequestTooLarge
from evenflow_worker.simulated.core import EngineCore

CLASSES = ("chat", "code")


def random_spec(source: random.Random) -> EngineSpec:
    block = source.choice((1, 4, 16))
    return EngineSpec(
        kv_tokens=source.choice((64, 200, 700, 3000)) + source.randrange(16),
        max_model_len=source.choice((60, 150, 300)),
        block_size=block,
        max_num_seqs=source.choice((1, 3, 8, 256)),
        max_num_batched_tokens=source.choice((1, 7, 32, 256, 2048)),
        step_time_model=source.choice(("A100-8B", "A100-70B")),
    )


def random_config(source: random.Random) -> WorkerConfig:
    limited = source.random() < 0.5
    unit = source.choice(("Requests", "Volume"))
    return WorkerConfig(
        policy=source.choice(("SVF", "OneBitSVF", "SJF", "FCFS")),
        victim=source.choice(("LargestVolume", "LeastProgress")),
        aging_seconds=source.choice((0.0, 0.05, 1.0, 30.0)),
        proxies=Proxies(20, 5, 60) if source.random() < 0.3 else None,
        predictor=Predictor(source.choice(("ClassPrior", "Quantile"))),
        classes=CLASSES,
        admission=Admission(
            "Limited" if limited else "Off",
            unit,
            source.choice((0.03, 0.4, 0.9, 1.0, 2.5)) if limited else None,
            source.choice((0.0, 0.01, 0.05, 0.3)),
        ),
        class_priors={"chat": ClassPrior(20, 30)} if source.random() < 0.5 else {},
    )


def random_request(source: random.Random, core: EngineCore, number: int) -> EngineRequest:
    limit = core.max_request_tokens
    prompt = source.randint(1, max(limit - 1, 1))
    if source.random() < 0.7:
        prompt = min(prompt, source.randint(1, 40))
    most = max(limit - prompt, 1)
    output = source.randint(1, most if source.random() < 0.2 else min(most, 40))
    most_asked = source.randint(output, most) if source.random() < 0.7 else max(output - source.randrange(3), 1)
    traffic_class = source.choice((*CLASSES, "unlisted"))
    return EngineRequest(f"r{number}", prompt, output, most_asked, traffic_class, core.now)


def check_memory(core: EngineCore) -> None:
    held = [sequence.capacity // core.spec.block_size for sequence in core._requests.values()]
    assert sum(held) + core.free_blocks == core._pool.usable
    assert core.free_blocks >= 0
    for sequence in core._requests.values():
        assert sequence.computed <= sequence.capacity < sequence.computed + 2 * core.spec.block_size or (
            sequence.capacity == sequence.computed == 0
        )
        assert sequence.running or sequence.capacity == 0
    assert core.running <= core.spec.max_num_seqs
    assert core.running + core.waiting == len(core._requests)


def abuse(seed: int, *, reference: bool) -> EngineCore:
    """A few hundred steps of random arrivals, aborts and config changes; every request ends exactly once."""
    source = random.Random(seed)
    spec, config = random_spec(source), random_config(source)
    core = EngineCore(spec, config)
    twin = ReferenceEngine(spec, config) if reference else None
    alive: set[str] = set()
    ended: Counter[str] = Counter()
    produced: Counter[str] = Counter()
    shape: dict[str, EngineRequest] = {}
    number = evictions = 0
    for turn in range(400):
        busy = turn < 150
        if busy and source.random() < 0.4:
            for _ in range(source.choice((1, 1, 1, 12))):
                request = random_request(source, core, number)
                number += 1
                try:
                    core.add(request)
                except RequestTooLarge:
                    assert request.prompt_tokens + request.max_tokens > core.max_request_tokens
                    continue
                shape[request.request_id] = request
                alive.add(request.request_id)
                if twin is not None:
                    twin.add(request)
        if alive and source.random() < 0.05:
            victim = source.choice(sorted(alive))
            assert core.abort(victim)
            assert not core.abort(victim)
            alive.remove(victim)
            ended[victim] += 1
            if twin is not None:
                assert twin.abort(victim)
        if source.random() < 0.05:
            config = replace(random_config(source), generation=turn)
            core.apply(config)
            if twin is not None:
                twin.apply(config)
        if not core.has_work:
            core.advance_idle(core.now + 0.5)
            if twin is not None:
                twin.now = core.now
            continue
        outcome = core.step()
        if twin is not None:
            assert outcome == twin.step(), f"seed {seed}, turn {turn}"
        check_memory(core)
        assert outcome.scheduled_tokens <= spec.max_num_batched_tokens
        assert not (outcome.evicted and (outcome.admitted_new or outcome.admitted_resumed))
        assert 0.0 <= outcome.kv_usage_peak <= 1.0
        evictions += len(outcome.evicted)
        produced.update(outcome.tokens)
        for finished in outcome.finished:
            request = shape[finished.request_id]
            assert finished.output_tokens == min(request.output_tokens, request.max_tokens)
            assert finished.arrival_s <= finished.admitted_s <= finished.first_token_s <= finished.finished_s
            alive.remove(finished.request_id)
            ended[finished.request_id] += 1
    for _ in range(200_000):
        if not core.has_work:
            break
        outcome = core.step()
        produced.update(outcome.tokens)
        evictions += len(outcome.evicted)
        for finished in outcome.finished:
            ended[finished.request_id] += 1
    assert not core.has_work, f"seed {seed}: {core.running} running, {core.waiting} waiting"
    assert core.free_blocks == core._pool.usable
    assert set(ended) == set(shape)
    assert set(ended.values()) <= {1}
    counters = core.counters
    assert counters.completed.total() + counters.aborted == len(shape)
    assert counters.evictions.total() == evictions
    assert counters.generation_tokens == produced.total()
    assert counters.admitted_resumed.total() <= evictions
    assert counters.admitted_new.total() <= len(shape)
    assert set(counters.completed) <= {*CLASSES, "default"}
    return core


def test_same_steps_as_the_reference():
    evictions = sum(abuse(seed, reference=True).counters.evictions.total() for seed in range(45))
    assert evictions > 1000


def test_no_request_lost_and_no_block_leaked():
    for seed in range(10_000, 10_040):
        abuse(seed, reference=False)
