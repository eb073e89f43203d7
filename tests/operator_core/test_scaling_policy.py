"""When the autoscaler writes replicas, when it holds, and what it says about it."""

import json
import math
import random
from dataclasses import replace

import pytest
from core_toy_cluster import CACHE
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_traffic import INTERVAL, Traffic, under

from evenflow_operator.core.decide import decide
from evenflow_operator.core.snapshot import ReplicaWriter

HPA = ReplicaWriter("kube-controller-manager", "Update", "scale", None)
OURS = ReplicaWriter("evenflow-autoscaler", "Update", "scale", None)


def test_a_surge_is_answered_at_once_by_as_many_as_it_needs() -> None:
    cluster = under(10.0)
    assert (cluster.written, cluster.replicas) == ([], 2)
    cluster.rate = 40.0
    cluster.pass_time(2 * INTERVAL)
    assert cluster.written == [6]
    cluster.pass_time(900)
    assert cluster.written == [6]
    record = cluster.scale_records()[0]
    assert record["reason"] == "LoadAboveTarget"
    assert (record["inputs"]["from"], record["inputs"]["boundBy"]) == ("2", "stepBudget")
    assert "maxNumBatchedTokens binds" in record["message"]
    assert float(record["inputs"]["stepBudgetPercent"]) > 75
    assert float(record["inputs"]["arrivalsPerMinute"]) == pytest.approx(2400, rel=0.01)


def test_slots_that_still_load_their_model_are_capacity_that_is_coming() -> None:
    cluster = under(10.0)
    cluster.rate, cluster.starting = 40.0, True
    cluster.pass_time(900)
    assert cluster.written == [6]
    assert sum(1 for pod in cluster.pods.values() if not pod.ready) == 4


def test_one_step_is_bounded_and_so_is_the_whole_way() -> None:
    cluster = under(3.0, replicas=1, maxReplicas=40)
    cluster.rate = 200.0
    cluster.pass_time(10 * INTERVAL)
    assert cluster.written[:3] == [5, 10, 20]
    assert cluster.written[3:] in ([29], [30])
    limited = under(100.0, replicas=2, maxReplicas=4)
    assert limited.written == [4]
    assert limited.limited()[:2] == ("True", "AtMaxReplicas")


def test_replicas_fall_slowly_one_at_a_time_and_drained() -> None:
    cluster = under(40.0, replicas=6)
    assert cluster.written == []
    cluster.rate, began = 10.0, cluster.now
    cluster.pass_time(285)
    assert cluster.written == []
    assert cluster.limited()[:2] == ("True", "Stabilizing")
    busiest = 0
    while cluster.now < began + 900:
        draining = [pod for pod in cluster.pods.values() if pod.drain_started is not None and not pod.deleting]
        busiest = max(busiest, len(draining))
        cluster.pass_time(INTERVAL)
    assert cluster.written == [5, 4, 3, 2]
    assert busiest <= 1
    messages = [record["message"] for record in cluster.scale_records()]
    assert all("with one slot less it would be" in message for message in messages)
    assert len([pods for pods in cluster.by_slot().values() if pods]) == 2


def test_the_wait_is_as_long_as_the_spec_says() -> None:
    cluster = under(40.0, replicas=6, scaleDownStabilizationSeconds=0)
    cluster.rate = 10.0
    cluster.pass_time(6 * INTERVAL)
    assert cluster.written == [5]


@pytest.mark.parametrize("rate", [8.0, 10.0, 12.0, 14.5])
def test_a_constant_load_with_noise_goes_neither_to_nor_fro(rate: float, seed: int) -> None:
    cluster = under(rate, replicas=2, seconds=60)
    source = random.Random(seed)
    for _ in range(120):
        cluster.rate = max(0.0, source.gauss(rate, math.sqrt(rate / INTERVAL)))
        cluster.pass_time(INTERVAL)
    # Two slots are on target at 13.6: above that a third may come, once.
    assert cluster.written in ([], [3] if rate > 13.6 else [])


def test_a_single_busy_moment_begins_the_wait_anew() -> None:
    cluster = under(10.0, replicas=6, seconds=240)
    cluster.rate = 40.0
    cluster.pass_time(3 * INTERVAL)
    cluster.rate = 10.0
    cluster.pass_time(270)
    assert cluster.written == []
    cluster.pass_time(120)
    assert cluster.written == [5]


def test_two_do_not_become_one_that_is_too_full() -> None:
    cluster = under(7.0, replicas=2, seconds=1200)
    assert cluster.written == []
    cluster = under(5.5, replicas=2, seconds=1200)
    assert cluster.written == [1]


