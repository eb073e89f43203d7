from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from core_toy_cluster import CHAT, CODE, Engine, ToyCluster, ready_cluster

from evenflow_contract.worker_config import Admission
from evenflow_contract.worker_state import ClassLengths, WorkerLengths
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.core.caps import is_wide, start_for, starts_wide
from evenflow_operator.core.plan import PatchPod, Plan

TIER = {"name": "tier", "promptTokens": 512, "outputTokens": 256, "outputSpreadPercent": 0}
INTERVAL = 15.0


def admission(cluster: ToyCluster, slot: int = 0) -> Admission:
    config = cluster.by_slot()[slot][0].worker_config
    assert config is not None
    return config.admission


def engine_of(cluster: ToyCluster, slot: int = 0) -> Engine:
    return cluster.engines[cluster.by_slot()[slot][0].uid]


def written(plan: Plan) -> list[int]:
    return [command.slot for command in plan.commands if isinstance(command, PatchPod) and command.config is not None]


def sampled(cluster: ToyCluster, *, evictions: float = 0, admitted: float = 100, **figures: Any) -> Plan:
    """One metric interval later, with so many more evictions and admissions on every engine."""
    cluster.tick(INTERVAL)
    for engine in cluster.engines.values():
        engine.evictions += evictions
        engine.admitted += admitted
        for name, value in figures.items():
            setattr(engine, name, value)
    return cluster.decide()


def condition(cluster: ToyCluster, kind: str) -> dict[str, str]:
    return next(entry for entry in cluster.status["conditions"] if entry["type"] == kind)


@pytest.mark.parametrize(
    ("severity", "start"), [(0.0, 2.5), (0.005, 2.5), (0.0158113883, 1.75), (0.05, 1.0), (0.6, 1.0)]
)
def test_severity_says_where_to_start(severity: float, start: float) -> None:
    assert start_for(severity) == pytest.approx(start)


def test_the_regime_changes_only_beyond_its_far_threshold() -> None:
    assert [is_wide(0.02, before) for before in (True, False)] == [True, False]
    assert [is_wide(0.004, False), is_wide(0.06, True)] == [True, False]
    assert [starts_wide(0.01), starts_wide(0.02)] == [True, False]


def test_wide_lengths_start_loose_with_five_percent_and_tiers_tight_with_one() -> None:
    assert admission(ready_cluster(replicas=1)) == Admission("Limited", "Volume", 2.5, 0.05)
    tiers = ready_cluster(replicas=1, trafficClasses=[TIER])
    assert admission(tiers) == Admission("Limited", "Volume", 1.0, 0.01)


def test_a_given_watermark_is_used_in_every_mode() -> None:
    for control in ({"mode": "Auto"}, {"mode": "Off"}, {"mode": "Fixed", "capMicro": 800_000}):
        assert admission(ready_cluster(replicas=1, admission={**control, "watermarkPercent": 7})).watermark == 0.07
    assert admission(ready_cluster(replicas=1, admission={"mode": "Off"})) == Admission("Off", "Volume", None, 0.0)
    fixed = ready_cluster(replicas=1, admission={"mode": "Fixed", "capMicro": 800_000})
    assert admission(fixed) == Admission("Limited", "Volume", 0.8, 0.0)


def test_requests_are_multiples_of_x_star() -> None:
    cluster = ready_cluster(replicas=1, trafficClasses=[TIER], admission={"unit": "Requests"})
    rate = cluster.status["slots"][0]["evictionFreeRateMicro"] / 1e6
    assert admission(cluster).unit == "Requests"
    assert admission(cluster).per_iteration == pytest.approx(rate, rel=0.05)


def test_evictions_cut_at_once_and_the_cool_down_holds() -> None:
    cluster = ready_cluster(replicas=1)
    sampled(cluster)
    plan = sampled(cluster, evictions=20, waiting=5)
    assert written(plan) == [0]
    assert [one.reason for one in plan.decisions] == [DecisionReason.CAP_CUT]
    assert admission(cluster).per_iteration == pytest.approx(2.5 * 0.76)
    assert condition(cluster, "CapsConverged")["reason"] in ("Waiting", "Adjusting")


def test_raises_keep_thirty_seconds_between_them() -> None:
    cluster = ready_cluster(replicas=1, trafficClasses=[TIER])
    sampled(cluster)
    moments = [cluster.now for _ in range(12) if written(sampled(cluster, waiting=5, peak=0.5))]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert len(moments) >= 4
    assert min(gaps) >= 30
    assert admission(cluster).per_iteration == pytest.approx(1.72, abs=0.1)


def test_a_change_below_five_percent_is_not_written() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.memory = replace(cluster.memory, caps={})
    name = cluster.by_slot()[0][0].name
    pod = cluster.pods[name]
    assert pod.worker_config is not None
    at_two = replace(pod.worker_config, admission=Admission("Limited", "Volume", 2.0, 0.05))
    cluster.pods[name] = replace(pod, worker_config=at_two)
    sampled(cluster)
    assert written(sampled(cluster, waiting=5)) == [], "2.00 to 2.06 is 3 %"
    assert written(sampled(cluster, waiting=5)) == [0], "2.00 to 2.12 is 6 %"


