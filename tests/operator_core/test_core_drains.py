from dataclasses import replace

import pytest
from core_toy_cluster import ToyCluster, ready_cluster

from evenflow_contract import labels
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.core.plan import CreatePod, DeletePod, PatchPod, Plan


def drained(plan: Plan) -> list[int]:
    return [c.slot for c in plan.commands if isinstance(c, PatchPod) and c.annotations.get(labels.DRAIN_STARTED)]


def deleted(plan: Plan) -> list[int]:
    return [c.slot for c in plan.commands if isinstance(c, DeletePod)]


def busy(cluster: ToyCluster, running: int = 2) -> None:
    for engine in cluster.engines.values():
        engine.running = running


def condition(cluster: ToyCluster, kind: str) -> dict[str, str]:
    return next(entry for entry in cluster.status["conditions"] if entry["type"] == kind)


def test_a_drain_takes_the_label_first_tells_the_worker_and_says_why() -> None:
    cluster = ready_cluster(replicas=3)
    cluster.change(replicas=2)
    plan = cluster.decide()
    (patch,) = [command for command in plan.commands if isinstance(command, PatchPod)]
    assert patch.slot == 2
    assert patch.labels == {labels.SERVING: None}
    assert patch.annotations[labels.DRAIN_REASON] == DecisionReason.SCALE_DOWN
    assert patch.config is not None
    assert patch.config.draining
    assert patch.config.generation == 2
    assert deleted(plan) == []


def test_a_pod_with_running_requests_is_not_deleted_before_its_time() -> None:
    cluster = ready_cluster(replicas=2, rollout={"drainTimeoutSeconds": 60})
    busy(cluster)
    cluster.change(replicas=1)
    cluster.decide()
    for _ in range(11):
        cluster.tick(5)
        assert deleted(cluster.decide()) == []
    cluster.tick(5)
    plan = cluster.decide()
    assert deleted(plan) == [1]
    assert plan.decisions[0].reason == DecisionReason.DRAIN_TIMED_OUT


def test_a_drained_pod_goes_once_a_reading_from_after_the_drain_says_zero() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change(replicas=1)
    cluster.decide()
    cluster.tick(2)
    assert deleted(cluster.decide()) == [], "the endpoints may not have heard yet"
    cluster.tick(2)
    plan = cluster.decide()
    assert deleted(plan) == [1]
    assert plan.decisions[0].reason == DecisionReason.DRAINED


def test_a_drain_that_begins_in_the_future_begins_now() -> None:
    """By a user's hand, or because the clock was set back since: otherwise its time would not come for ages."""
    cluster = ready_cluster(replicas=2)
    pod = cluster.by_slot()[0][0]
    cluster.pods[pod.name] = replace(pod, drain_reason="hardware", drain_started=cluster.now + 86_400.0)
    cluster.engines[pod.uid].silent = True
    started = cluster.now
    cluster.run(200)
    assert cluster.by_slot()[0][0].uid != pod.uid
    assert cluster.by_slot()[0][0].created_at < started + 700


def test_silence_is_not_zero() -> None:
    cluster = ready_cluster(replicas=2, rollout={"drainTimeoutSeconds": 600})
    for engine in cluster.engines.values():
        engine.silent = True
    cluster.change(replicas=1)
    cluster.decide()
    cluster.tick(300)
    assert deleted(cluster.decide()) == []


def test_a_state_from_before_the_drain_does_not_count() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change(replicas=1)
    cluster.decide()
    before = cluster.now
    cluster.tick(10)
    fresh = cluster.readings
    stale = {
        uid: replace(reading, state_at=before, counters=None, taken_at=cluster.now) for uid, reading in fresh().items()
    }
    cluster.readings = lambda: stale  # type: ignore[method-assign]
    assert deleted(cluster.decide()) == []


def test_slots_leave_one_after_another_the_highest_of_equal_ones_first() -> None:
    cluster = ready_cluster(replicas=4)
    busy(cluster)
    cluster.change(replicas=1)
    order = []
    for _ in range(12):
        order += drained(cluster.decide())
        cluster.tick()
        if len(order) % 2:
            busy(cluster, 0)
    assert order == [3, 2, 1]


def test_the_slot_that_serves_what_others_serve_too_goes_first() -> None:
    cluster = ready_cluster(
        replicas=3,
        placement={
            "strategy": "Static",
            "static": [
                {"slot": 0, "classes": ["chat"]},
                {"slot": 1, "classes": ["chat"]},
                {"slot": 2, "classes": ["code"]},
            ],
        },
    )
    cluster.change(replicas=2)
    assert drained(cluster.decide()) == [1]


