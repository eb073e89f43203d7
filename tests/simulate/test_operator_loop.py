"""The operator in the loop of a simulation decides as it does in a cluster, from what the engines report."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from evenflow_cli.simulation.operator_loop import OperatorLoop
from evenflow_cli.simulation.policies import candidate
from evenflow_cli.simulation.runs import Load, engine_spec, simulate
from evenflow_cli.simulation.scheduling import PoolScheduling
from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.pool import Fleet, TimeHook
from evenflow_model.fleet.records import EngineRequest
from evenflow_model.fleet.routing import router
from evenflow_operator.api.pool import LLMServingPool

WIDE = [
    {"name": "chat", "promptTokens": 400, "outputTokens": 250, "outputSpreadPercent": 90},
    {"name": "code", "promptTokens": 1500, "outputTokens": 30, "outputSpreadPercent": 120},
]
TIER = [{"name": "tier", "promptTokens": 512, "outputTokens": 256, "outputSpreadPercent": 0}]


def pool_of(classes: list[dict[str, Any]], **spec: Any) -> LLMServingPool:
    return LLMServingPool.parse(
        {
            "metadata": {"name": "p"},
            "spec": {
                "model": {"name": "m", "maxModelLen": 8192},
                "replicas": 2,
                "engine": {"type": "Simulated", "kvCacheTokens": 20_000, "maxNumBatchedTokens": 8192},
                "trafficClasses": classes,
                **spec,
            },
        }
    )


def tier_load(count: int, pace: float) -> tuple[EngineRequest, ...]:
    return tuple(EngineRequest(str(n), 512, 256, 256, "tier", n * pace) for n in range(count))


def later(request: EngineRequest, seconds: float) -> EngineRequest:
    return replace(request, request_id=f"later-{request.request_id}", arrival_s=request.arrival_s + seconds)


def running(pool: LLMServingPool) -> tuple[OperatorLoop, list[Engine], list[PoolScheduling], Fleet]:
    loop = OperatorLoop(pool)
    spec = engine_spec(pool.spec)
    scheduling = [PoolScheduling(spec.kv_tokens, spec.max_model_len, config) for config in loop.configs]
    engines = [Engine(spec, one) for one in scheduling]
    loop.attach(engines, scheduling)
    hook = TimeHook(loop.interval_s, loop.tick)
    return loop, engines, scheduling, Fleet(engines, router("round-robin", 0), placement=loop.placement, on_time=hook)


def test_wide_lengths_start_loose_and_tiers_tight() -> None:
    wide, tiers = OperatorLoop(pool_of(WIDE)).configs, OperatorLoop(pool_of(TIER)).configs
    assert len(wide) == len(tiers) == 2
    for config in wide:
        assert (config.admission.per_iteration, config.admission.watermark) == (2.5, 0.05)
        assert config.classes == ("chat", "code")
    for config in tiers:
        assert (config.admission.per_iteration, config.admission.watermark) == (1.0, 0.01)


def test_the_interval_is_engine_time() -> None:
    metrics = {"intervalSeconds": 2, "staleAfterSeconds": 10}
    engine = {"type": "Simulated", "simulated": {"timeScale": 15}}
    assert OperatorLoop(pool_of(TIER, metrics=metrics)).interval_s == 2.0
    loop = OperatorLoop(pool_of(TIER, metrics=metrics, engine=engine))
    assert (loop.interval_s, loop.spec.metrics.stale_after_seconds) == (30.0, 150)


def test_evictions_cut_the_cap_and_a_quiet_engine_gets_it_back() -> None:
    # Declared wide, which starts the cap at 2.5, but in truth one fixed length under overload.
    classes = [{**TIER[0], "outputSpreadPercent": 100}]
    loop, engines, scheduling, fleet = running(pool_of(classes, metrics={"intervalSeconds": 5}))
    caps: list[float] = []
    generations: list[int] = []

    def tick(fleet: Fleet, now_s: float) -> None:
        loop.tick(fleet, now_s)
        caps.append(scheduling[0].config.admission.per_iteration or 0.0)
        generations.append(scheduling[0].config.generation)

    fleet._on_time = TimeHook(5.0, tick)
    fleet.run((*tier_load(2000, 0.06), *(later(one, 130.0) for one in tier_load(600, 0.2))))
    assert sum(engine.counters.evictions.total() for engine in engines) > 0
    assert min(caps) < caps[0]
    assert any(later > earlier for earlier, later in pairwise(caps))
    assert generations == sorted(generations)
    assert generations[-1] > generations[0]


def test_static_placement_reaches_the_router() -> None:
    static = {"strategy": "Static", "static": [{"slot": 0, "classes": ["chat"]}, {"slot": 1, "classes": ["code"]}]}
    pool = pool_of(WIDE, placement=static)
    loop, engines, _, fleet = running(pool)
    assert loop.placement == {"chat": [0], "code": [1]}
    fleet.run([EngineRequest(str(n), 100, 10, 10, "chat" if n % 3 else "code", n * 0.1) for n in range(90)])
    assert dict(engines[0].counters.completed) == {"chat": 60}
    assert dict(engines[1].counters.completed) == {"code": 30}


@pytest.mark.parametrize("mode", ["Advisory", "Active"])
def test_a_pool_as_written_is_operated_as_written(mode: str) -> None:
    pool = pool_of(TIER, mode=mode, admission={"mode": "Fixed", "capMicro": 500_000, "watermarkPercent": 3})
    load = Load(pool, tier_load(200, 0.1))
    if mode == "Active":
        assert {(c.admission.per_iteration, c.admission.watermark) for c in OperatorLoop(pool).configs} == {(0.5, 0.03)}
        assert simulate(load, candidate("pool")).result != simulate(load, candidate("evenflow")).result
    assert simulate(load, candidate("evenflow")).result.completed == 200
