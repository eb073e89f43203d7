"""Whatever happens to a pool, the plans keep these promises, and it comes to rest once nothing happens any more."""

from dataclasses import replace

from core_toy_cluster import CACHE, CHAT, CODE, ToyCluster, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_contract import labels
from evenflow_operator.api.status import LLMServingPoolStatus
from evenflow_operator.core.decide import decide
from evenflow_operator.core.plan import CreatePod, DeletePod, PatchPod, Plan

FAULTS = st.sampled_from(
    [
        "fail",
        "succeed",
        "delete",
        "lose-node",
        "find-node",
        "unready",
        "drain",
        "orphan",
        "twin",
        "silence",
        "busy",
        "stall",
    ]
)
CHANGES = st.sampled_from(
    [
        "replicas-0",
        "replicas-2",
        "replicas-5",
        "restart",
        "bad-template",
        "policy",
        "classes",
        "cap",
        "static",
        "advisory",
        "active",
        "paused",
    ]
)
STEP = st.one_of(FAULTS, CHANGES, st.just("operator-restart"), st.just("nothing"))


def happen(cluster: ToyCluster, what: str, pick: int) -> None:
    names = sorted(name for name, pod in cluster.pods.items() if not pod.deleting)
    name = names[pick % len(names)] if names else None
    pod = cluster.pods[name] if name else None
    if what.startswith("replicas-"):
        cluster.change(replicas=int(what[-1]))
    elif what == "restart":
        cluster.change(rollout={"restartedAt": f"2026-01-01T00:00:{pick % 60:02d}Z"})
    elif what == "bad-template":
        cluster.change_badly(podTemplate={"spec": {"priorityClassName": f"none-such-{pick}"}})
    elif what == "policy":
        cluster.change(scheduling={"policy": "FCFS" if pick % 2 else "SVF"})
    elif what == "classes":
        cluster.change(trafficClasses=[CHAT] if pick % 2 else [CHAT, CODE], placement={})
    elif what == "cap":
        cluster.change(admission={"mode": "Off"} if pick % 2 else {"mode": "Fixed", "capMicro": 900_000 + pick})
    elif what == "static":
        classes = ["chat"]
        cluster.change(placement={"strategy": "Static", "static": [{"slot": pick % 3, "classes": classes}]})
    elif what in ("advisory", "active", "paused"):
        cluster.change(mode=what.capitalize())
    elif what == "operator-restart":
        cluster.restart_operator()
    elif what == "find-node":
        cluster.lost_nodes.clear()
    elif pod is None or name is None:
        return
    elif what in ("fail", "succeed"):
        cluster.fail(name, "Failed" if what == "fail" else "Succeeded")
    elif what == "delete":
        cluster.pods[name] = replace(pod, deleting=True)
    elif what == "lose-node" and pod.node is not None:
        cluster.lost_nodes.add(pod.node)
    elif what == "unready":
        cluster.pods[name] = replace(pod, ready=not pod.ready and pod.phase == "Running")
    elif what == "drain":
        cluster.pods[name] = replace(pod, drain_reason="the user wants it")
    elif what == "orphan":
        cluster.pods[name] = replace(pod, owner_uid=None)
    elif what == "twin":
        cluster.pods[f"{name}-twin"] = replace(pod, name=f"{name}-twin", uid=f"{pod.uid}-twin{pick}")
    elif what in ("silence", "busy", "stall") and pod.uid in cluster.engines:
        engine = cluster.engines[pod.uid]
        engine.frozen, engine.waiting = what == "stall", 4 if what == "stall" else 0
        engine.silent, engine.running = what == "silence", 3 if what == "busy" else 0


