"""Merge, JSON and strategic merge patches."""

from suite_behaviours import behaviour
from suite_client import JSON_PATCH, STRATEGIC, Client, url
from suite_objects import Gadgets, config_map, service


@behaviour("merge-patch", "A merge patch sets and adds fields, removes those that are null and replaces lists whole.")
async def test_merge(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 1, "code": "abc", "notes": ["x", "y"]}))
    patched = await api.patch(
        gadgets.resource, ns, "one", {"spec": {"size": 2, "code": None, "notes": ["z"], "port": 80}}
    )
    assert {key: patched["spec"].get(key) for key in ("size", "code", "notes", "port")} == {
        "size": 2,
        "code": None,
        "notes": ["z"],
        "port": 80,
    }
    assert "code" not in patched["spec"]


@behaviour("json-patch", "A JSON patch tests, adds (also at the end of a list), replaces, removes, copies and moves.")
async def test_json_patch(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 1, "code": "abc", "notes": ["x"]}))
    operations = [
        {"op": "test", "path": "/spec/size", "value": 1},
        {"op": "replace", "path": "/spec/size", "value": 2},
        {"op": "add", "path": "/spec/notes/-", "value": "y"},
        {"op": "add", "path": "/spec/notes/0", "value": "w"},
        {"op": "add", "path": "/spec/table", "value": {"a/b": "1"}},
        {"op": "copy", "from": "/spec/table/a~1b", "path": "/spec/table/c"},
        {"op": "move", "from": "/spec/code", "path": "/spec/table/d"},
        {"op": "remove", "path": "/spec/table/a~1b"},
    ]
    spec = (await api.patch(gadgets.resource, ns, "one", operations, kind=JSON_PATCH))["spec"]
    assert (spec["size"], spec["notes"], spec["table"]) == (2, ["w", "x", "y"], {"c": "1", "d": "abc"})
    assert "code" not in spec


@behaviour(
    "json-patch-failed-test-422", "A JSON patch whose test fails, or that removes what isn't there, is 422, all undone."
)
async def test_json_patch_failed(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one", {"a": "1"}))
    path = url("configmaps", ns, "one")
    change = {"op": "add", "path": "/data/b", "value": "2"}
    for failing in ({"op": "test", "path": "/data/a", "value": "9"}, {"op": "remove", "path": "/data/none"}):
        status = await api.refused(422, "PATCH", path, [change, failing], content_type=JSON_PATCH)
        assert status["reason"] == "Invalid"
    assert await api.get("configmaps", ns, "one") == created


@behaviour("json-patch-malformed-400", "A JSON patch that isn't a list of operations is 400.")
async def test_json_patch_malformed(api: Client, ns: str) -> None:
    await api.create("configmaps", ns, config_map("one"))
    await api.refused(400, "PATCH", url("configmaps", ns, "one"), {"op": "add"}, content_type=JSON_PATCH)


@behaviour(
    "strategic-merges-list-maps", "A strategic merge patch merges a pod's containers by name and keeps the others."
)
async def test_strategic_containers(api: Client, ns: str) -> None:
    containers = [{"name": name, "image": "example.com/none:1"} for name in ("a", "b")]
    body = {"metadata": {"name": "one"}, "spec": {"containers": containers, "schedulerName": "nobody"}}
    await api.create("pods", ns, body)
    patch = {"spec": {"containers": [{"name": "b", "image": "example.com/none:2"}]}}
    patched = await api.patch("pods", ns, "one", patch, kind=STRATEGIC)
    images = {container["name"]: container["image"] for container in patched["spec"]["containers"]}
    assert images == {"a": "example.com/none:1", "b": "example.com/none:2"}


@behaviour(
    "strategic-directives", "`$patch: delete` removes an item of a list map; `$patch: replace` replaces the list."
)
async def test_strategic_directives(api: Client, ns: str) -> None:
    ports = [{"name": "a", "port": 1000}, {"name": "b", "port": 2000}]
    await api.create("services", ns, service("one", {"app": "x"}, ports=ports))

    async def ports_after(change: list[dict[str, object]]) -> dict[str, int]:
        patched = await api.patch("services", ns, "one", {"spec": {"ports": change}}, kind=STRATEGIC)
        return {port["name"]: port["port"] for port in patched["spec"]["ports"]}

    assert await ports_after([{"port": 3000, "name": "c"}]) == {"a": 1000, "b": 2000, "c": 3000}
    assert await ports_after([{"$patch": "delete", "port": 1000}]) == {"b": 2000, "c": 3000}
    assert await ports_after([{"$patch": "replace"}, {"name": "d", "port": 4000}]) == {"d": 4000}


@behaviour("strategic-conditions", "Status conditions are a list map by type under a strategic merge patch.")
async def test_strategic_conditions(api: Client, ns: str) -> None:
    body = {
        "metadata": {"name": "one"},
        "spec": {"containers": [{"name": "a", "image": "x"}], "schedulerName": "nobody"},
    }
    await api.create("pods", ns, body)
    for kind, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        patch = {"status": {"conditions": [{"type": kind, "status": status}]}}
        patched = await api.patch("pods", ns, "one", patch, kind=STRATEGIC, sub="status")
    assert {one["type"]: one["status"] for one in patched["status"]["conditions"]} == {
        "Ready": "True",
        "Initialized": "True",
    }


@behaviour("strategic-not-for-custom-415", "A custom resource answers 415 to a strategic merge patch.")
async def test_strategic_custom(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    path = url(gadgets.resource, ns, "one")
    await api.refused(415, "PATCH", path, {"spec": {"size": 2}}, content_type=STRATEGIC)


@behaviour("patch-keeps-identity", "A patch can't change name, namespace, uid or creation time.")
async def test_patch_identity(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one"))
    path = url("configmaps", ns, "one")
    renamed = await api.send("PATCH", path, {"metadata": {"name": "two"}}, content_type="application/merge-patch+json")
    assert renamed.status in (400, 422)
    patched = await api.patch("configmaps", ns, "one", {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}})
    assert patched["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]


@behaviour("patch-result-validated", "What a patch leads to is validated like any other write: 422.")
async def test_patch_validated(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    path = url(gadgets.resource, ns, "one")
    operation = [{"op": "add", "path": "/spec/size", "value": 1000}]
    status = await api.refused(422, "PATCH", path, operation, content_type=JSON_PATCH)
    assert status["details"]["causes"][0]["field"] == "spec.size"