def test_an_unready_pod_goes_before_ready_ones_and_without_a_drain() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.broken.add(cluster.memory.written_status["currentRevision"])
    cluster.change(replicas=3)
    cluster.decide()
    cluster.tick()
    cluster.change(replicas=2)
    plan = cluster.decide()
    assert deleted(plan) == [2]
    assert drained(plan) == []
    (why,) = [one for one in plan.decisions if one.reason == DecisionReason.SCALE_DOWN]
    gone = next(command.name for command in plan.commands if isinstance(command, DeletePod))
    assert why.type == "DeletePod"
    assert why.message == f"slot 2: delete {gone}: it serves nobody; 2 replicas wanted, 3 slots"
    assert cluster.status["decisions"][-1]["message"] == why.message


def test_a_drain_ends_when_the_slot_is_wanted_again() -> None:
    cluster = ready_cluster(replicas=3)
    busy(cluster)
    cluster.change(replicas=2)
    cluster.decide()
    cluster.tick()
    cluster.change(replicas=3)
    plan = cluster.decide()
    (patch,) = [command for command in plan.commands if isinstance(command, PatchPod)]
    assert patch.annotations == {labels.DRAIN_STARTED: None, labels.DRAIN_REASON: None}
    assert patch.config is not None
    assert not patch.config.draining
    cluster.tick()
    cluster.settle()
    assert all(pods[0].serving for pods in cluster.by_slot().values())


def test_a_rollout_takes_one_slot_after_another_and_never_needs_a_spare_gpu() -> None:
    cluster = ready_cluster(replicas=3)
    cluster.gpus = 3
    cluster.change(rollout={"restartedAt": "2026-01-01T00:00:00Z"})
    least = 3
    for _ in range(40):
        cluster.decide()
        serving = [p for p in cluster.pods.values() if p.ready and p.serving and p.drain_started is None]
        least = min(least, len([pod for pod in serving if not pod.deleting]))
        cluster.tick()
    assert least == 2
    assert cluster.status["updatedReplicas"] == 3
    assert condition(cluster, "Progressing")["reason"] == "Stable"


def test_a_revision_that_does_not_start_stops_the_rollout_and_says_so() -> None:
    cluster = ready_cluster(replicas=3)
    cluster.change(model={"name": "broken/model"})
    cluster.broken = {"will be replaced"}
    cluster.decide()
    revision = cluster.status["currentRevision"]
    cluster.broken = {revision}
    cluster.run(10)
    stuck = next(pod for pod in cluster.pods.values() if pod.revision == revision)
    cluster.pods[stuck.name] = replace(stuck, waiting_reason="CrashLoopBackOff")
    cluster.run(20)
    old = [pod for pod in cluster.pods.values() if pod.revision != revision]
    assert len(old) == 2
    assert all(pod.serving for pod in old)
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"


def test_a_revision_that_takes_half_an_hour_counts_as_broken() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change(model={"name": "slow/model"}, rollout={"maxUnavailable": 2})
    cluster.decide()
    cluster.broken = {cluster.status["currentRevision"]}
    cluster.engines[cluster.by_slot()[1][0].uid].running = 1
    cluster.run(10)
    assert condition(cluster, "Progressing")["reason"] == "RollingOut"
    cluster.tick(1801)
    cluster.decide()
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"


def test_unhealthy_pods_of_the_old_revision_are_replaced_first() -> None:
    cluster = ready_cluster(replicas=3)
    sick = cluster.by_slot()[2][0]
    cluster.pods[sick.name] = replace(sick, ready=False)
    cluster.change(rollout={"restartedAt": "2026-01-01T00:00:00Z"})
    plan = cluster.decide()
    assert [*drained(plan), *deleted(plan)] == [2]


def test_max_unavailable_allows_more_slots_at_once() -> None:
    cluster = ready_cluster(replicas=4)
    busy(cluster)
    cluster.change(rollout={"restartedAt": "2026-01-01T00:00:00Z", "maxUnavailable": 2})
    started = []
    for _ in range(6):
        started += drained(cluster.decide())
        cluster.tick()
    assert started == [0, 1]


def test_a_users_drain_refills_the_slot() -> None:
    cluster = ready_cluster(replicas=2)
    pod = cluster.by_slot()[0][0]
    cluster.pods[pod.name] = replace(pod, drain_reason="node maintenance")
    plan = cluster.decide()
    assert drained(plan) == [0]
    assert plan.decisions[0].reason == DecisionReason.USER_DRAIN
    cluster.tick()
    cluster.settle()
    assert cluster.by_slot()[0][0].uid != pod.uid


@pytest.mark.parametrize("replicas", [0, 1])
def test_one_disruptive_command_at_a_time_rollout_before_scale_down(replicas: int) -> None:
    cluster = ready_cluster(replicas=3)
    busy(cluster)
    cluster.change(replicas=replicas, rollout={"restartedAt": "2026-01-01T00:00:00Z"})
    for _ in range(4):
        plan = cluster.decide()
        cluster.tick()
        assert not [command for command in plan.commands if isinstance(command, CreatePod)]
    assert len([pod for pod in cluster.pods.values() if pod.drain_started is not None]) == 1
