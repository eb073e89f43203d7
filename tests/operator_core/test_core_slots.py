from dataclasses import replace

import pytest
from core_toy_cluster import CACHE, START, ToyCluster, ready_cluster, spec_of

from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.core.decide import decide
from evenflow_operator.core.plan import CreatePod, DeletePod, PatchPod, Plan
from evenflow_operator.core.slots.refill import refused


def creates(plan: Plan) -> list[int]:
    return [command.slot for command in plan.commands if isinstance(command, CreatePod)]


def deletes(plan: Plan) -> list[tuple[str, str]]:
    return [(command.name, command.decision.reason) for command in plan.commands if isinstance(command, DeletePod)]


def pod_in(cluster: ToyCluster, slot: int) -> str:
    return cluster.by_slot()[slot][0].name


def test_a_new_pool_gets_one_pod_per_slot_with_its_config_and_no_class_label() -> None:
    plan = ToyCluster(spec_of(replicas=3)).decide()
    assert creates(plan) == [0, 1, 2]
    first = next(command for command in plan.commands if isinstance(command, CreatePod))
    tags = first.manifest["metadata"]["labels"]
    assert "evenflow.dev/serving" not in tags
    assert not [key for key in tags if key.startswith("class.")]
    assert '"classes":["chat","code"]' in first.manifest["metadata"]["annotations"]["evenflow.dev/worker-config"]


@pytest.mark.parametrize(
    ("phase", "reason"), [("Failed", DecisionReason.POD_FAILED), ("Succeeded", DecisionReason.POD_SUCCEEDED)]
)
def test_a_dead_pod_is_deleted_and_replaced_after_its_back_off(phase: str, reason: DecisionReason) -> None:
    cluster = ready_cluster(replicas=2)
    name = pod_in(cluster, 1)
    cluster.fail(name, phase)
    plan = cluster.decide()
    assert deletes(plan) == [(name, reason)]
    assert creates(plan) == []
    cluster.tick(9)
    assert creates(cluster.decide()) == []
    assert cluster.status["slots"][1]["phase"] == "BackOff"
    cluster.tick(2)
    plan = cluster.decide()
    assert creates(plan) == [1]
    assert pod_in(cluster, 1) != name


def test_the_back_off_doubles_up_to_five_minutes_and_is_forgiven_after_ten_ready() -> None:
    cluster = ready_cluster(replicas=1)
    pauses = []
    for _ in range(7):
        cluster.fail(pod_in(cluster, 0))
        cluster.decide()
        pauses.append(cluster.memory.backoff[0].until - cluster.now)
        cluster.tick(301)
        cluster.run(4)
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    cluster.tick(601)
    cluster.decide()
    assert cluster.memory.backoff == {}


def first_create(plan: Plan) -> list[CreatePod]:
    return [command for command in plan.commands if isinstance(command, CreatePod)][:1]


def test_a_refused_create_holds_all_creates_and_is_tried_again_after_its_back_off() -> None:
    cluster = ToyCluster(spec_of(replicas=3))
    tries = []
    for _ in range(130):
        plan = decide(cluster.snapshot(), CACHE)
        tries += [cluster.now - START] if creates(plan) else []
        # The engine stops at the first that is refused.
        cluster.memory = refused(plan.memory, first_create(plan), cluster.now)
        cluster.now += 1
    assert tries == [0, 10, 30, 70]


def test_another_revision_is_tried_at_once_and_what_was_refused_is_said_meanwhile() -> None:
    cluster = ToyCluster(spec_of(replicas=2))
    plan = decide(cluster.snapshot(), CACHE)
    cluster.memory = refused(plan.memory, first_create(plan), cluster.now)
    snapshot = replace(cluster.snapshot(), create_refusals={0: "memory: 'lots'"})
    status = decide(snapshot, CACHE).status
    assert status is not None
    (degraded,) = [entry for entry in status["conditions"] if entry["type"] == "Degraded"]
    assert (degraded["reason"], degraded["message"]) == ("CreateRefused", "slot 0: memory: 'lots'")
    assert status["slots"][0]["phase"] == "BackOff"
    assert status["slots"][0]["message"] == "failures in a row: 1; memory: 'lots'"
    cluster.change(engine={"type": "Simulated", "maxNumSeqs": 64})
    assert creates(decide(cluster.snapshot(), CACHE)) == [0, 1]


def test_one_failure_counts_once_however_often_it_is_seen() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.fail(pod_in(cluster, 0))
    snapshot_memory = cluster.decide().memory
    cluster.memory = snapshot_memory
    assert cluster.memory.backoff[0].failures == 1
    cluster.decide()
    assert cluster.memory.backoff[0].failures == 1


