"""Whatever engines, kubelets and other releases say, a pass ends and its status is one that the API server takes."""

import math
from dataclasses import replace
from typing import Any

import pytest
from core_toy_cluster import ToyCluster, ready_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_contract.worker_state import ClassLengths, WorkerLengths, WorkerState
from evenflow_operator.api.status import LLMServingPoolStatus
from evenflow_operator.core.snapshot import EngineCounters, Reading

COUNT = st.one_of(st.none(), st.sampled_from([0.0, 1.0, math.nan, math.inf, -1.0, 1e15, 1e300]), st.floats(0, 1e6))
WHOLE = st.one_of(st.sampled_from([0, 1, 16, 430_000, 10**9 + 1, 2**53]), st.integers(0, 2**53))
COUNTERS = (
    "evictions",
    "admitted",
    "completed",
    "iterations",
    "recomputed_tokens",
    "generated_tokens",
    "running",
    "waiting",
    "kv_peak_ratio",
    "kv_capacity_tokens",
    "applied_generation",
)


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """What one engine says: counters, its worker's state, observed lengths; all within what the contract reads."""
    state = WorkerState(
        applied_generation=draw(WHOLE),
        config_hash="",
        engine="vllm",
        scheduler=draw(st.sampled_from(["evenflow", "stock"])),
        policy="SVF",
        kv_capacity_tokens=draw(WHOLE),
        block_size=draw(st.sampled_from([1, 16, 1_000_000])),
        iterations=draw(WHOLE),
        running=draw(WHOLE),
        waiting=draw(WHOLE),
        reason=draw(st.none() | st.text(max_size=2000)),
    )
    outputs = st.dictionaries(st.integers(0, 99_999_999), st.floats(0, 1e15), max_size=4)
    lengths = ClassLengths(draw(WHOLE), draw(outputs), draw(st.floats(0, 1e15)), {})
    return {
        "counters": EngineCounters(**{name: draw(COUNT) for name in COUNTERS}),
        "state": draw(st.none() | st.just(state)),
        "lengths": draw(st.none() | st.just(WorkerLengths({"chat": lengths, "default": lengths}))),
    }


@settings(max_examples=25)
@given(said=st.lists(answers(), min_size=4, max_size=4), autoscaled=st.booleans())
def test_an_engine_may_report_anything(said: list[dict[str, Any]], autoscaled: bool) -> None:
    cluster = ready_cluster()
    if autoscaled:
        cluster.change(autoscaling={"minReplicas": 1, "maxReplicas": 8})
    uids = sorted(pod.uid for pod in cluster.pods.values())

    def readings() -> dict[str, Reading]:
        return {uid: Reading(cluster.now, "Scrape", **one) for uid, one in zip(uids, said, strict=True)}

    cluster.readings = readings  # type: ignore[method-assign]
    for _ in range(3):
        cluster.tick(61)
        cluster.decide()
        LLMServingPoolStatus.model_validate(cluster.status)


def test_lengths_that_no_model_has_are_nobodys() -> None:
    cluster = ready_cluster()
    for pod in cluster.pods.values():
        cluster.lengths[pod.uid] = WorkerLengths({"chat": ClassLengths(1000, {220: 1000.0}, 1e7, {})})
    cluster.tick(61)
    cluster.decide()
    assert cluster.memory.observed == {}


@pytest.mark.parametrize("reason", ["Provider failed: no such region", "x" * 200, "ErrNoGPU.", "ungültig"])
def test_a_kubelet_that_says_a_sentence_is_quoted(reason: str) -> None:
    cluster = ready_cluster()
    name = next(iter(cluster.pods))
    cluster.pods[name] = replace(cluster.pods[name], ready=False, waiting_reason=reason)
    cluster.decide()
    LLMServingPoolStatus.model_validate(cluster.status)
    assert cluster.status["slots"][0]["message"] == reason


def rolled_back(**status: Any) -> ToyCluster:
    """An operator that finds a status written by a newer release, which its definition would refuse."""
    cluster = ready_cluster()
    cluster.status.update(status)
    cluster.restart_operator()
    return cluster


NEWER = {"time": "2026-01-01T00:00:00Z", "type": "Teleport", "reason": "Newer", "message": "a newer release's act"}


def test_after_a_rollback_decisions_of_kinds_unknown_here_are_left_out() -> None:
    before = ready_cluster().status["decisions"]
    cluster = rolled_back(decisions=[*before, NEWER])
    cluster.change(replicas=5)
    cluster.decide()
    LLMServingPoolStatus.model_validate(cluster.status)
    assert cluster.status["decisions"][: len(before)] == before


def test_after_a_rollback_a_spec_that_cannot_be_read_is_told_all_the_same() -> None:
    slots = ready_cluster().status["slots"]
    cluster = rolled_back(decisions=[NEWER], slots=[{**slots[0], "phase": "Levitating"}, *slots[1:]])
    cluster.spec_problem = "spec.engine: unknown"
    cluster.decide()
    LLMServingPoolStatus.model_validate(cluster.status)
    assert cluster.status["conditions"][0]["reason"] == "Invalid"
    assert cluster.status["classes"]
