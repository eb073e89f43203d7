"""The embedded scheduler: fitting as pure functions, then the loop on the real store."""

from collections import Counter
from typing import Any

import pytest
from controllers_fixture import Object, add_node, gpu_pod, pod, world
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.embedded.controllers.fitting import Allocations, choose_node, requested
from evenflow_devcluster.embedded.controllers.scheduler import Scheduler

GPU = "nvidia.com/gpu"


def container(cpu: str, **more: Any) -> Object:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


def test_init_containers_count_by_their_peak_and_sidecars_always() -> None:
    spec = {
        "containers": [container("1"), container("1")],
        "initContainers": [container("1", restartPolicy="Always"), container("4"), container("2")],
        "overhead": {"cpu": "100m"},
    }
    # Running: 2 + sidecar 1; starting: 4 beside the sidecar, so 5.
    assert requested({"spec": spec})["cpu"] == pytest.approx(5.1)


def node(name: str, labels: dict[str, str] | None = None, taints: list[Object] | None = None, **amounts: Any) -> Object:
    total = {"cpu": "8", "pods": "10", **amounts}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": total},
    }


def choose(wanted: Object, *nodes: Object) -> tuple[str | None, str]:
    return choose_node({"spec": wanted}, nodes, {})


def test_every_refusal_is_counted_in_the_message() -> None:
    taint = {"key": "gone", "effect": "NoExecute"}
    wanted = {"containers": [{"resources": {"requests": {GPU: "2", "cpu": "9"}}}], "nodeSelector": {"a": "b"}}
    nodes = [node("n1", {"a": "b"}), node("n2", {"a": "b"}, **{GPU: "8"}), node("n3"), node("n4", {"a": "b"}, [taint])]
    found, message = choose(wanted, *nodes)
    assert found is None
    assert message == (
        "0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint(s), 2 Insufficient cpu."
    )


def test_no_nodes() -> None:
    assert choose({}) == (None, "no nodes available to schedule pods")


def test_the_emptiest_node_is_chosen() -> None:
    used = {"n1": {GPU: 3.0}, "n2": {GPU: 1.0}}
    wanted = {"spec": {"containers": [{"resources": {"limits": {GPU: "1"}}}]}}
    assert choose_node(wanted, [node("n1", **{GPU: "4"}), node("n2", **{GPU: "4"})], used)[0] == "n2"


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: Object, fits: bool) -> None:
    tainted = node("n1", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    assert (choose({"tolerations": [toleration]}, tainted)[0] == "n1") is fits


def test_a_soft_taint_keeps_nobody_out() -> None:
    assert choose({}, node("n1", taints=[{"key": "k", "effect": "PreferNoSchedule"}]))[0] == "n1"


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        ({"matchExpressions": [{"key": "g", "operator": "In", "values": ["4", "5"]}]}, True),
        ({"matchExpressions": [{"key": "g", "operator": "NotIn", "values": ["4"]}]}, False),
        ({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["4"]}]}, True),
        ({"matchExpressions": [{"key": "g", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "g", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "g", "operator": "Gt", "values": ["3"]}]}, True),
        ({"matchExpressions": [{"key": "g", "operator": "Lt", "values": ["4"]}]}, False),
        ({"matchExpressions": [{"key": "word", "operator": "Gt", "values": ["3"]}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
        ({}, False),
    ],
)
def test_node_affinity(term: Object, fits: bool) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    chosen, _ = choose({"affinity": {"nodeAffinity": required}}, node("n1", {"g": "4", "word": "x"}))
    assert (chosen == "n1") is fits


@given(
    sizes=st.lists(st.integers(1, 4), max_size=3),
    pods=st.lists(st.integers(0, 4), max_size=12),
    released=st.sets(st.integers(0, 11)),
)
def test_nodes_are_never_overcommitted_and_refusals_are_true(
    sizes: list[int], pods: list[int], released: set[int]
) -> None:
    nodes = [node(f"n{index}", **{GPU: str(size)}) for index, size in enumerate(sizes)]
    books = Allocations()
    for index, gpus in enumerate(pods):
        wanted: Object = {"spec": {"containers": [{"resources": {"limits": {GPU: str(gpus)}}}]}}
        chosen, _ = choose_node(wanted, nodes, books.by_node)
        free = {f"n{i}": size - books.by_node.get(f"n{i}", {}).get(GPU, 0) for i, size in enumerate(sizes)}
        if chosen is None:
            assert all(left < gpus for left in free.values())
        else:
            assert free[chosen] >= gpus
            wanted["spec"]["nodeName"] = chosen
            books.take(index, wanted)
        if index in released:
            books.release(index)


async def test_waiting_pods_are_bound_in_the_order_in_which_they_came() -> None:
    async with world() as cluster:
        for name in ("c", "a", "b"):
            await cluster.create("pods", gpu_pod(name))
        await add_node(cluster, "n1", **{GPU: "2"})
        bound = {name: cluster.found("pods", name)["spec"].get("nodeName") for name in "abc"}
        assert bound == {"c": "n1", "a": "n1", "b": None}


async def test_pods_that_were_there_before_the_scheduler_are_counted() -> None:
    async with world() as cluster:
        await add_node(cluster, "n1", **{GPU: "1"})
        await cluster.create("pods", gpu_pod("old"))
        fresh = Scheduler(cluster.api, cluster.clock)
        for resource in fresh.watched:
            fresh.mirror.fill(resource, cluster.api.list(resource))
        assert fresh.initial() == []
        await cluster.create("pods", gpu_pod("new"))
        assert "nodeName" not in cluster.found("pods", "new")["spec"]


async def test_an_unschedulable_pod_is_told_once_and_keeps_its_transition_time() -> None:
    async with world() as cluster:
        await cluster.create("pods", gpu_pod("one"))
        first = cluster.found("pods", "one")["status"]["conditions"]
        cluster.clock.advance(seconds=60)
        await add_node(cluster, "n1")
        second = cluster.found("pods", "one")["status"]["conditions"]
        assert first[0]["message"] == "no nodes available to schedule pods"
        assert "Insufficient nvidia.com/gpu" in second[0]["message"]
        assert second[0]["lastTransitionTime"] == first[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        version = cluster.server.store.version
        cluster.api.merge_patch("nodes", None, "n1", {"metadata": {"annotations": {"beat": "1"}}})
        await cluster.settle()
        assert cluster.server.store.version == version + 1
        reasons = Counter(event["message"] for event in cluster.api.list("events", "default"))
        assert set(reasons.values()) == {1}


async def test_a_terminating_node_takes_no_pods() -> None:
    async with world() as cluster:
        await add_node(cluster, "n1")
        cluster.api.merge_patch("nodes", None, "n1", {"metadata": {"finalizers": ["a.test/hold"]}})
        cluster.api.delete("nodes", None, "n1")
        await cluster.create("pods", pod("one"))
        assert "nodeName" not in cluster.found("pods", "one")["spec"]


async def test_a_gated_or_foreign_pod_is_left_alone() -> None:
    async with world() as cluster:
        await add_node(cluster, "n1")
        await cluster.create("pods", pod("gated", schedulingGates=[{"name": "a.test/wait"}]))
        await cluster.create("pods", pod("foreign", schedulerName="other"))
        for name in ("gated", "foreign"):
            found = cluster.found("pods", name)
            assert "nodeName" not in found["spec"]
            assert not found["status"].get("conditions")