def check(cluster: ToyCluster, plan: Plan) -> None:
    spec = cluster.snapshot().pool
    assert spec is not None
    replicas = spec.spec.replicas
    creates = [command for command in plan.commands if isinstance(command, CreatePod)]
    filled = {slot for slot, pods in cluster.by_slot().items() if any(p.node not in cluster.lost_nodes for p in pods)}
    assert len({command.slot for command in creates}) == len(creates), "two pods for a slot in one plan"
    assert not {command.slot for command in creates} & filled, "a pod for a slot that has one"
    assert not creates or cluster.holding() + len(creates) <= replicas, "more GPUs than wanted"
    disruptive = [
        command
        for command in plan.commands
        if (isinstance(command, PatchPod) and command.annotations.get(labels.DRAIN_STARTED))
        or (isinstance(command, DeletePod) and command.decision.reason in ("ScaleDown", "RevisionChanged", "UserDrain"))
    ]
    assert len(disruptive) <= 1, "more than one disruptive command"
    reasons = {one.decision.reason for one in disruptive if one.decision is not None}
    if cluster.revision in cluster.refused:
        assert "RevisionChanged" not in reasons, "a pod is given up for one that is refused"
    if disruptive:
        under_way = [pod for pod in cluster.pods.values() if pod.drain_started is not None and not pod.deleting]
        ended = {command.uid for command in plan.commands if isinstance(command, DeletePod)}
        ended |= {
            command.uid
            for command in plan.commands
            if isinstance(command, PatchPod) and command.annotations.get(labels.DRAIN_STARTED, "") is None
        }
        own = [p for p in under_way if p.uid not in ended and p.phase == "Running" and p.node not in cluster.lost_nodes]
        kept = {pod.uid for pods in cluster.by_slot().values() for pod in pods}
        assert not [pod for pod in own if pod.uid in kept], "a drain begins while another one runs"
    touched = [command.uid for command in plan.commands if isinstance(command, PatchPod | DeletePod)]
    assert len(set(touched)) == len(touched), "two commands for one pod"
    if plan.status is not None:
        LLMServingPoolStatus.model_validate(dict(plan.status))


@settings(max_examples=60)
@given(st.lists(st.tuples(STEP, st.integers(0, 1000)), max_size=25))
def test_promises_hold_through_any_history_and_the_pool_comes_to_rest(steps: list[tuple[str, int]]) -> None:
    cluster = ToyCluster(spec_of(replicas=3))
    for what, pick in steps:
        happen(cluster, what, pick)
        plan = decide(cluster.snapshot(), CACHE)
        check(cluster, plan)
        if cluster.spec.get("mode") in ("Advisory", "Paused"):
            assert not plan.commands
        cluster.decide()
        cluster.tick()
    heal(cluster)
    cluster.settle(rounds=400, seconds=20)
    live = cluster.by_slot()
    assert len(live) == cluster.snapshot().pool.spec.replicas  # type: ignore[union-attr]
    assert all(len(pods) == 1 and pods[0].ready and pods[0].serving for pods in live.values())
    assert len({pod.revision for pods in live.values() for pod in pods}) <= 1


def heal(cluster: ToyCluster) -> None:
    """Nothing goes wrong any more."""
    cluster.lost_nodes.clear()
    cluster.refused.clear()
    cluster.change(mode="Active")
    for name, pod in cluster.pods.items():
        if pod.phase == "Running":
            cluster.pods[name] = replace(pod, ready=True, ready_since=cluster.now)
    for engine in cluster.engines.values():
        engine.silent, engine.frozen, engine.running, engine.waiting = False, False, 0, 0


@settings(max_examples=20)
@given(st.lists(st.tuples(STEP, st.integers(0, 1000)), max_size=12))
def test_the_same_snapshot_gives_the_same_plan(steps: list[tuple[str, int]]) -> None:
    cluster = ToyCluster(spec_of(replicas=3))
    for what, pick in steps:
        happen(cluster, what, pick)
        snapshot = cluster.snapshot()
        assert decide(snapshot, CACHE) == decide(snapshot, CACHE)
        cluster.decide()
        cluster.tick()
