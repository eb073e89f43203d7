"""An operator may die at any moment: the next one decides what this one would have decided."""

from dataclasses import replace

import pytest
from core_toy_cluster import ToyCluster, ready_cluster

from evenflow_contract.worker_config import MAX_GENERATION, WorkerConfig
from evenflow_contract.worker_state import ClassLengths, WorkerLengths
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.plan import CreatePod, PatchPod, PushConfig
from evenflow_operator.core.restore import restore


def test_a_restart_at_rest_does_nothing_and_writes_nothing() -> None:
    cluster = ready_cluster(replicas=3)
    for engine in cluster.engines.values():
        engine.completed = 1.0
    cluster.run(10, seconds=15)
    cluster.restart_operator()
    for engine in cluster.engines.values():
        engine.silent = True
    cluster.last.clear()
    for _ in range(20):
        plan = cluster.decide()
        assert plan.commands == ()
        assert plan.status is None
        cluster.tick(15)
        for engine in cluster.engines.values():
            engine.silent = False


def test_requests_caps_and_placement_wait_after_a_restart_until_lengths_are_known_again() -> None:
    classes = [{"name": "chat", "promptTokens": 512, "outputTokens": 400, "outputSpreadPercent": 0}]
    cluster = ready_cluster(replicas=1, trafficClasses=classes, admission={"unit": "Requests"})
    uid = cluster.by_slot()[0][0].uid
    cluster.lengths[uid] = WorkerLengths({"chat": ClassLengths(9000, dict.fromkeys(range(50, 99), 1.0), 99.0, {})})
    cluster.run(20, seconds=61)
    before = cluster.by_slot()[0][0].worker_config
    kept, cluster.lengths = dict(cluster.lengths), {}
    cluster.restart_operator()
    assert cluster.decide().commands == ()
    cluster.lengths = kept
    cluster.run(3)
    assert cluster.by_slot()[0][0].worker_config == before


def test_after_a_restart_the_lengths_of_the_engines_heard_first_do_not_stand_for_the_pool() -> None:
    classes = [{"name": "chat", "promptTokens": 512, "outputTokens": 400, "outputSpreadPercent": 0}]
    cluster = ready_cluster(replicas=2, trafficClasses=classes, admission={"unit": "Requests"})
    first, second = (cluster.by_slot()[slot][0].uid for slot in (0, 1))
    seen = WorkerLengths({"chat": ClassLengths(400, dict.fromkeys(range(50, 99), 1.0), 99.0, {})})
    cluster.lengths.update({first: seen, second: seen})
    cluster.run(20, seconds=61)
    before = [cluster.by_slot()[slot][0].worker_config for slot in (0, 1)]
    del cluster.lengths[second]
    cluster.restart_operator()
    cluster.run(2, seconds=1)
    cluster.lengths[second] = seen
    cluster.run(3, seconds=1)
    assert [cluster.by_slot()[slot][0].worker_config for slot in (0, 1)] == before


@pytest.mark.parametrize("applied", [17, 3])
def test_an_annotation_put_back_as_it_once_was_gets_a_generation_that_the_worker_takes(applied: int) -> None:
    cluster = ready_cluster(replicas=1)
    pod = cluster.by_slot()[0][0]
    assert pod.worker_config is not None
    cluster.pods[pod.name] = replace(pod, worker_config=replace(pod.worker_config, generation=3))
    cluster.applied[pod.uid] = applied
    commands = cluster.decide().commands
    if applied == 3:
        assert commands == ()
    else:
        written = cluster.by_slot()[0][0].worker_config
        assert written is not None
        assert written.generation == 18


@pytest.mark.parametrize("moment", range(14))
def test_a_restart_during_a_rollout_and_a_scale_down_changes_no_command(moment: int) -> None:
    """Two operators side by side: one lives on, one is restarted before every pass from the given one on."""
    one, two = ready_cluster(replicas=3), ready_cluster(replicas=3)
    for cluster in (one, two):
        cluster.change(replicas=2, rollout={"restartedAt": "2026-01-01T00:00:00Z"})
    for step in range(16):
        if step >= moment:
            two.restart_operator()
        first, second = one.decide(), two.decide()
        assert first.commands == second.commands
        assert first.decisions == second.decisions
        one.tick()
        two.tick()
    assert one.pods == two.pods


def test_a_clock_that_was_set_back_makes_no_back_off_endless() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.fail(cluster.by_slot()[0][0].name)
    cluster.decide()
    cluster.now -= 86_400
    cluster.restart_operator()
    cluster.run(65, seconds=5)
    assert cluster.by_slot()[0][0].ready