@pytest.mark.parametrize("fault", ["silent", "nan", "source"])
def test_figures_that_are_missing_are_not_zero(fault: str) -> None:
    cluster = under(40.0, replicas=6)
    for engine in cluster.engines.values():
        engine.silent = fault == "silent"
        engine.stock = fault == "nan"  # running requests aren't reported
    cluster.source_problem = "Prometheus: no answer within 3 s" if fault == "source" else None
    cluster.rate = 0.0
    cluster.pass_time(1200)
    assert (cluster.written, cluster.replicas) == ([], 6)
    status, reason, message = cluster.limited()
    assert (status, reason) == ("True", "MetricsUnavailable"), message


def test_one_silent_engine_stops_the_way_down_alone() -> None:
    cluster = under(10.0, replicas=4, seconds=120)
    name = sorted(cluster.pods)[0]
    cluster.engines[cluster.pods[name].uid].silent = True
    cluster.pass_time(1800)
    assert cluster.written == []
    assert "slot 0" in cluster.limited()[2]
    cluster.rate = 60.0
    cluster.pass_time(2 * INTERVAL)
    # The silent one's share counts for nothing.
    assert cluster.written == [7]


def test_samples_that_come_more_seldom_than_asked_for_are_enough() -> None:
    cluster = under(40.0, seconds=0, metrics={"intervalSeconds": 5, "staleAfterSeconds": 90})
    cluster.pass_time(300)
    assert cluster.written == [6]


def test_an_engine_that_restarted_in_its_pod_starts_to_count_anew() -> None:
    cluster = under(10.0, seconds=120)
    for engine in cluster.engines.values():
        engine.admitted = engine.iterations = 0.0
    cluster.pass_time(600)
    assert (cluster.written, cluster.limited()[1]) == ([], "WithinLimits")


def test_bounds_hold_whatever_the_load_and_come_first() -> None:
    low = under(0.0, replicas=1, seconds=30, minReplicas=3)
    assert low.written == [3]
    assert low.scale_records()[0]["reason"] == "OutOfBounds"
    high = under(100.0, replicas=9, seconds=30, maxReplicas=4)
    assert high.written == [4]
    idle = under(0.1, replicas=2, seconds=900, minReplicas=2)
    assert idle.written == []
    assert idle.limited()[:2] == ("True", "AtMinReplicas")


def test_classes_keep_the_slots_that_they_ask_for() -> None:
    cluster = under(0.1, replicas=4, seconds=30)
    classes = [{"name": name, "promptTokens": 1024, "outputTokens": 220, "minReplicas": 3} for name in ("chat", "code")]
    cluster.change(trafficClasses=classes)
    cluster.pass_time(1800)
    assert (cluster.written, cluster.limited()[1]) == ([3], "AtMinReplicas")


def test_a_pool_that_was_set_to_zero_stays_there() -> None:
    cluster = under(10.0, replicas=2, seconds=60)
    cluster.change(replicas=0)
    cluster.pass_time(600)
    assert (cluster.written, cluster.limited()[:2]) == ([], ("False", "Disabled"))


def test_advisory_says_once_what_it_would_do_and_touches_nothing() -> None:
    cluster = under(10.0)
    cluster.change(mode="Advisory")
    for rate in (40.0, 40.7, 40.2):
        cluster.rate = rate
        cluster.pass_time(120)
    assert (cluster.written, cluster.replicas) == ([], 2)
    told = [one["message"] for one in cluster.scale_records()]
    assert len(told) == 1
    assert told[0].startswith("would: replicas 2 -> 6")
    cluster.change(mode="Paused")
    cluster.rate = 80.0
    cluster.pass_time(120)
    assert (cluster.written, len(cluster.scale_records())) == ([], 1)


def test_nothing_is_taken_away_during_a_rollout() -> None:
    cluster = under(10.0, replicas=4, seconds=150)
    cluster.starting = True
    cluster.change(rollout={"restartedAt": "2026-01-01T00:00:00Z"})
    cluster.pass_time(1200)
    assert cluster.written == []
    assert cluster.limited()[1] == "Stabilizing"


def test_a_restart_of_the_operator_shortens_no_wait() -> None:
    cluster = under(10.0, replicas=4, seconds=240)
    cluster.restart_operator()
    cluster.pass_time(270)
    assert cluster.written == []
    cluster.pass_time(90)
    assert cluster.written == [3]
    # The last step is known from the record: it must show in the figures before the next.
    cluster.restart_operator()
    assert json.loads(json.dumps(cluster.status))["decisions"]
    cluster.pass_time(45)
    assert cluster.written == [3]


