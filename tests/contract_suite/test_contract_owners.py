"""Owner references: what goes, stays or waits when an owner is deleted."""

import asyncio

from suite_behaviours import behaviour
from suite_client import DISCOVERY_PATIENCE, Client
from suite_objects import Gadgets, config_map, owner, pod

HOLD = "contract.test/hold"


async def family(api: Client, ns: str, **reference: object) -> None:
    parent = await api.create("configmaps", ns, config_map("parent"))
    references = [owner("v1", "ConfigMap", parent, **reference)]
    await api.create("configmaps", ns, config_map("child", ownerReferences=references))
    grand = await api.create("configmaps", ns, config_map("other"))
    await api.create(
        "secrets", ns, {"metadata": {"name": "unrelated", "ownerReferences": [owner("v1", "ConfigMap", grand)]}}
    )


@behaviour("gc-background", "Deleted in the background (the default), an owner goes at once and its dependents follow.")
async def test_background(api: Client, ns: str) -> None:
    await family(api, ns)
    await api.delete("configmaps", ns, "parent")
    assert not await api.exists("configmaps", ns, "parent")
    await api.gone("configmaps", ns, "child")
    assert await api.exists("secrets", ns, "unrelated")


@behaviour("gc-foreground", "Deleted in the foreground, an owner waits for dependents that block its deletion.")
async def test_foreground(api: Client, ns: str) -> None:
    await family(api, ns, blockOwnerDeletion=True)
    await api.patch("configmaps", ns, "child", {"metadata": {"finalizers": [HOLD]}})
    await api.delete("configmaps", ns, "parent", {"propagationPolicy": "Foreground"})
    parent = await api.get("configmaps", ns, "parent")
    assert parent["metadata"]["deletionTimestamp"]
    assert parent["metadata"]["finalizers"] == ["foregroundDeletion"]
    await api.settled("configmaps", ns, "child", lambda child: child["metadata"].get("deletionTimestamp"))
    assert await api.exists("configmaps", ns, "parent")
    await api.patch("configmaps", ns, "child", {"metadata": {"finalizers": None}})
    await asyncio.gather(api.gone("configmaps", ns, "parent"), api.gone("configmaps", ns, "child"))


@behaviour(
    "gc-foreground-not-blocked", "A dependent that doesn't block its owner's deletion is deleted without a wait for it."
)
async def test_foreground_unblocked(api: Client, ns: str) -> None:
    await family(api, ns)
    await api.patch("configmaps", ns, "child", {"metadata": {"finalizers": [HOLD]}})
    await api.delete("configmaps", ns, "parent", {"propagationPolicy": "Foreground"})
    await api.gone("configmaps", ns, "parent")
    await api.settled("configmaps", ns, "child", lambda child: child["metadata"].get("deletionTimestamp"))
    await api.patch("configmaps", ns, "child", {"metadata": {"finalizers": None}})


@behaviour("gc-orphan", "Orphaned dependents stay and lose the reference to their owner.")
async def test_orphan(api: Client, ns: str) -> None:
    await family(api, ns)
    await api.delete("configmaps", ns, "parent", {"propagationPolicy": "Orphan"})
    await api.gone("configmaps", ns, "parent")
    child = await api.get("configmaps", ns, "child")
    assert not child["metadata"].get("ownerReferences")


@behaviour("gc-absent-owner", "An object whose only owner doesn't exist is deleted, also if it is referenced later.")
async def test_absent_owner(api: Client, ns: str) -> None:
    dead = {"metadata": {"name": "nobody", "uid": "00000000-0000-0000-0000-000000000001"}}
    references = [owner("v1", "ConfigMap", dead)]
    await api.create("configmaps", ns, config_map("born-orphan", ownerReferences=references))
    await api.create("configmaps", ns, config_map("later-orphan"))
    await api.patch("configmaps", ns, "later-orphan", {"metadata": {"ownerReferences": references}})
    await api.gone("configmaps", ns, "born-orphan")
    await api.gone("configmaps", ns, "later-orphan")


@behaviour("gc-owner-by-uid", "An owner made again under the same name is another owner: the old one's dependents go.")
async def test_owner_by_uid(api: Client, ns: str) -> None:
    await family(api, ns)
    await api.delete("configmaps", ns, "parent")
    await api.create("configmaps", ns, config_map("parent"))
    await api.gone("configmaps", ns, "child")
    assert await api.exists("configmaps", ns, "parent")


@behaviour(
    "gc-second-owner", "While one of several owners lives its dependent stays and loses only the dead reference."
)
async def test_second_owner(api: Client, ns: str) -> None:
    first, second = [await api.create("configmaps", ns, config_map(name)) for name in ("first", "second")]
    references = [owner("v1", "ConfigMap", first), owner("v1", "ConfigMap", second)]
    await api.create("configmaps", ns, config_map("child", ownerReferences=references))
    await api.delete("configmaps", ns, "first")
    child = await api.settled("configmaps", ns, "child", lambda found: len(found["metadata"]["ownerReferences"]) == 1)
    assert child["metadata"]["ownerReferences"][0]["name"] == "second"
    await api.delete("configmaps", ns, "second")
    await api.gone("configmaps", ns, "child")


@behaviour("gc-chain", "Dependents of dependents go as well.")
async def test_chain(api: Client, ns: str) -> None:
    above = await api.create("configmaps", ns, config_map("level-0"))
    for depth in range(1, 4):
        references = [owner("v1", "ConfigMap", above, blockOwnerDeletion=True)]
        above = await api.create("configmaps", ns, config_map(f"level-{depth}", ownerReferences=references))
    await api.delete("configmaps", ns, "level-0", {"propagationPolicy": "Foreground"})
    for depth in range(4):
        await api.gone("configmaps", ns, f"level-{depth}")


@behaviour("gc-custom-owner", "Pods owned by a custom resource go with it; one on a node waits for its node.")
async def test_custom_owner(api: Client, ns: str, gadgets: Gadgets) -> None:
    parent = await api.create(gadgets.resource, ns, gadgets.make("parent"))
    reference = owner(gadgets.api_version, "Gadget", parent, controller=True, blockOwnerDeletion=True)
    metadata = {"ownerReferences": [reference]}
    await api.create("pods", ns, pod("waiting", metadata=metadata, schedulerName="nobody"))
    await api.create("pods", ns, pod("bound", metadata=metadata, nodeName="contract-nowhere"))
    await api.delete(gadgets.resource, ns, "parent")
    await api.gone("pods", ns, "waiting", DISCOVERY_PATIENCE)
    bound = await api.settled(
        "pods", ns, "bound", lambda found: found["metadata"].get("deletionTimestamp"), DISCOVERY_PATIENCE
    )
    assert bound["metadata"]["deletionGracePeriodSeconds"] == 30
    await api.delete("pods", ns, "bound", {"gracePeriodSeconds": 0})


@behaviour("one-controller", "An object has at most one reference with controller: true: 422.")
async def test_one_controller(api: Client, ns: str) -> None:
    first, second = [await api.create("configmaps", ns, config_map(name)) for name in ("first", "second")]
    references = [owner("v1", "ConfigMap", found, controller=True) for found in (first, second)]
    answer = await api.send(
        "POST", f"/api/v1/namespaces/{ns}/configmaps", config_map("child", ownerReferences=references)
    )
    assert answer.status == 422
    assert answer.body["details"]["causes"][0]["field"] == "metadata.ownerReferences"
