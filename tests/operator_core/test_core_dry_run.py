"""A new revision is asked for before a pod that serves is given up for it."""

from dataclasses import replace

import pytest
from core_toy_cluster import CACHE, ToyCluster, ready_cluster

from evenflow_contract import labels
from evenflow_operator.core.decide import decide
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.plan import CreatePod, DeletePod, DryRunPod, Notice, PatchPod, Plan
from evenflow_operator.core.requeue import SHORTEST_SECONDS
from evenflow_operator.core.slots.dry_run import UNANSWERED_SECONDS, Answer, answered, restored, told

BAD = {"spec": {"priorityClassName": "none-such"}}
GOOD = {"spec": {"priorityClassName": "high"}}


def drained(plan: Plan) -> list[int]:
    return [c.slot for c in plan.commands if isinstance(c, PatchPod) and c.annotations.get(labels.DRAIN_STARTED)]


def condition(cluster: ToyCluster, kind: str) -> dict[str, str]:
    return next(entry for entry in cluster.status["conditions"] if entry["type"] == kind)


def serving(cluster: ToyCluster) -> int:
    pods = cluster.pods.values()
    return sum(1 for pod in pods if pod.ready and pod.serving and pod.drain_started is None and not pod.deleting)


def degraded(cluster: ToyCluster) -> list[Notice]:
    return [one for plan in cluster.plans for one in plan.notices if one.condition == "Degraded"]


def refused_cluster(**fields: object) -> ToyCluster:
    """Three pods in service, and a spec whose pods the API server refuses."""
    cluster = ready_cluster(**{"replicas": 3, **fields})
    cluster.plans.clear()
    cluster.change_badly(podTemplate=BAD)
    return cluster


def test_a_refused_revision_keeps_every_pod_says_so_and_is_asked_for_again_with_back_off() -> None:
    cluster = refused_cluster()
    began, pods = cluster.now, dict(cluster.pods)
    for _ in range(130):
        cluster.decide()
        assert serving(cluster) == 3
        cluster.tick(1)
    assert [at - began for at in cluster.dry_runs] == [0, 10, 30, 70]
    assert cluster.pods.keys() == pods.keys()
    assert condition(cluster, "Ready")["status"] == "True"
    said = condition(cluster, "Degraded")
    assert (said["status"], said["reason"]) == ("True", "CreateRefused")
    assert said["message"] == (
        f"revision {cluster.revision}: no such field; every pod stays as it is until the API server takes one"
    )
    stuck = condition(cluster, "Progressing")
    assert (stuck["status"], stuck["reason"]) == ("False", "RolloutStuck")
    assert stuck["message"] == f"the API server refuses pods of {cluster.revision}; 3 slots are left as they are"
    assert [(one.warning, one.reason) for one in degraded(cluster)] == [(True, "CreateRefused")]


def test_the_next_pass_comes_with_the_answer_and_then_when_it_is_asked_for_again() -> None:
    cluster = refused_cluster(metrics={"intervalSeconds": 60, "staleAfterSeconds": 300})
    assert cluster.one_pass().requeue_after == SHORTEST_SECONDS
    assert cluster.one_pass().requeue_after == 10.0


def test_a_corrected_spec_is_asked_for_at_once_and_only_once_and_rolled_out() -> None:
    cluster = refused_cluster()
    cluster.run(4)
    cluster.dry_runs.clear()
    began = cluster.now
    cluster.change(podTemplate=GOOD)
    cluster.run(30)
    assert cluster.dry_runs == [began]
    assert cluster.status["updatedReplicas"] == 3
    assert [(one.warning, one.reason) for one in degraded(cluster)] == [(True, "CreateRefused"), (False, "AsExpected")]
    assert cluster.memory.dry_run is None


def test_a_change_that_makes_no_other_revision_is_asked_for_at_once_too() -> None:
    cluster = refused_cluster()
    cluster.decide()
    cluster.tick(1)
    cluster.refused.clear()
    cluster.change(engine={"type": "Simulated", "workerImage": "worker:allowed"})
    assert drained(cluster.decide()) == [0]


