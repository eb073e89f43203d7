"""Watches: where they start, what they show, how they end."""

from suite_behaviours import behaviour
from suite_client import Client, url
from suite_objects import Gadgets, config_map

INITIAL = {"sendInitialEvents": True, "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": True}
INITIAL_END = "k8s.io/initial-events-end"


async def version_of(api: Client, resource: str, ns: str) -> str:
    version: str = (await api.ok("GET", url(resource, ns)))["metadata"]["resourceVersion"]
    return version


@behaviour(
    "watch-from-resource-version", "A watch from a list's resourceVersion shows exactly what happened after the list."
)
async def test_from_version(api: Client, ns: str) -> None:
    await api.create("secrets", ns, {"metadata": {"name": "before"}})
    version = await version_of(api, "secrets", ns)
    await api.create("secrets", ns, {"metadata": {"name": "one"}})
    async with api.watch("secrets", ns, resourceVersion=version) as watch:
        await api.patch("secrets", ns, "one", {"metadata": {"labels": {"a": "b"}}})
        await api.delete("secrets", ns, "one")
        await api.create("secrets", ns, {"metadata": {"name": "two"}})
        seen = await watch.take(4)
    assert seen == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one"), ("ADDED", "two")]


@behaviour(
    "watch-object-shape", "A watch event carries the whole object with kind, apiVersion and rising resourceVersions."
)
async def test_shape(api: Client, ns: str) -> None:
    version = await version_of(api, "secrets", ns)
    created = await api.create("secrets", ns, {"metadata": {"name": "one"}})
    patched = await api.patch("secrets", ns, "one", {"metadata": {"labels": {"a": "b"}}})
    await api.delete("secrets", ns, "one")
    async with api.watch("secrets", ns, resourceVersion=version) as watch:
        events = [await watch.next() for _ in range(3)]
    objects = [event["object"] for event in events if event is not None]
    assert objects[0] == created
    assert objects[1] == patched
    assert (objects[2]["kind"], objects[2]["apiVersion"]) == ("Secret", "v1")
    versions = [int(found["metadata"]["resourceVersion"]) for found in objects]
    assert int(version) < versions[0] < versions[1] < versions[2]


@behaviour("watch-initial-state", "A watch without a resourceVersion, or from 0, begins with what exists as ADDED.")
async def test_initial(api: Client, ns: str) -> None:
    for name in ("one", "two"):
        await api.create("secrets", ns, {"metadata": {"name": name}})
    for params in ({}, {"resourceVersion": "0"}):
        async with api.watch("secrets", ns, **params) as watch:
            assert sorted(await watch.take(2)) == [("ADDED", "one"), ("ADDED", "two")]


