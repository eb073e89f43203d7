"""The embedded disruption controller on the real store."""

import pytest
from controllers_fixture import Object, World, owner, pod, running, world

from evenflow_devcluster.embedded.errors import StatusError

BUDGETS = "poddisruptionbudgets.policy"
CRDS = "customresourcedefinitions.apiextensions.k8s.io"
POOLS = "pools.a.test"


def definition(*, scale: bool = True) -> Object:
    spec = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version: Object = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if scale:
        paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        version["subresources"] = {"scale": paths}
    return {
        "metadata": {"name": POOLS},
        "spec": {
            "group": "a.test",
            "scope": "Namespaced",
            "names": {"plural": "pools", "kind": "Pool"},
            "versions": [version],
        },
    }


def pool_reference(pool: Object) -> Object:
    return {**owner(pool, controller=True), "apiVersion": "a.test/v1", "kind": "Pool"}


async def add_pods(cluster: World, count: int, references: list[Object] | None = None) -> None:
    for index in range(count):
        metadata = {"ownerReferences": references} if references else {}
        await cluster.create("pods", pod(f"p{index}", {"app": "x"}, nodeName="n1", metadata=metadata))
        await cluster.status("pods", f"p{index}", running(f"10.0.0.{index + 1}"))


async def add_budget(cluster: World, **spec: object) -> None:
    body = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, **spec}}
    await cluster.create(BUDGETS, body)


def figures(cluster: World) -> tuple[int, int, int, int]:
    status = cluster.found(BUDGETS, "b")["status"]
    return status["expectedPods"], status["currentHealthy"], status["desiredHealthy"], status["disruptionsAllowed"]


def reason(cluster: World) -> str:
    found: str = cluster.found(BUDGETS, "b")["status"]["conditions"][0]["reason"]
    return found


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"maxUnavailable": 1}, (4, 3, 3, 0)),
        ({"maxUnavailable": 2}, (4, 3, 2, 1)),
        ({"maxUnavailable": "30%"}, (4, 3, 2, 1)),
        ({"maxUnavailable": 9}, (4, 3, 0, 3)),
        ({"minAvailable": "50%"}, (4, 3, 2, 1)),
        ({"minAvailable": "51%"}, (4, 3, 3, 0)),
        ({"minAvailable": 1}, (3, 3, 1, 2)),
    ],
)
async def test_figures(budget: Object, expected: tuple[int, int, int, int]) -> None:
    async with world() as cluster:
        await cluster.create(CRDS, definition(), None)
        body = {"apiVersion": "a.test/v1", "kind": "Pool", "metadata": {"name": "one"}, "spec": {"replicas": 4}}
        pool = await cluster.create(POOLS, body)
        await add_pods(cluster, 3, [pool_reference(pool)])
        await add_budget(cluster, **budget)
        assert figures(cluster) == expected
        assert reason(cluster) == ("SufficientPods" if expected[3] else "InsufficientPods")


async def test_bare_pods_count_only_for_an_integer_minimum() -> None:
    async with world() as cluster:
        await add_pods(cluster, 3)
        await add_budget(cluster, maxUnavailable=1)
        assert figures(cluster) == (0, 3, 0, 0)


@pytest.mark.parametrize(
    ("scale", "spec", "kind"),
    [(False, {"replicas": 3}, "Pool"), (True, {}, "Pool"), (True, {"replicas": 3}, "Unknown")],
)
async def test_an_owner_without_a_scale_fails_the_budget(scale: bool, spec: Object, kind: str) -> None:
    async with world() as cluster:
        await cluster.create(CRDS, definition(scale=scale), None)
        body = {"apiVersion": "a.test/v1", "kind": "Pool", "metadata": {"name": "one"}, "spec": spec}
        pool = await cluster.create(POOLS, body)
        await add_pods(cluster, 3, [{**pool_reference(pool), "kind": kind}])
        await add_budget(cluster, maxUnavailable=1)
        assert reason(cluster) == "SyncFailed"
        with pytest.raises(StatusError) as refused:
            cluster.api.create("pods/eviction", "default", {"metadata": {"name": "p0"}})
        assert refused.value.code == 429


async def test_replicas_count_from_the_next_change_of_a_pod_on() -> None:
    async with world() as cluster:
        await cluster.create(CRDS, definition(), None)
        body = {"apiVersion": "a.test/v1", "kind": "Pool", "metadata": {"name": "one"}, "spec": {"replicas": 4}}
        pool = await cluster.create(POOLS, body)
        await add_pods(cluster, 3, [pool_reference(pool)])
        await add_budget(cluster, maxUnavailable=1)
        cluster.api.merge_patch(POOLS, "default", "one", {"spec": {"replicas": 3}})
        await cluster.settle()
        assert figures(cluster) == (4, 3, 3, 0)
        cluster.api.merge_patch("pods", "default", "p0", {"metadata": {"annotations": {"a": "b"}}})
        await cluster.settle()
        assert figures(cluster) == (3, 3, 2, 1)


async def test_evictions_are_granted_one_by_one() -> None:
    async with world() as cluster:
        await add_pods(cluster, 3)
        await add_budget(cluster, minAvailable=2)
        # Without a turn of the event loop in between: the second must not be granted on old figures.
        cluster.api.create("pods/eviction", "default", {"metadata": {"name": "p0"}})
        with pytest.raises(StatusError) as refused:
            cluster.api.create("pods/eviction", "default", {"metadata": {"name": "p1"}})
        assert refused.value.code == 429
        await cluster.settle()
        assert figures(cluster) == (3, 2, 2, 0)
        assert not cluster.found(BUDGETS, "b")["status"].get("disruptedPods")


async def test_an_evicted_pod_that_never_goes_counts_again_after_two_minutes() -> None:
    async with world() as cluster:
        await add_pods(cluster, 3)
        await add_budget(cluster, minAvailable=2)
        await cluster.status(BUDGETS, "b", {"disruptedPods": {"p0": "2026-01-01T00:00:00Z"}})
        assert figures(cluster) == (3, 2, 2, 0)
        cluster.clock.advance(minutes=3)
        cluster.api.merge_patch("pods", "default", "p1", {"metadata": {"annotations": {"a": "b"}}})
        await cluster.settle()
        assert figures(cluster) == (3, 3, 2, 1)


async def test_nothing_is_written_when_nothing_changes() -> None:
    async with world() as cluster:
        await add_pods(cluster, 2)
        await add_budget(cluster, minAvailable=1)
        version = cluster.server.store.version
        cluster.api.merge_patch("pods", "default", "p0", {"metadata": {"annotations": {"a": "b"}}})
        await cluster.settle()
        assert cluster.server.store.version == version + 1
