"""Leaping over many iterations gives what making them one by one gives, under random loads, policies and memories."""

import random
from dataclasses import replace

import pytest

from evenflow_contract.worker_config import Admission, ClassPrior, Proxies, WorkerConfig
from evenflow_model.fleet.prefix import PrefixCache
from evenflow_model.fleet.records import EngineRequest, EngineSpec, FinishedRequest
from evenflow_worker.simulated.core import EngineCore

CLASSES = ("chat", "code")


def random_spec(source: random.Random) -> EngineSpec:
    return EngineSpec(
        kv_tokens=source.choice((400, 900, 3000, 20_000)),
        max_model_len=400,
        block_size=source.choice((1, 4, 16)),
        max_num_seqs=source.choice((2, 8, 256)),
        max_num_batched_tokens=source.choice((4, 64, 512, 2048)),
        step_time_model=source.choice(("A100-8B", "A100-70B")),
    )


def random_config(source: random.Random) -> WorkerConfig:
    limited = source.random() < 0.5
    cap = source.choice((0.02, 0.4, 0.95, 2.5)) if limited else None
    unit = source.choice(("Requests", "Volume"))
    return WorkerConfig(
        policy=source.choice(("SVF", "OneBitSVF", "SJF", "FCFS")),
        victim=source.choice(("LargestVolume", "LeastProgress")),
        aging_seconds=source.choice((0.0, 1.0, 30.0)),
        proxies=Proxies(20, 5, 60) if source.random() < 0.3 else None,
        classes=CLASSES,
        admission=Admission("Limited" if limited else "Off", unit, cap, source.choice((0.0, 0.01, 0.1))),
        class_priors={"chat": ClassPrior(20, 30)} if source.random() < 0.5 else {},
    )


def random_load(source: random.Random, count: int) -> list[EngineRequest]:
    now, requests = 0.0, []
    pace = source.choice((0.01, 0.03, 0.3, 3.0))
    for number in range(count):
        now += source.expovariate(1 / pace)
        prompt = source.randint(1, source.choice((20, 200)))
        output = source.choice((1, 32, 64, source.randint(1, 200)))
        family = source.randrange(3)
        prefix = tuple(1000 * family + block for block in range(prompt // 16))
        requests.append(EngineRequest(f"r{number}", prompt, output, output, source.choice(CLASSES), now, prefix=prefix))
    return requests


def one_by_one(core: EngineCore, load: list[EngineRequest], changes: dict[int, WorkerConfig]) -> list[FinishedRequest]:
    done: list[FinishedRequest] = []
    for number, request in enumerate(load):
        while core.has_work and core.now < request.arrival_s:
            done += core.iterate().done
        if not core.has_work:
            core.advance_idle(request.arrival_s)
        if number in changes:
            core.apply(changes[number])
        core.add(request)
    while core.has_work:
        done += core.iterate().done
    return done


def leaping(core: EngineCore, load: list[EngineRequest], changes: dict[int, WorkerConfig]) -> list[FinishedRequest]:
    done: list[FinishedRequest] = []

    def run(until: float) -> None:
        while core.has_work and core.now < until:
            leap = core.plan_leap(1000)
            if leap is None:
                done.extend(core.iterate().done)
            else:
                done.extend(core.leap(leap, leap.steps_started_before(until - core.now)))

    for number, request in enumerate(load):
        run(request.arrival_s)
        if not core.has_work:
            core.advance_idle(request.arrival_s)
        if number in changes:
            core.apply(changes[number])
        core.add(request)
    run(float("inf"))
    return done


def compare(seed: int, *, caching: bool) -> EngineCore:
    source = random.Random(seed)
    spec, config, load = random_spec(source), random_config(source), random_load(source, 60)
    changes = {number: random_config(source) for number in source.sample(range(60), 3)}
    if caching:
        spec = replace(spec, block_size=source.choice((1, 4, 16)))

    def cache() -> PrefixCache | None:
        return PrefixCache(16) if caching else None

    slow, fast = (EngineCore(spec, config, prefix_cache=cache()) for _ in range(2))
    expected, found = one_by_one(slow, load, changes), leaping(fast, load, changes)
    assert len(expected) == len(load)
    for one, other in zip(expected, found, strict=True):
        assert one.request_id == other.request_id, seed
        assert (one.evictions, one.predicted_output) == (other.evictions, pytest.approx(other.predicted_output))
        for name in ("admitted_s", "first_token_s", "finished_s"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-9), (seed, name)
    for name in ("iterations", "prompt_tokens", "cached_tokens", "generation_tokens", "recomputed_tokens"):
        assert getattr(slow.counters, name) == getattr(fast.counters, name), (seed, name)
    for name in ("evictions", "admitted_new", "admitted_resumed", "completed"):
        assert getattr(slow.counters, name) == getattr(fast.counters, name), (seed, name)
    assert slow.counters.busy_s == pytest.approx(fast.counters.busy_s)
    assert slow.take_usage_peak() == pytest.approx(fast.take_usage_peak(), abs=1e-12)
    assert fast.free_blocks == slow.free_blocks
    if not caching:
        assert fast.free_blocks == fast._pool.usable
    return fast


def test_leaps_change_nothing():
    evictions = sum(compare(seed, caching=False).counters.evictions.total() for seed in range(150))
    assert evictions > 500


def test_leaps_change_nothing_with_prefix_caching():
    cores = [compare(seed, caching=True) for seed in range(1000, 1060)]
    assert sum(core.counters.cached_tokens for core in cores) > 1000
    assert sum(core.counters.evictions.total() for core in cores) > 50
    assert all(core.free_blocks == core._pool.usable for core in cores)


def test_most_iterations_are_leapt_over():
    spec = EngineSpec(kv_tokens=430_000, max_model_len=10_000)
    core = EngineCore(spec, WorkerConfig())
    for number in range(20):
        core.add(EngineRequest(str(number), 100, 1000 + 10 * number, 5000, "chat", 0.0))
    events = 0
    while core.has_work:
        leap = core.plan_leap(1_000_000)
        if leap is None:
            core.iterate()
        else:
            core.leap(leap, leap.steps)
        events += 1
    assert core.counters.iterations > 1000
    assert events < 50