@behaviour(
    "watch-send-initial-events",
    "sendInitialEvents sends what exists, then a bookmark that says the initial state is complete.",
)
async def test_send_initial(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one"))
    async with api.watch(gadgets.resource, ns, **INITIAL) as watch:
        first, bookmark = await watch.next(), await watch.next()
        assert first == {"type": "ADDED", "object": created}
        assert bookmark is not None
        assert bookmark["type"] == "BOOKMARK"
        metadata = bookmark["object"]["metadata"]
        assert metadata["annotations"] == {INITIAL_END: "true"}
        assert int(metadata["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
        await api.create(gadgets.resource, ns, gadgets.make("two"))
        assert await watch.take(1) == [("ADDED", "two")]


@behaviour("watch-initial-events-need-match", "sendInitialEvents without resourceVersionMatch=NotOlderThan is refused.")
async def test_send_initial_needs_match(api: Client, ns: str) -> None:
    answer = await api.send("GET", url("configmaps", ns), watch=True, sendInitialEvents=True, timeoutSeconds=1)
    assert answer.status in (400, 422)
    assert "resourceVersionMatch" in answer.body["message"]


@behaviour(
    "watch-label-leave-is-deleted",
    "An object whose labels stop matching leaves the watch as DELETED, and enters as ADDED.",
)
async def test_labels(api: Client, ns: str) -> None:
    version = await version_of(api, "secrets", ns)
    await api.create("secrets", ns, {"metadata": {"name": "one", "labels": {"in": "no"}}})
    async with api.watch("secrets", ns, resourceVersion=version, labelSelector="in=yes") as watch:
        for value in ("yes", "yes", "no"):
            patch = {"metadata": {"labels": {"in": value}, "annotations": {"a": value}}}
            await api.patch("secrets", ns, "one", patch)
            await api.patch("secrets", ns, "one", {"metadata": {"annotations": {"b": value}}})
        await api.patch("secrets", ns, "one", {"metadata": {"labels": {"in": "yes"}}})
        await api.delete("secrets", ns, "one")
        events = [await watch.next() for _ in range(5)]
    seen = [event["type"] for event in events if event is not None]
    assert seen == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events if event is not None]
    assert versions == sorted(set(versions))


@behaviour("watch-field-selector", "A watch of one name sees that object only.")
async def test_field_selector(api: Client, ns: str) -> None:
    version = await version_of(api, "secrets", ns)
    async with api.watch("secrets", ns, resourceVersion=version, fieldSelector="metadata.name=two") as watch:
        for name in ("one", "two"):
            await api.create("secrets", ns, {"metadata": {"name": name}})
        assert await watch.take(1) == [("ADDED", "two")]


@behaviour("watch-all-namespaces", "A watch without a namespace sees all of them.")
async def test_all_namespaces(api: Client, ns: str, gadgets: Gadgets) -> None:
    version = (await api.ok("GET", url(gadgets.resource)))["metadata"]["resourceVersion"]
    async with api.watch(gadgets.resource, None, resourceVersion=version) as watch:
        await api.create(gadgets.resource, ns, gadgets.make("one"))
        event = await watch.next()
    assert event is not None
    assert event["object"]["metadata"]["namespace"] == ns


@behaviour("watch-timeout-ends-cleanly", "timeoutSeconds ends a watch with a complete stream and no error.")
async def test_timeout(api: Client, ns: str) -> None:
    await api.create("secrets", ns, {"metadata": {"name": "one"}})
    async with api.watch("secrets", ns, timeoutSeconds=1) as watch:
        assert watch.status == 200
        events = await watch.rest()
    assert [event["type"] for event in events if event["type"] != "BOOKMARK"] == ["ADDED"]


@behaviour(
    "watch-bookmarks", "With allowWatchBookmarks a bookmark with nothing but the resourceVersion comes before the end."
)
async def test_bookmarks(api: Client, ns: str) -> None:
    # A real server bookmarks only what its cache has seen: the object just made, not everybody's latest write.
    version = (await api.create("configmaps", ns, config_map("seen")))["metadata"]["resourceVersion"]
    params = {"resourceVersion": version, "allowWatchBookmarks": True, "timeoutSeconds": 4, "labelSelector": "no=such"}
    async with api.watch("configmaps", ns, **params) as watch:
        events = await watch.rest()
    assert {event["type"] for event in events} == {"BOOKMARK"}
    found = events[-1]["object"]
    assert (found["kind"], found["apiVersion"]) == ("ConfigMap", "v1")
    assert int(found["metadata"]["resourceVersion"]) >= int(version)
    assert not found["metadata"].get("name")


@behaviour(
    "watch-too-old-410", "A watch from a forgotten resourceVersion gets an ERROR event with a Status of code 410."
)
async def test_too_old(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    async with api.watch(gadgets.resource, ns, resourceVersion="1") as watch:
        assert watch.status == 200
        event = await watch.next()
    assert event is not None
    assert event["type"] == "ERROR"
    assert (event["object"]["kind"], event["object"]["code"], event["object"]["reason"]) == ("Status", 410, "Expired")


@behaviour("watch-dry-run-silent", "A dry run is seen by no watch.")
async def test_dry_run(api: Client, ns: str) -> None:
    version = await version_of(api, "configmaps", ns)
    async with api.watch("configmaps", ns, resourceVersion=version, labelSelector="suite=yes") as watch:
        await api.create("configmaps", ns, config_map("dry", labels={"suite": "yes"}), dryRun="All")
        await api.create("configmaps", ns, config_map("wet", labels={"suite": "yes"}))
        assert await watch.take(1) == [("ADDED", "wet")]