def test_the_question_is_the_pod_that_the_first_outdated_slot_would_get() -> None:
    cluster = refused_cluster()
    (question,) = [c for c in decide(cluster.snapshot(), CACHE).commands if isinstance(c, DryRunPod)]
    cluster.refused.clear()
    cluster.change(podTemplate=BAD)
    cluster.plans.clear()
    cluster.run(4)
    (made,) = [c for plan in cluster.plans for c in plan.commands if isinstance(c, CreatePod)]
    assert made.slot == 0
    assert question.manifest["spec"] == made.manifest["spec"]
    asked, tags = (pod["metadata"]["labels"] for pod in (question.manifest, made.manifest))
    assert {key for key in tags if asked[key] != tags[key]} <= {labels.ATTEMPT}


def test_the_refusal_of_another_spec_stays_told_until_there_is_word_of_the_new_one() -> None:
    cluster = refused_cluster()
    cluster.run(2)
    first = cluster.revision
    cluster.change_badly(podTemplate={"spec": {"priorityClassName": "neither"}})
    assert first in condition(cluster, "Degraded")["message"]
    cluster.run(2)
    assert cluster.revision in condition(cluster, "Degraded")["message"]
    assert len(degraded(cluster)) == 1


def test_going_back_to_the_running_revision_asks_nothing_and_ends_the_refusal() -> None:
    cluster = refused_cluster()
    cluster.run(2)
    cluster.dry_runs.clear()
    cluster.change(podTemplate=None)
    cluster.run(3)
    assert cluster.dry_runs == []
    assert condition(cluster, "Degraded")["reason"] == "AsExpected"
    assert condition(cluster, "Progressing")["reason"] == "Stable"


def test_no_answer_is_no_refusal_and_waited_for_with_back_off() -> None:
    cluster = ready_cluster(replicas=3)
    cluster.unanswered = True
    cluster.change(podTemplate=GOOD)
    began = cluster.now
    for _ in range(60):
        cluster.decide()
        assert serving(cluster) == 3
        cluster.tick(1)
    assert [at - began for at in cluster.dry_runs] == [0, 10, 30]
    assert condition(cluster, "Degraded")["reason"] == "AsExpected"
    going = condition(cluster, "Progressing")
    assert (going["status"], going["reason"]) == ("True", "RollingOut")
    assert going["message"] == (
        f"0 of 3 slots have revision {cluster.revision}; not known yet if it is taken: no answer"
    )
    cluster.unanswered = False
    cluster.tick(10)
    assert drained(cluster.decide()) == [0]


def test_without_any_answer_a_rollout_goes_on_after_ten_minutes() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.unanswered = True
    cluster.change(podTemplate=GOOD)
    cluster.run(int(UNANSWERED_SECONDS / 5))
    assert serving(cluster) == 2
    cluster.run(20)
    assert cluster.status["updatedReplicas"] == 2


def test_a_refusal_after_silence_counts_and_silence_after_a_refusal_has_its_own_ten_minutes() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.unanswered = True
    cluster.change_badly(podTemplate=BAD)
    cluster.run(40)
    cluster.unanswered = False
    cluster.run(200)
    assert (serving(cluster), condition(cluster, "Degraded")["reason"]) == (2, "CreateRefused")
    cluster.unanswered = True
    cluster.run(int(UNANSWERED_SECONDS / 5))
    assert serving(cluster) == 2


def test_drains_for_a_rollout_end_when_the_spec_turns_bad_meanwhile() -> None:
    cluster = ready_cluster(replicas=3)
    for engine in cluster.engines.values():
        engine.running = 2
    cluster.change(podTemplate=GOOD)
    assert drained(cluster.decide()) == [0]
    cluster.tick()
    for engine in cluster.engines.values():
        engine.running = 0
    cluster.change_badly(podTemplate=BAD)
    first = cluster.one_pass()
    assert not [command for command in first.commands if isinstance(command, DeletePod)], "nothing is known yet"
    cluster.run(3)
    assert serving(cluster) == 3


