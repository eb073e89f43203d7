"""A pool from event to event: nothing lost, the same as engines stepped by hand, routing, placement, hooks."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.pool import Fleet, IterationHook, TimeHook
from evenflow_model.fleet.prefix import PrefixCache
from evenflow_model.fleet.records import EngineRequest, EngineSpec, FinishedRequest
from evenflow_model.fleet.results import summarise
from evenflow_model.fleet.routing import ROUTERS, Load, router
from evenflow_worker.simulated.core import EngineCore

SPEC = EngineSpec(kv_tokens=4000, max_model_len=1500, max_num_batched_tokens=256)
CONFIG = WorkerConfig(classes=("chat", "code"), admission=Admission("Limited", "Volume", 1.0, 0.02))


def random_load(seed: int, count: int = 300, pace: float = 0.05) -> list[EngineRequest]:
    source = random.Random(seed)
    now, requests = 0.0, []
    for number in range(count):
        now += source.expovariate(1 / pace)
        prompt, output = source.randint(1, 600), source.choice((1, 64, source.randint(1, 300)))
        prefix = tuple(100 * source.randrange(4) + block for block in range(prompt // 32))
        requests.append(
            EngineRequest(
                f"r{number}", prompt, output, output, source.choice(("chat", "code", "other")), now, prefix=prefix
            )
        )
    return requests


def engines(count: int, config: WorkerConfig = CONFIG, spec: EngineSpec = SPEC) -> list[EngineCore]:
    return [EngineCore(spec, config) for _ in range(count)]


def serve(load: Sequence[EngineRequest], pool: Sequence[Engine], seed: int = 0) -> list[FinishedRequest]:
    return Fleet(pool, router("least-outstanding", seed)).run(load)


def by_hand(load: Sequence[EngineRequest], core: EngineCore) -> list[FinishedRequest]:
    done: list[FinishedRequest] = []
    for request in load:
        while core.has_work and core.now < request.arrival_s:
            done += core.step().finished
        if not core.has_work:
            core.advance_idle(request.arrival_s)
        core.add(request)
    while core.has_work:
        done += core.step().finished
    return done


@pytest.mark.parametrize("seed", range(8))
def test_one_engine_is_the_worker_s_core_stepped_by_hand(seed: int) -> None:
    load = random_load(seed, pace=0.3)
    expected, found = by_hand(load, EngineCore(SPEC, CONFIG)), serve(load, engines(1))
    assert [one.request_id for one in expected] == [one.request_id for one in found]
    for one, other in zip(expected, found, strict=True):
        assert one.finished_s == pytest.approx(other.finished_s, abs=1e-9)
        assert one.first_token_s == pytest.approx(other.first_token_s, abs=1e-9)
        assert one.evictions == other.evictions


@pytest.mark.parametrize("name", ROUTERS)
def test_every_request_ends_once_and_every_engine_works(name: str) -> None:
    load = random_load(20)
    pool = engines(3)
    finished = Fleet(pool, router(name, 1)).run(load)
    assert Counter(one.request_id for one in finished) == Counter(one.request_id for one in load)
    assert all(one.arrival_s <= one.admitted_s < one.first_token_s <= one.finished_s for one in finished)
    assert all(core.counters.completed.total() > 50 for core in pool)
    assert all(not core.has_work and core.free_blocks * 16 == core.kv_capacity_tokens for core in pool)
    result = summarise(len(load), finished, pool)
    assert result.completed == result.requests == 300
    assert result.generated_tokens == sum(one.output_tokens for one in load)
    assert result.p50_latency_s <= result.p99_latency_s
    assert 0.1 < result.kv_use_mean < 1.0
    assert result.makespan_s == max(one.finished_s for one in finished) - load[0].arrival_s


def test_the_same_seed_gives_the_same_run_and_another_one_does_not() -> None:
    load = random_load(3)
    first, again, other = serve(load, engines(4)), serve(load, engines(4)), serve(load, engines(4), seed=1)
    assert first == again
    assert first != other


def test_placement_is_kept_and_can_be_changed_by_a_hook() -> None:
    load = [request for request in random_load(5) if request.traffic_class != "other"]
    moved_at = load[len(load) // 2].arrival_s

    def move(fleet: Fleet, now_s: float) -> None:
        if now_s >= 0.99 * moved_at:
            fleet.place({"chat": [1], "code": [0]})

    pool = engines(2)
    fleet = Fleet(
        pool, router("random", 0), placement={"chat": [0], "code": [1]}, on_time=TimeHook(moved_at / 10, move)
    )
    fleet.run(load)
    late = Counter(request.traffic_class for request in load if request.arrival_s > moved_at * 1.001)
    for index, name, other in ((0, "chat", "code"), (1, "code", "chat")):
        served = pool[index].counters.completed
        assert served[other] == pytest.approx(late[other], abs=3)
        assert served[name] > 0
    with pytest.raises(ValueError, match=r"placement\['chat'\] must name engines from 0 to 1, found \[2\]"):
        fleet.place({"chat": [2]})
    with pytest.raises(ValueError, match="found \\[\\]"):
        fleet.place({"chat": []})


def test_a_hook_sees_every_hundredth_iteration_whatever_is_leapt_over() -> None:
    seen: list[tuple[int, int]] = []
    pool = engines(2)
    hook = IterationHook(100, lambda index, engine: seen.append((index, engine.counters.iterations)))
    Fleet(pool, router("round-robin", 0), on_iterations=hook).run(random_load(7, pace=1.0))
    for index, core in enumerate(pool):
        assert [count for one, count in seen if one == index] == list(range(100, core.counters.iterations + 1, 100))


def test_a_timed_hook_may_change_settings_in_the_middle_of_a_leap() -> None:
    load = [EngineRequest("long", 10, 1000, 1000, "chat", 0.0)]
    times: list[float] = []

    def change(fleet: Fleet, now_s: float) -> None:
        times.append(now_s)
        for core in pool:
            assert now_s <= core.now < now_s + 0.1 or not core.has_work
            core.apply(replace(CONFIG, generation=len(times)))

    pool = engines(1)
    finished = Fleet(pool, router("least-tokens", 0), on_time=TimeHook(2.0, change)).run(load)
    alone = serve(load, engines(1))
    assert times == [2.0 * number for number in range(1, len(times) + 1)]
    assert len(times) >= 5
    assert finished[0].finished_s == pytest.approx(alone[0].finished_s)


def test_what_can_never_fit_is_refused_and_counted() -> None:
    load = [
        EngineRequest("big", 1400, 200, 200, "chat", 0.0),
        EngineRequest("small", 10, 5, 5, "chat", 0.0),
    ]
    fleet = Fleet(engines(2), router("least-volume", 0))
    assert [one.request_id for one in fleet.run(load)] == ["small"]
    assert fleet.refused == 1


def test_arrivals_out_of_order_are_refused() -> None:
    load = [EngineRequest("a", 10, 5, 5, "chat", 1.0), EngineRequest("b", 10, 5, 5, "chat", 0.0)]
    with pytest.raises(ValueError, match="sorted by arrival"):
        serve(load, engines(1))
    with pytest.raises(ValueError, match="at least one"):
        Fleet([], router("random", 0))
    with pytest.raises(ValueError, match="routing must be one of"):
        router("nearest", 0)


def test_routers_choose_by_what_they_are_named_for() -> None:
    loads = [Load(0), Load(1), Load(2)]
    loads[0].add(1000, 1.0)
    for _ in range(3):
        loads[1].add(10, 10.0)
    loads[2].add(100, 200.0)
    loads[2].add(1, 1.0)
    assert router("least-outstanding", 0).choose(loads) is loads[0]
    assert router("least-tokens", 0).choose(loads) is loads[1]
    assert router("least-volume", 0).choose(loads) is loads[1]
    turns = router("round-robin", 0)
    assert [turns.choose(loads).index for _ in range(4)] == [0, 1, 2, 0]
    assert turns.choose(loads[:2]).index == 0
    loads[2].add(100, 200.0, -1)
    loads[2].add(1, 1.0, -1)
    assert (loads[2].requests, loads[2].tokens, loads[2].volume) == (0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_prefix_caching_saves_prefill_and_memory(seed: int) -> None:
    load = random_load(seed, pace=0.02)
    pools = {
        "off": [EngineCore(SPEC, CONFIG) for _ in range(2)],
        "lru": [EngineCore(SPEC, CONFIG, prefix_cache=PrefixCache(32)) for _ in range(2)],
    }
    results = {name: summarise(300, serve(load, pool), pool) for name, pool in pools.items()}
    hits = {name: sum(core.counters.cached_tokens for core in pool) for name, pool in pools.items()}
    assert all(result.completed == 300 for result in results.values())
    assert hits["lru"] > hits["off"] == 0
    assert results["lru"].mean_latency_s < results["off"].mean_latency_s
    assert all(core.free_blocks * 16 == core.kv_capacity_tokens for pool in pools.values() for core in pool)


def test_cached_blocks_must_be_whole_blocks_of_the_engine() -> None:
    with pytest.raises(ValueError, match="whole multiples"):
        EngineCore(replace(SPEC, block_size=24), CONFIG, prefix_cache=PrefixCache(32))