@pytest.mark.parametrize("fault", ["silent", "nan", "source", "reset", "gap"])
def test_whatever_is_wrong_with_samples_holds_the_cap(fault: str) -> None:
    cluster = ready_cluster(replicas=1)
    sampled(cluster)
    if fault == "silent":
        engine_of(cluster).silent = True
        cluster.tick(90)
    elif fault == "source":
        cluster.source_problem = "connection refused"
    elif fault == "reset":
        engine_of(cluster).admitted = -99
    elif fault == "gap":
        cluster.tick(60)
    evictions = float("nan") if fault == "nan" else 50
    plan = sampled(cluster, evictions=evictions, waiting=5)
    assert written(plan) == []
    assert admission(cluster).per_iteration == 2.5
    sampled(cluster, evictions=evictions, waiting=5) if fault in ("silent", "nan", "source") else None
    assert admission(cluster).per_iteration == 2.5
    assert condition(cluster, "CapsConverged")["reason"] == "Holding"


def test_the_same_sample_counts_once() -> None:
    cluster = ready_cluster(replicas=1)
    sampled(cluster)
    sampled(cluster, evictions=20, waiting=5)
    state = cluster.memory.caps
    cluster.decide()
    cluster.decide()
    assert cluster.memory.caps == state


def test_lengths_that_turn_out_to_be_tiers_start_again_as_tiers_do() -> None:
    cluster = ready_cluster(replicas=1)
    uid = cluster.by_slot()[0][0].uid
    tiers = ClassLengths(2000, {256: 1.0, 512: 1.0}, 512.0, {})
    cluster.lengths[uid] = WorkerLengths({"chat": tiers, "code": tiers})
    cluster.tick(61)
    plan = cluster.decide()
    assert admission(cluster) == Admission("Limited", "Volume", 1.0, 0.01)
    assert {one.reason for one in plan.decisions} == {DecisionReason.CAP_CUT, DecisionReason.WATERMARK_SET}
    cluster.tick(61)
    assert written(cluster.decide()) == []


def test_an_invalid_sample_counts_once_too() -> None:
    cluster = ready_cluster(replicas=1)
    sampled(cluster)
    sampled(cluster, evictions=20, waiting=5)
    uid = cluster.by_slot()[0][0].uid
    cooldown = cluster.memory.caps[uid].aimd.cooldown
    assert cooldown > 0
    cluster.tick(15)
    engine_of(cluster).evictions = float("nan")
    for _ in range(3):
        cluster.decide()
        assert cluster.memory.caps[uid].aimd.cooldown == cooldown - 1


def test_settings_of_the_spec_are_written_at_once_and_no_pod_is_restarted() -> None:
    cluster = ready_cluster(
        scheduling={"policy": "FCFS", "victim": "LeastProgress", "agingSeconds": 0},
        admission={"mode": "Off"},
        placement={"strategy": "All"},
    )
    uids = {pod.uid for pod in cluster.pods.values()}
    cluster.change(
        scheduling={"policy": "SVF", "victim": "LargestVolume", "agingSeconds": 30},
        admission={"mode": "Auto"},
        placement={"strategy": "Balanced"},
    )
    plan = cluster.decide()
    assert written(plan) == [0, 1, 2, 3]
    assert {pod.uid for pod in cluster.pods.values()} == uids
    assert {pod.worker_config.generation for pod in cluster.pods.values() if pod.worker_config} == {2}
    assert admission(cluster) == Admission("Limited", "Volume", 2.5, 0.05)
    assert [one.reason for one in plan.decisions] == ["SettingsChanged", "CapStarted", "WatermarkSet"]
    assert all(one.inputs["slots"] == "0,1,2,3" for one in plan.decisions)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scheduling": {"policy": "FCFS"}}, "policy SVF -> FCFS"),
        (
            {"scheduling": {"victim": "LeastProgress", "agingSeconds": 0}},
            "victim LargestVolume -> LeastProgress, aging 30 s -> 0 s",
        ),
        (
            {"scheduling": {"predictor": {"type": "Model", "path": "/models/lengths"}}},
            "predictor ClassPrior -> Model, predictor path none -> /models/lengths",
        ),
        ({"trafficClasses": [{**CHAT, "outputTokens": 300}, CODE]}, "declared lengths of classes"),
        ({"scheduling": {"policy": "OneBitSVF"}}, "policy SVF -> OneBitSVF"),
    ],
)
def test_a_changed_setting_is_told_by_name(change: dict[str, Any], told: str) -> None:
    cluster = ready_cluster(replicas=1)
    cluster.change(**change)
    (message,) = [one.message for one in cluster.decide().decisions if one.reason == "SettingsChanged"]
    assert message == f"slot 0: {told}"


def test_a_restarted_operator_goes_on_from_the_annotation() -> None:
    cluster = ready_cluster(replicas=1)
    sampled(cluster)
    sampled(cluster, evictions=20, waiting=5)
    before = admission(cluster)
    cluster.tick()
    cluster.restart_operator()
    assert cluster.decide().commands == ()
    for _ in range(4):
        sampled(cluster, waiting=0)
        assert admission(cluster) == before
    cap = cluster.memory.caps[cluster.by_slot()[0][0].uid].aimd.cap
    assert cap == before.per_iteration, "no jump"