def test_a_users_drain_of_an_outdated_pod_waits_and_a_scale_down_does_not() -> None:
    cluster = refused_cluster()
    pod = cluster.by_slot()[0][0]
    cluster.pods[pod.name] = replace(pod, drain_reason="node maintenance")
    cluster.run(5)
    assert serving(cluster) == 3
    cluster.change(replicas=2)
    cluster.run(10)
    assert sorted(cluster.by_slot()) == [0, 1]
    assert serving(cluster) == 2


def test_a_users_drain_of_a_current_pod_asks_nothing() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.dry_runs.clear()
    pod = cluster.by_slot()[0][0]
    cluster.pods[pod.name] = replace(pod, drain_reason="node maintenance")
    assert drained(cluster.decide()) == [0]
    assert cluster.dry_runs == []


def test_an_answer_that_came_true_is_not_asked_for_in_every_slot() -> None:
    cluster = ready_cluster(replicas=4)
    cluster.dry_runs.clear()
    cluster.change(podTemplate=GOOD)
    cluster.run(40)
    assert cluster.status["updatedReplicas"] == 4
    assert len(cluster.dry_runs) == 1


def test_a_pod_of_the_revision_is_answer_enough_for_an_operator_that_has_just_started() -> None:
    cluster = ready_cluster(replicas=3)
    cluster.change(podTemplate=GOOD)
    cluster.run(5)
    assert cluster.status["updatedReplicas"] == 1
    cluster.dry_runs.clear()
    cluster.restart_operator()
    cluster.run(30)
    assert cluster.status["updatedReplicas"] == 3
    assert cluster.dry_runs == []


def test_pods_that_never_started_are_replaced_without_a_question() -> None:
    cluster = ready_cluster(replicas=2)
    for name, pod in cluster.pods.items():
        cluster.pods[name] = replace(pod, ready=False, serving=False, waiting_reason="ImagePullBackOff")
    cluster.dry_runs.clear()
    cluster.change(podTemplate=GOOD)
    plan = cluster.decide()
    assert sorted(command.slot for command in plan.commands if isinstance(command, DeletePod)) == [0, 1]
    assert cluster.dry_runs == []


@pytest.mark.parametrize(("mode", "advised"), [("Advisory", True), ("Paused", False)])
def test_where_nothing_is_touched_nothing_is_asked(mode: str, advised: bool) -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change_badly(podTemplate=BAD, mode=mode)
    plan = decide(cluster.snapshot(), CACHE)
    assert plan.commands == ()
    assert [one.message[:20] for one in plan.decisions] == (["would: slot 0: drain"] if advised else [])
    assert plan.requeue_after is not None
    assert plan.requeue_after > SHORTEST_SECONDS, "no pass is hurried for an answer that doesn't come"


def test_a_restart_of_the_operator_forgets_no_refusal_and_asks_at_once() -> None:
    cluster = refused_cluster()
    cluster.run(3)
    cluster.dry_runs.clear()
    cluster.plans.clear()
    cluster.restart_operator()
    cluster.run(2)
    assert len(cluster.dry_runs) == 1
    assert degraded(cluster) == []
    assert serving(cluster) == 3
    assert condition(cluster, "Degraded")["reason"] == "CreateRefused"


def test_what_is_told_can_be_read_back_and_other_words_cannot() -> None:
    question = DryRunPod("0a1b2c3d4e", 7, {})
    memory = answered(PoolMemory(), [Answer(question, "403 Forbidden: so; it\ngoes", refused=True)], 5.0)
    assert memory.dry_run is not None
    back = restored(told(memory.dry_run))
    assert back is not None
    assert (back.revision, back.problem, back.refused) == ("0a1b2c3d4e", "403 Forbidden: so; it\ngoes", True)
    for text in ("", "slot 3: 403 Forbidden", "revision x: y", "revision 0a1b2c3d4e: y"):
        assert restored(text) is None


def test_the_api_server_may_ask_for_a_longer_pause() -> None:
    question = DryRunPod("0a1b2c3d4e", 7, {})
    memory = answered(PoolMemory(), [Answer(question, "429", retry_after=55.0)], 100.0)
    assert memory.dry_run is not None
    assert memory.dry_run.until == 155.0
    memory = answered(memory, [Answer(question)], 160.0)
    assert memory.dry_run is not None
    assert memory.dry_run.problem == ""