def test_a_terminating_pod_fills_no_slot_but_holds_its_gpu() -> None:
    cluster = ready_cluster(replicas=2)
    name = pod_in(cluster, 0)
    cluster.pods[name] = replace(cluster.pods[name], deleting=True)
    plan = cluster.decide()
    assert creates(plan) == []
    assert cluster.status["replicas"] == 1
    assert cluster.status["slots"][0]["phase"] == "Terminating"
    cluster.tick()
    assert creates(cluster.decide()) == [0]


def test_a_pod_on_a_lost_node_is_replaced_although_it_never_goes() -> None:
    cluster = ready_cluster(replicas=2)
    name = pod_in(cluster, 0)
    cluster.pods[name] = replace(cluster.pods[name], node="lost")
    cluster.lost_nodes.add("lost")
    assert deletes(cluster.decide()) == [(name, DecisionReason.NODE_LOST)]
    assert cluster.pods[name].deleting
    cluster.tick(11)
    assert creates(cluster.decide()) == [0]
    assert name in cluster.pods


def test_of_two_pods_in_a_slot_the_ready_one_stays() -> None:
    cluster = ready_cluster(replicas=1)
    name = pod_in(cluster, 0)
    older = replace(cluster.pods[name], name="older", uid="older", ready=False, created_at=cluster.now - 1e6)
    cluster.pods["older"] = older
    assert deletes(cluster.decide()) == [("older", DecisionReason.DUPLICATE_IN_SLOT)]


def test_pods_of_another_owner_are_neither_counted_nor_touched() -> None:
    cluster = ready_cluster(replicas=1)
    name = pod_in(cluster, 0)
    cluster.pods["foreign"] = replace(cluster.pods[name], name="foreign", uid="foreign", owner_uid="somebody", slot=5)
    assert cluster.decide().commands == ()
    assert cluster.status["replicas"] == 1


def test_an_orphan_of_the_same_revision_is_adopted_without_a_restart() -> None:
    cluster = ready_cluster(replicas=1)
    name = pod_in(cluster, 0)
    cluster.pods[name] = replace(cluster.pods[name], owner_uid=None)
    plan = cluster.decide()
    assert [(c.name, c.adopt) for c in plan.commands if isinstance(c, PatchPod)] == [(name, True)]
    assert creates(plan) == []


def test_an_orphan_of_another_revision_is_left_alone() -> None:
    cluster = ready_cluster(replicas=1)
    name = pod_in(cluster, 0)
    cluster.pods[name] = replace(cluster.pods[name], owner_uid=None, revision="other")
    plan = cluster.decide()
    assert creates(plan) == [0]
    assert not [c for c in plan.commands if isinstance(c, PatchPod | DeletePod)]


def test_nothing_is_decided_for_a_slot_with_an_own_write_that_does_not_show_yet() -> None:
    cluster = ToyCluster(spec_of(replicas=2))
    snapshot = replace(cluster.snapshot(), unsettled_slots=frozenset({0}))
    assert creates(decide(snapshot, CACHE)) == [1]


def test_the_name_depends_on_pool_slot_revision_and_attempt_only() -> None:
    one, two = ToyCluster(spec_of(replicas=2)), ToyCluster(spec_of(replicas=2))
    one.decide()
    two.now += 1000
    two.decide()
    assert sorted(one.pods) == sorted(two.pods)
    assert len(one.pods) == 2


def test_a_scale_up_takes_the_lowest_free_numbers_and_a_vacant_slot_keeps_its_own() -> None:
    cluster = ready_cluster(replicas=4)
    cluster.change(replicas=2)
    cluster.settle()
    assert sorted(cluster.by_slot()) == [0, 1]
    cluster.change(replicas=3)
    assert creates(cluster.decide()) == [2]
    cluster.settle()
    name = pod_in(cluster, 2)
    del cluster.pods[name]
    assert creates(cluster.decide()) == [2]


def test_a_failed_slot_is_not_refilled_when_fewer_are_wanted_by_then() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.fail(pod_in(cluster, 1))
    cluster.decide()
    cluster.change(replicas=1)
    cluster.tick(60)
    cluster.settle()
    assert sorted(cluster.by_slot()) == [0]
    assert [slot["name"] for slot in cluster.status["slots"]] == ["llama-0"]


def test_too_few_gpus_show_in_conditions_and_are_waited_for() -> None:
    cluster = ToyCluster(spec_of(replicas=3), gpus=2)
    cluster.run(6)
    conditions = {entry["type"]: entry for entry in cluster.status["conditions"]}
    assert conditions["Degraded"]["reason"] == "InsufficientAccelerators"
    assert conditions["ScalingLimited"]["status"] == "True"
    assert cluster.status["readyReplicas"] == 2
    assert cluster.decide().commands == ()


def test_a_sample_comes_before_a_pool_is_looked_at_without_one() -> None:
    cluster = ready_cluster(replicas=2, metrics={"intervalSeconds": 10})
    cluster.settle()
    pause = cluster.decide().requeue_after
    assert pause is not None
    assert 10.5 < pause < 20, "samples come at 0.95 to 1.05 intervals"
