"""Failures become one Warning when they begin or become others, one Normal when they are over, and nothing between."""

from dataclasses import replace

import pytest
from core_toy_cluster import ToyCluster, ready_cluster, spec_of

from evenflow_operator.core.plan import Notice
from evenflow_operator.core.status.notices import notices


def told(cluster: ToyCluster, rounds: int = 1, seconds: float = 5.0) -> list[tuple[str, bool, str]]:
    """What is told within some rounds."""
    found: list[Notice] = []
    for _ in range(rounds):
        found += cluster.decide().notices
        cluster.tick(seconds)
    return [(one.condition, one.warning, one.reason) for one in found]


def test_a_pool_that_comes_up_tells_nothing() -> None:
    cluster = ToyCluster(spec_of())
    assert told(cluster, 30) == []


def test_a_replacement_of_healthy_pods_is_no_failure() -> None:
    cluster = ready_cluster(replicas=3)
    cluster.gpus = 3
    cluster.change(rollout={"restartedAt": "2026-01-01T00:00:00Z"})
    assert told(cluster, 40) == []
    assert {pods[0].revision for pods in cluster.by_slot().values()} == {cluster.status["currentRevision"]}


def test_pods_that_cannot_be_scheduled_are_told_once_and_once_when_they_can() -> None:
    cluster = ToyCluster(spec_of(replicas=2), gpus=1)
    assert told(cluster, 10) == [("Degraded", True, "InsufficientAccelerators")]
    message = next(one["message"] for one in cluster.status["conditions"] if one["type"] == "Degraded")
    assert [n.message for plan in cluster.plans for n in plan.notices] == [message]
    cluster.gpus = 2
    assert told(cluster, 10) == [("Degraded", False, "AsExpected")]
    notice = next(n for plan in cluster.plans for n in plan.notices if not n.warning)
    assert notice.message == "InsufficientAccelerators is over: nothing is wrong"


def test_another_reason_is_told_too() -> None:
    cluster = ToyCluster(spec_of(replicas=2), gpus=1)
    told(cluster, 5)
    name = next(name for name, pod in cluster.pods.items() if pod.ready)
    cluster.pods[name] = replace(cluster.pods[name], ready=False, waiting_reason="CrashLoopBackOff")
    assert told(cluster, 5) == [("Degraded", True, "PodFailed")]


def test_a_crash_loop_is_one_failure_however_often_its_container_runs_for_a_while() -> None:
    cluster = ready_cluster(replicas=1)
    name = cluster.by_slot()[0][0].name
    found = []
    for restarts in (1, 2, 3):
        for waiting in ("CrashLoopBackOff", None):
            failed = {"ready": False, "waiting_reason": waiting, "restarts": restarts}
            cluster.pods[name] = replace(cluster.pods[name], **failed)
            found += told(cluster)
    assert found == [("Degraded", True, "PodFailed")]
    cluster.pods[name] = replace(cluster.pods[name], ready=True)
    assert told(cluster, 3) == [("Degraded", False, "AsExpected")]


@pytest.mark.parametrize("over", [False, True])
def test_a_restarted_operator_tells_only_what_its_predecessor_did_not(over: bool) -> None:
    cluster = ToyCluster(spec_of(replicas=2), gpus=1)
    told(cluster, 5)
    cluster.restart_operator()
    cluster.gpus = 2 if over else 1
    assert told(cluster, 10) == ([("Degraded", False, "AsExpected")] if over else [])


def test_a_spec_that_cannot_be_read_is_told_and_its_end_too() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.spec_problem = "spec.replicas: 99999 is too many"
    assert told(cluster, 3) == [("SpecValid", True, "Invalid")]
    cluster.spec_problem = None
    assert told(cluster, 3) == [("SpecValid", False, "Valid")]


def test_a_service_of_somebody_else_is_told() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.services["llama-code"] = replace(cluster.services["llama-code"], owner_uid="somebody")
    assert set(told(cluster, 3)) == {("Degraded", True, "ServiceConflict"), ("SpecValid", True, "NameConflict")}


def test_metrics_that_fail_are_told_whatever_is_unknown_in_between() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.source_problem = "connection refused"
    assert told(cluster, 3) == [("MetricsAvailable", True, "SourceUnavailable")]
    pod = cluster.by_slot()[0][0]
    cluster.pods[pod.name] = replace(pod, ready=False)
    assert told(cluster, 3) == []
    cluster.pods[pod.name] = replace(pod, ready=True)
    assert told(cluster, 3) == []
    cluster.source_problem = None
    assert told(cluster, 3) == [("MetricsAvailable", False, "MetricsFresh")]


def test_other_conditions_and_waiting_for_gpus_tell_nothing() -> None:
    said = [
        {"type": "Ready", "status": "False", "reason": "NoReadySlots", "message": ""},
        {"type": "Degraded", "status": "True", "reason": "WaitingForGPUs", "message": ""},
        {"type": "SchedulerActive", "status": "False", "reason": "StockScheduler", "message": "slot 0"},
    ]
    assert notices(said, {"Degraded": "PodFailed"}) == (
        (Notice("SchedulerActive", True, "StockScheduler", "slot 0"),),
        {"Degraded": "PodFailed", "SchedulerActive": "StockScheduler"},
    )