def test_back_off_survives() -> None:
    cluster = ready_cluster(replicas=1)
    for _ in range(3):
        cluster.fail(cluster.by_slot()[0][0].name)
        cluster.decide()
        cluster.tick(41)
        cluster.run(3)
    cluster.fail(cluster.by_slot()[0][0].name)
    cluster.decide()
    cluster.restart_operator()
    cluster.tick(70)
    assert not [c for c in cluster.decide().commands if isinstance(c, CreatePod)]
    cluster.tick(20)
    assert [c for c in cluster.decide().commands if isinstance(c, CreatePod)]
    assert cluster.memory.backoff[0].failures == 4


def test_without_a_status_pods_are_recognised_by_their_labels() -> None:
    cluster = ready_cluster(replicas=3)
    cluster.memory = PoolMemory()
    plan = cluster.decide()
    assert plan.commands == ()
    assert cluster.memory.slots == {0, 1, 2}


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"slots": "nonsense", "decisions": [1], "conditions": None},
        {"slots": [{"name": 4}, {"name": "llama-x"}, {"name": "llama-0", "classes": None, "attempts": "3"}]},
        {"slots": [{"name": "llama-0", "attempts": 3, "nextAttemptTime": "never"}], "decisions": [{"time": 1}]},
    ],
)
def test_a_status_of_somebody_else_is_survived(status: dict[str, object]) -> None:
    cluster = ready_cluster(replicas=1)
    cluster.memory = restore(status, tuple(cluster.pods.values()))
    assert cluster.decide().commands == ()


def lagging() -> ToyCluster:
    """A worker that has not applied its annotation, long after it was written."""
    cluster = ready_cluster(replicas=1)
    pod = cluster.by_slot()[0][0]
    cluster.tick(60)
    cluster.applied[pod.uid] = 0
    return cluster


def test_a_worker_that_lags_is_pushed_again_but_not_all_the_time() -> None:
    cluster = lagging()
    (push,) = cluster.decide().commands
    assert isinstance(push, PushConfig)
    assert push.config.generation == 1
    assert cluster.decide().commands == ()
    cluster.tick(10)
    cluster.applied[cluster.by_slot()[0][0].uid] = 0
    assert cluster.decide().commands == ()
    cluster.tick(10)
    cluster.applied[cluster.by_slot()[0][0].uid] = 0
    assert len(cluster.decide().commands) == 1


def test_a_worker_that_never_applies_is_reported() -> None:
    cluster = lagging()
    uid = cluster.by_slot()[0][0].uid
    for _ in range(8):
        cluster.decide()
        cluster.tick(15)
        cluster.applied[uid] = 0
    conditions = {entry["type"]: entry["reason"] for entry in cluster.status["conditions"]}
    assert conditions["CapsConverged"] == "Waiting"
    assert conditions["Degraded"] == "ConfigNotApplied"


def test_an_unreadable_annotation_is_written_again_beyond_what_the_worker_has_applied() -> None:
    cluster = ready_cluster(replicas=1)
    pod = cluster.by_slot()[0][0]
    cluster.applied[pod.uid] = 41
    cluster.pods[pod.name] = replace(pod, worker_config=None, config_problem="admission: missing")
    (patch,) = [command for command in cluster.decide().commands if isinstance(command, PatchPod)]
    assert patch.config is not None
    assert patch.config.generation == 42


@pytest.mark.parametrize("applied", [MAX_GENERATION, 2 * MAX_GENERATION, 1])
def test_at_the_largest_generation_settings_are_still_written_and_only_once(applied: int) -> None:
    cluster = ready_cluster(replicas=1)
    pod = cluster.by_slot()[0][0]
    assert pod.worker_config is not None
    cluster.pods[pod.name] = replace(pod, worker_config=replace(pod.worker_config, generation=MAX_GENERATION))
    cluster.applied[pod.uid] = applied
    assert [c for c in cluster.decide().commands if isinstance(c, PatchPod)] == []
    cluster.change(scheduling={"policy": "FCFS"})
    (patch,) = [c for c in cluster.decide().commands if isinstance(c, PatchPod)]
    assert patch.config is not None
    assert WorkerConfig.parse(patch.config.to_json()) == patch.config
    assert (patch.config.generation, patch.config.policy) == (MAX_GENERATION, "FCFS")
    assert [c for c in cluster.decide().commands if isinstance(c, PatchPod)] == []


def test_the_generation_rises_only_with_the_settings() -> None:
    cluster = ready_cluster(replicas=1)
    for _ in range(5):
        cluster.tick(30)
        cluster.decide()
    config = cluster.by_slot()[0][0].worker_config
    assert config is not None
    assert config.generation == 1
    assert WorkerConfig.parse(config.to_json()) == config
    cluster.change(scheduling={"policy": "OneBitSVF"})
    cluster.decide()
    changed = cluster.by_slot()[0][0].worker_config
    assert changed is not None
    assert (changed.generation, changed.policy) == (2, "OneBitSVF")
    assert changed.proxies is not None
    assert changed.proxies.short < changed.proxies.threshold < changed.proxies.long
