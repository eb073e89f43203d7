"""Pods that don't start, and what a corrected spec does to them."""

from dataclasses import replace
from typing import Any

import pytest
from core_toy_cluster import ToyCluster, ready_cluster, spec_of

from evenflow_operator.core.plan import DeletePod, PatchPod, Plan

VLLM = {"type": "VLLM", "vllm": {"image": "vllm:typo"}}
GOOD = {"type": "VLLM", "vllm": {"image": "vllm:good"}}


def deletes(plan: Plan) -> list[int]:
    return [command.slot for command in plan.commands if isinstance(command, DeletePod)]


def drains(plan: Plan) -> list[int]:
    return [c.slot for c in plan.commands if isinstance(c, PatchPod) and c.config is not None and c.config.draining]


def condition(cluster: ToyCluster, kind: str) -> dict[str, str]:
    return next(entry for entry in cluster.status["conditions"] if entry["type"] == kind)


def fail_to_start(cluster: ToyCluster, reason: str = "ImagePullBackOff", **more: Any) -> None:
    """Every pod that isn't ready says why."""
    for name, pod in cluster.pods.items():
        if not pod.ready:
            cluster.pods[name] = replace(pod, waiting_reason=reason, engine_waiting=True, **more)


def never_started(**fields: Any) -> ToyCluster:
    """Three pods of a pool whose image can't be pulled."""
    cluster = ToyCluster(spec_of(**{"replicas": 3, "engine": VLLM, **fields}))
    cluster.decide()
    cluster.broken = {cluster.status["currentRevision"]}
    cluster.run(3)
    fail_to_start(cluster)
    cluster.run(3)
    return cluster


def test_a_corrected_image_replaces_every_pod_that_never_started_at_once() -> None:
    cluster = never_started()
    cluster.change(engine=GOOD)
    plan = cluster.decide()
    assert deletes(plan) == [0, 1, 2]
    (told,) = [one for one in plan.decisions if one.reason == "RevisionChanged"]
    assert told.message.startswith("slots 0,1,2: replace the pod, which doesn't start (ImagePullBackOff): revision ")
    cluster.tick()
    cluster.settle()
    assert condition(cluster, "Ready")["reason"] == "AllSlotsReady"


def test_another_broken_revision_does_not_keep_those_before_it() -> None:
    cluster = ready_cluster(replicas=3, engine=GOOD)
    for tag, at_once in (("typo", 2), ("typo2", 1)):
        engine = {"type": "VLLM", "vllm": {"image": f"vllm:{tag}"}}
        cluster.change(engine=engine, rollout={"maxUnavailable": at_once})
        cluster.decide()
        cluster.broken.add(cluster.status["currentRevision"])
        for _ in range(4):
            cluster.tick()
            if tag == "typo2":
                # The first pod of a new revision is enough to know that it doesn't start.
                fail_to_start(cluster)
            cluster.decide()
        fail_to_start(cluster)
        cluster.decide()
    revisions = [pods[0].revision for pods in cluster.by_slot().values() if not pods[0].ready]
    assert revisions == [cluster.status["currentRevision"]] * 2
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"
    assert any(pod.ready and pod.serving for pod in cluster.pods.values()), "what serves is left alone"


@pytest.mark.parametrize(
    ("started", "noted", "replaced"), [(False, True, [0, 1, 2]), (False, False, []), (True, True, [])]
)
def test_a_corrected_worker_image_replaces_only_pods_that_never_started(
    started: bool, noted: bool, replaced: list[int]
) -> None:
    wrong, right = ({**GOOD, "workerImage": f"worker:{tag}"} for tag in ("wrong", "right"))
    cluster = ready_cluster(replicas=3, engine=wrong) if started else never_started(engine=wrong)
    if not noted:
        cluster.pods = {name: replace(pod, worker_image=None) for name, pod in cluster.pods.items()}
    assert deletes(cluster.decide()) == []
    cluster.change(engine=right)
    plan = cluster.decide()
    assert deletes(plan) == replaced
    assert drains(plan) == []
    if replaced:
        cluster.broken.clear()
        cluster.tick()
        cluster.settle()
        assert {pod.worker_image for pod in cluster.pods.values()} == {"worker:right"}


def test_a_pod_that_still_pulls_its_image_is_no_correction_but_the_first_of_the_rollout() -> None:
    cluster = never_started()
    cluster.pods = {name: replace(pod, waiting_reason="ContainerCreating") for name, pod in cluster.pods.items()}
    cluster.change(engine=GOOD)
    assert deletes(cluster.decide()) == [0]


def test_an_engine_in_a_crash_loop_is_rolled_without_a_drain() -> None:
    cluster = ready_cluster(replicas=3)
    pod = cluster.by_slot()[2][0]
    cluster.pods[pod.name] = replace(
        pod, ready=False, waiting_reason="CrashLoopBackOff", engine_waiting=True, restarts=4
    )
    cluster.change(engine={"type": "Simulated", "maxNumSeqs": 64})
    plan = cluster.decide()
    assert (deletes(plan), drains(plan)) == ([2], [])


def test_a_drain_ends_when_the_engine_no_longer_runs() -> None:
    cluster = ready_cluster(replicas=2)
    for engine in cluster.engines.values():
        engine.running = 5
    cluster.change(replicas=1)
    (slot,) = drains(cluster.decide())
    cluster.tick()
    pod = cluster.by_slot()[slot][0]
    assert deletes(cluster.decide()) == []
    cluster.pods[pod.name] = replace(pod, ready=False, waiting_reason="CrashLoopBackOff", engine_waiting=True)
    assert deletes(cluster.decide()) == [slot]


def test_what_is_known_of_a_failure_stands_in_condition_and_slot() -> None:
    cluster = ready_cluster(replicas=1)
    pod = cluster.by_slot()[0][0]
    cluster.pods[pod.name] = replace(
        pod, ready=False, waiting_reason="CrashLoopBackOff", trouble="OOMKilled, exit code 137", restarts=2
    )
    cluster.decide()
    why = "CrashLoopBackOff: OOMKilled, exit code 137 (restarts: 2)"
    assert condition(cluster, "Degraded")["message"] == f"{pod.name}: {why}"
    slot = cluster.status["slots"][0]
    assert (slot["phase"], slot["reason"], slot["message"]) == ("Failed", "CrashLoopBackOff", why)
