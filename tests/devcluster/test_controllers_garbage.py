"""The embedded garbage collector on the real store."""

import pytest
from controllers_fixture import World, config_map, owner, pod, world

HOLD = ["a.test/hold"]
MAPS = "configmaps"


async def test_a_whole_tree_goes_in_the_background() -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root"))
        for name in ("a", "b"):
            child = await cluster.create(MAPS, config_map(name, [owner(root)]))
            for leaf in ("1", "2"):
                await cluster.create(MAPS, config_map(name + leaf, [owner(child)]))
        await cluster.create(MAPS, config_map("other"))
        await cluster.delete(MAPS, "root")
        assert cluster.names(MAPS) == ["other"]


async def test_a_held_dependent_in_the_middle_keeps_what_is_below_until_it_goes() -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root"))
        middle = await cluster.create(MAPS, config_map("middle", [owner(root)], HOLD))
        await cluster.create(MAPS, config_map("leaf", [owner(middle)]))
        await cluster.delete(MAPS, "root")
        assert cluster.names(MAPS) == ["leaf", "middle"]
        cluster.api.merge_patch(MAPS, "default", "middle", {"metadata": {"finalizers": None}})
        await cluster.settle()
        assert cluster.names(MAPS) == []


async def test_foreground_goes_from_the_leaves_up() -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root"))
        middle = await cluster.create(MAPS, config_map("middle", [owner(root, blockOwnerDeletion=True)]))
        await cluster.create(MAPS, config_map("leaf", [owner(middle, blockOwnerDeletion=True)], HOLD))
        await cluster.delete(MAPS, "root", propagation="Foreground")
        for name in ("root", "middle"):
            assert cluster.found(MAPS, name)["metadata"]["finalizers"] == ["foregroundDeletion"]
        cluster.api.merge_patch(MAPS, "default", "leaf", {"metadata": {"finalizers": None}})
        await cluster.settle()
        assert cluster.names(MAPS) == []


async def test_foreground_keeps_a_dependent_that_has_another_owner() -> None:
    async with world() as cluster:
        first, second = [await cluster.create(MAPS, config_map(name)) for name in ("first", "second")]
        references = [owner(first, blockOwnerDeletion=True), owner(second)]
        await cluster.create(MAPS, config_map("child", references))
        await cluster.delete(MAPS, "first", propagation="Foreground")
        assert cluster.names(MAPS) == ["child", "second"]
        assert [o["name"] for o in cluster.found(MAPS, "child")["metadata"]["ownerReferences"]] == ["second"]


async def test_a_blocking_reference_that_is_taken_off_frees_the_owner() -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root"))
        await cluster.create(MAPS, config_map("child", [owner(root, blockOwnerDeletion=True)], HOLD))
        await cluster.delete(MAPS, "root", propagation="Foreground")
        assert "root" in cluster.names(MAPS)
        cluster.api.merge_patch(MAPS, "default", "child", {"metadata": {"ownerReferences": None}})
        await cluster.settle()
        assert cluster.names(MAPS) == ["child"]


async def test_a_users_own_finalizer_outlives_the_collector() -> None:
    async with world() as cluster:
        await cluster.create(MAPS, config_map("root", finalizers=HOLD))
        await cluster.delete(MAPS, "root", propagation="Orphan")
        assert cluster.found(MAPS, "root")["metadata"]["finalizers"] == HOLD


@pytest.mark.parametrize("finalizer", ["orphan", "foregroundDeletion"])
async def test_a_collector_finalizer_on_a_living_object_does_nothing(finalizer: str) -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root", finalizers=[finalizer]))
        await cluster.create(MAPS, config_map("child", [owner(root)]))
        assert cluster.found(MAPS, "root")["metadata"]["finalizers"] == [finalizer]
        assert cluster.found(MAPS, "child")["metadata"]["ownerReferences"]


async def test_orphaned_dependents_are_owned_by_nobody_and_stay() -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root"))
        other = await cluster.create(MAPS, config_map("other"))
        await cluster.create(MAPS, config_map("mine", [owner(root)]))
        await cluster.create(MAPS, config_map("shared", [owner(root), owner(other)]))
        await cluster.delete(MAPS, "root", propagation="Orphan")
        assert cluster.names(MAPS) == ["mine", "other", "shared"]
        assert "ownerReferences" not in cluster.found(MAPS, "mine")["metadata"]
        assert [o["name"] for o in cluster.found(MAPS, "shared")["metadata"]["ownerReferences"]] == ["other"]


async def test_owner_and_dependent_that_own_each_other_go_together() -> None:
    async with world() as cluster:
        first = await cluster.create(MAPS, config_map("first"))
        second = await cluster.create(MAPS, config_map("second", [owner(first)]))
        cluster.api.merge_patch(MAPS, "default", "first", {"metadata": {"ownerReferences": [owner(second)]}})
        await cluster.settle()
        assert cluster.names(MAPS) == ["first", "second"]
        await cluster.delete(MAPS, "first")
        assert cluster.names(MAPS) == []


async def made_again(cluster: World) -> None:
    cluster.api.delete(MAPS, "default", "root")
    cluster.api.create(MAPS, "default", config_map("root"))
    await cluster.settle()


async def test_an_owner_made_again_at_once_owns_nothing() -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root"))
        await cluster.create(MAPS, config_map("child", [owner(root)]))
        await made_again(cluster)
        assert cluster.names(MAPS) == ["root"]


async def test_a_pod_on_a_node_is_asked_to_end_once() -> None:
    async with world() as cluster:
        root = await cluster.create(MAPS, config_map("root"))
        body = pod("one", nodeName="n1", metadata={"ownerReferences": [owner(root)]})
        await cluster.create("pods", body)
        await cluster.delete(MAPS, "root")
        marked = cluster.found("pods", "one")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
        cluster.api.merge_patch("pods", "default", "one", {"metadata": {"annotations": {"a": "b"}}})
        await cluster.settle()
        assert cluster.found("pods", "one")["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