def test_a_write_that_fails_is_tried_again_and_never_doubled() -> None:
    cluster = under(10.0)
    cluster.obeyed = False
    cluster.rate = 40.0
    cluster.pass_time(2 * INTERVAL)
    assert set(cluster.written) == {6}


def test_bounds_are_not_written_again_within_an_interval() -> None:
    cluster = under(10.0)
    cluster.change(autoscaling={"minReplicas": 4, "maxReplicas": 8})
    cluster.obeyed = False
    cluster.decide()
    cluster.decide()
    assert cluster.written == [4]
    cluster.tick()
    cluster.decide()
    assert cluster.written == [4, 4]


def test_a_refused_write_is_said_for_as_long_as_one_is_wanted() -> None:
    cluster = under(10.0)
    refusal = "scale to 4: 403 Forbidden"
    assert decide(replace(cluster.snapshot(), scale_refusal=refusal), CACHE).status is None, "nothing to say"
    cluster.change(autoscaling={"minReplicas": 4, "maxReplicas": 8})
    plan = decide(replace(cluster.snapshot(), scale_refusal=refusal), CACHE)
    assert plan.status is not None
    said = next(one for one in plan.status["conditions"] if one["type"] == "ScalingLimited")
    assert (said["status"], said["reason"]) == ("True", "WriteRefused")
    assert said["message"].startswith(f"{refusal}; let the operator patch llmservingpools/scale")


@pytest.mark.parametrize(
    "writer", [HPA, replace(HPA, manager="kubectl"), ReplicaWriter("argocd-controller", "Apply", "", None)]
)
def test_another_writer_is_reported_and_not_fought(writer: ReplicaWriter) -> None:
    cluster = under(10.0)
    cluster.writers = (replace(writer, at=cluster.now),)
    cluster.rate = 60.0
    cluster.pass_time(900)
    assert cluster.written == []
    status, reason, message = cluster.limited()
    assert (status, reason) == ("True", "OtherWriter")
    assert writer.manager in message
    told = [notice for plan in cluster.plans for notice in plan.notices if notice.condition == "ScalingLimited"]
    assert [(notice.warning, notice.reason) for notice in told] == [(True, "OtherWriter")]


def test_whoever_created_the_pool_is_no_rival_until_it_overwrites_us() -> None:
    creator = ReplicaWriter("kubectl-client-side-apply", "Update", "", None)
    cluster = under(10.0)
    cluster.writers = (replace(creator, at=cluster.now - 600),)
    cluster.rate = 40.0
    cluster.pass_time(30)
    assert cluster.written == [6]
    cluster.writers = (replace(OURS, at=cluster.now),)
    cluster.pass_time(60)
    cluster.change(replicas=2)
    cluster.writers = (replace(creator, at=cluster.now),)
    began = cluster.now
    cluster.pass_time(300)
    assert (cluster.written, cluster.limited()[1]) == ([6], "OtherWriter")
    # It answered a write of ours: such a one comes back, so a day passes.
    while cluster.now < began + 24 * 3600 - 1500:
        cluster.now += 1200
        cluster.pass_time(INTERVAL)
    assert cluster.written == [6]
    cluster.pass_time(1500)
    assert cluster.written[1] == 6


def test_a_person_who_scales_by_hand_has_an_hour() -> None:
    cluster = under(10.0)
    cluster.change(replicas=5)
    cluster.writers = (replace(HPA, manager="kubectl", at=cluster.now),)
    cluster.pass_time(300)
    cluster.now += 2700
    cluster.pass_time(540)
    assert cluster.written == []
    cluster.pass_time(600)
    assert cluster.written == [4]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 150), st.booleans()), min_size=4, max_size=10),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_replicas_never_leave_their_bounds(steps: list[tuple[float, bool]], low: int, more: int) -> None:
    bounds = {"minReplicas": low, "maxReplicas": low + more}
    cluster = under(5.0, replicas=low, seconds=60, scaleDownStabilizationSeconds=30, **bounds)
    for cluster.rate, cluster.starting in steps:
        cluster.pass_time(60)
    assert cluster.over == 0
    assert all(low <= count <= low + more for count in cluster.written)


def test_no_autoscaling_no_opinion() -> None:
    cluster = Traffic(under(1.0, seconds=0).spec | {"autoscaling": None}, gpus=32, rate=60.0)
    cluster.pass_time(300)
    assert (cluster.written, cluster.limited()[1]) == ([], "Disabled")
    assert all(plan.scaling is None for plan in cluster.plans)
