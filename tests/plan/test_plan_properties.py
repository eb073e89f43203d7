"""Whatever the pool, a plan can be made and its figures agree with each other."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_kit import manifest

from evenflow_cli.planning.advice import advice_of
from evenflow_cli.planning.document import document_of
from evenflow_cli.planning.hardware import kv_memory
from evenflow_cli.planning.picture import picture
from evenflow_cli.planning.plan import PoolPlan, plan_of
from evenflow_cli.planning.subject import subject_of
from evenflow_operator.api.pool import LLMServingPool

CLASS = st.fixed_dictionaries(
    {
        "promptTokens": st.integers(1, 4000),
        "outputTokens": st.integers(1, 600),
        "outputSpreadPercent": st.sampled_from([0, 0, 5, 60, 300]),
        "weight": st.integers(1, 50),
        "minReplicas": st.integers(1, 4),
    },
    optional={"requestsPerMinute": st.integers(0, 3000)},
)
SPEC = st.fixed_dictionaries(
    {
        "replicas": st.integers(1, 9),
        "placement": st.fixed_dictionaries(
            {"strategy": st.sampled_from(["Balanced", "All"]), "maxClassesPerReplica": st.integers(1, 6)}
        ),
        "admission": st.sampled_from(
            [
                {},
                {"mode": "Off"},
                {"mode": "Fixed", "capMicro": 1_500_000},
                {"unit": "Requests"},
                {"watermarkPercent": 30},
            ]
        ),
        "engine": st.fixed_dictionaries(
            {"kvCacheTokens": st.integers(5_000, 600_000), "maxNumSeqs": st.integers(1, 2000)}
        ).map(lambda engine: {**engine, "maxNumBatchedTokens": engine["maxNumSeqs"] + 512}),
    }
)


def plan_for(classes: list[dict[str, Any]], spec: dict[str, Any]) -> PoolPlan:
    named = [{"name": f"c{number}", **one} for number, one in enumerate(classes)]
    model = {"name": "a/b", "maxModelLen": 4608}
    pool = LLMServingPool.parse(manifest(named, model=model, **spec))
    return plan_of(subject_of(pool, kv_memory(pool.spec, None), None, ()))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CLASS, min_size=1, max_size=5), SPEC)
def test_every_pool_gets_a_plan(classes: list[dict[str, Any]], spec: dict[str, Any]) -> None:
    plan = plan_for(classes, spec)
    document = document_of(plan, advice_of(plan))
    json.dumps(document, allow_nan=False)
    assert {slot["slot"] for slot in document["placement"]["slots"]} == set(range(spec["replicas"]))
    worst = max(one.group.figures.severity for one in plan.admissions)
    assert document["placement"]["severity"] == pytest.approx(worst, rel=1e-5)
    assert sum(one["sharePercent"] for one in document["classes"]) == pytest.approx(100, abs=5)
    capacity = document["capacity"]
    assert max(capacity["fullLoadPercent"].values()) == pytest.approx(100)
    every = plan.candidates[0].groups[0].figures
    admitted = capacity["fullLoadPercent"]["kv"] / 100 * every.rate
    assert capacity["fullLoadPercent"]["stepBudget"] / 100 * spec["engine"]["maxNumBatchedTokens"] == pytest.approx(
        admitted * (every.mean_prompt + every.mean_output), rel=1e-4
    )
    assert capacity["fullLoadPercent"]["sequences"] / 100 * spec["engine"]["maxNumSeqs"] == pytest.approx(
        admitted * every.mean_output, rel=1e-4
    )
    assert capacity["replicaAtTarget"] <= capacity["replicaSustains"] * 1.001
    if capacity["replicasNeeded"] is not None:
        assert max(capacity["loadPercentNeeded"].values()) <= 75.001
    for one in plan.admissions:
        volume = one.group.figures.mean_volume
        assert math.isclose(one.group.figures.rate * volume, one.group.kv_tokens, rel_tol=1e-9)
        assert [measure.evictions for measure in one.measures] == sorted(
            (measure.evictions for measure in one.measures), reverse=True
        )


@pytest.mark.parametrize(
    ("outputs", "spread"), [([1], 0), ([1, 1], 0), ([2, 600], 300), ([100] * 9, 0), ([300, 310, 320], 5)]
)
def test_extremes_can_be_drawn(outputs: list[int], spread: int) -> None:
    classes = [{"promptTokens": 1, "outputTokens": output, "outputSpreadPercent": spread} for output in outputs]
    plan = plan_for(classes, {"engine": {"kvCacheTokens": 5_000}})
    assert picture(plan).startswith(b"\x89PNG")
    assert len(advice_of(plan)) == 6
