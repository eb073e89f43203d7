"""Server-side apply: who owns which field, and what happens when two want it."""

from typing import Any

from suite_behaviours import behaviour
from suite_client import APPLY, MERGE, Client, Object, url
from suite_objects import Gadgets, config_map, managers


async def apply(api: Client, resource: str, ns: str, body: Object, manager: str, **params: Any) -> Object:
    path = url(resource, ns, body["metadata"]["name"])
    applied: Object = await api.ok("PATCH", path, body, content_type=APPLY, fieldManager=manager, **params)
    return applied


@behaviour("apply-creates", "Server-side apply creates (201) what isn't there and records the applier as owner.")
async def test_apply_creates(api: Client, ns: str) -> None:
    path = url("configmaps", ns, "one")
    first = await api.send("PATCH", path, config_map("one", {"a": "1"}), content_type=APPLY, fieldManager="anna")
    assert first.status == 201
    again = await api.send("PATCH", path, config_map("one", {"a": "1"}), content_type=APPLY, fieldManager="anna")
    assert again.status == 200
    assert again.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
    assert managers(again.body) == {("anna", "Apply"): {"f:data": {"f:a": {}}}}


@behaviour("apply-removes-dropped", "A field that its only applier no longer applies is removed; others' fields stay.")
async def test_apply_removes(api: Client, ns: str) -> None:
    await apply(api, "configmaps", ns, config_map("one", {"a": "1", "b": "2"}), "anna")
    await api.patch("configmaps", ns, "one", {"data": {"c": "3"}}, fieldManager="cleo")
    applied = await apply(api, "configmaps", ns, config_map("one", {"a": "1"}), "anna")
    assert applied["data"] == {"a": "1", "c": "3"}


@behaviour(
    "apply-conflict-409", "Applying another manager's field with another value is 409, naming manager and field."
)
async def test_apply_conflict(api: Client, ns: str) -> None:
    await apply(api, "configmaps", ns, config_map("one", {"a": "1"}), "anna")
    path = url("configmaps", ns, "one")
    body = config_map("one", {"a": "2"})
    status = await api.refused(409, "PATCH", path, body, content_type=APPLY, fieldManager="ben")
    assert status["reason"] == "Conflict"
    cause = status["details"]["causes"][0]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.a")
    assert '"anna"' in cause["message"]
    assert (await api.get("configmaps", ns, "one"))["data"] == {"a": "1"}


@behaviour(
    "apply-conflict-with-update", "A field changed by an update belongs to the updater: applying it is a conflict."
)
async def test_apply_conflict_update(api: Client, ns: str, gadgets: Gadgets) -> None:
    await apply(api, gadgets.resource, ns, gadgets.make("one", {"size": 1}), "anna")
    await api.patch(gadgets.resource, ns, "one", {"spec": {"size": 2}}, fieldManager="cleo")
    owned = managers(await api.get(gadgets.resource, ns, "one"))
    assert owned[("cleo", "Update")] == {"f:spec": {"f:size": {}}}
    assert "f:size" not in owned.get(("anna", "Apply"), {}).get("f:spec", {})
    path, body = url(gadgets.resource, ns, "one"), gadgets.make("one", {"size": 1})
    status = await api.refused(409, "PATCH", path, body, content_type=APPLY, fieldManager="anna")
    assert '"cleo"' in status["message"]
    assert status["details"]["causes"][0]["field"] == ".spec.size"


@behaviour("apply-force", "With force the applier takes the field, and the former owner loses it.")
async def test_apply_force(api: Client, ns: str) -> None:
    await apply(api, "configmaps", ns, config_map("one", {"a": "1", "b": "1"}), "anna")
    forced = await apply(api, "configmaps", ns, config_map("one", {"a": "2"}), "ben", force=True)
    assert forced["data"] == {"a": "2", "b": "1"}
    owned = managers(forced)
    assert owned[("ben", "Apply")] == {"f:data": {"f:a": {}}}
    assert owned[("anna", "Apply")] == {"f:data": {"f:b": {}}}


@behaviour("apply-co-ownership", "Two appliers of the same value own it together; it goes when the last one drops it.")
async def test_apply_shared(api: Client, ns: str) -> None:
    await apply(api, "configmaps", ns, config_map("one", {"a": "1", "b": "1"}), "anna")
    await apply(api, "configmaps", ns, config_map("one", {"a": "1"}), "ben")
    kept = await apply(api, "configmaps", ns, config_map("one", {"b": "1"}), "anna")
    assert kept["data"] == {"a": "1", "b": "1"}
    dropped = await apply(api, "configmaps", ns, config_map("one"), "ben")
    assert dropped["data"] == {"b": "1"}


@behaviour("apply-merges-list-maps", "Appliers own single items of a list map, and single fields in them.")
async def test_apply_lists(api: Client, ns: str, gadgets: Gadgets) -> None:
    async def parts(manager: str, listed: list[Object], **params: Any) -> list[Object]:
        applied = await apply(api, gadgets.resource, ns, gadgets.make("one", {"parts": listed}), manager, **params)
        found: list[Object] = applied["spec"]["parts"]
        return found

    await parts("anna", [{"name": "a", "count": 1}])
    await parts("ben", [{"name": "b", "count": 2}])
    both = {part["name"]: part["count"] for part in (await api.get(gadgets.resource, ns, "one"))["spec"]["parts"]}
    assert both == {"a": 1, "b": 2}
    left = await parts("anna", [{"name": "c"}])
    assert {part["name"]: part["count"] for part in left} == {"b": 2, "c": 1}


@behaviour("apply-merges-sets", "Members of a set list are owned one by one; an atomic list is owned whole.")
async def test_apply_sets(api: Client, ns: str, gadgets: Gadgets) -> None:
    await apply(api, gadgets.resource, ns, gadgets.make("one", {"tags": ["x"], "notes": ["x"]}), "anna")
    await apply(api, gadgets.resource, ns, gadgets.make("one", {"tags": ["y"]}), "ben")
    spec = (await api.get(gadgets.resource, ns, "one"))["spec"]
    assert sorted(spec["tags"]) == ["x", "y"]
    path, body = url(gadgets.resource, ns, "one"), gadgets.make("one", {"tags": ["y"], "notes": ["x", "y"]})
    status = await api.refused(409, "PATCH", path, body, content_type=APPLY, fieldManager="ben")
    assert status["details"]["causes"][0]["field"] == ".spec.notes"


@behaviour("apply-status", "Apply to /status owns status fields under the subresource's name.")
async def test_apply_status(api: Client, ns: str, gadgets: Gadgets) -> None:
    await apply(api, gadgets.resource, ns, gadgets.make("one", {"size": 1}), "anna")
    body = gadgets.make("one")
    del body["spec"]
    body["status"] = {"phase": "Up"}
    path = url(gadgets.resource, ns, "one", "status")
    applied = await api.ok("PATCH", path, body, content_type=APPLY, fieldManager="ben")
    assert (applied["status"], applied["spec"]["size"]) == ({"phase": "Up"}, 1)
    entry = next(one for one in applied["metadata"]["managedFields"] if one["manager"] == "ben")
    assert (entry["subresource"], entry["fieldsV1"]) == ("status", {"f:status": {"f:phase": {}}})


@behaviour("apply-needs-manager", "Apply without a fieldManager is refused, and so is a body with managedFields.")
async def test_apply_needs_manager(api: Client, ns: str) -> None:
    path = url("configmaps", ns, "one")
    answer = await api.send("PATCH", path, config_map("one"), content_type=APPLY)
    assert answer.status in (400, 422)
    assert "fieldManager" in answer.body["message"]
    entry = {"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
    body = config_map("one", managedFields=[entry])
    refused = await api.refused(400, "PATCH", path, body, content_type=APPLY, fieldManager="x")
    assert "managedFields must be nil" in refused["message"]


@behaviour("managed-fields-reset", "Setting managedFields to a list with one empty entry clears the ownership.")
async def test_managed_fields_reset(api: Client, ns: str) -> None:
    await apply(api, "configmaps", ns, config_map("one", {"a": "1"}), "anna")
    cleared = await api.patch("configmaps", ns, "one", {"metadata": {"managedFields": [{}]}})
    assert not cleared["metadata"].get("managedFields")


@behaviour("update-manager-name", "Who names no fieldManager is recorded under the start of its User-Agent.")
async def test_update_manager(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one", {"a": "1"}))
    (manager, operation), _ = next(iter(managers(created).items()))
    assert operation == "Update"
    assert manager == "Python"


@behaviour(
    "scale-writers",
    "A write of /scale takes the replicas over; where nobody owned them, as after an apply without, no trace stays.",
)
async def test_scale_writers(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("owned", {"replicas": 1}), fieldManager="anna")
    path = url(gadgets.resource, ns, "free")
    await api.ok("PATCH", path, gadgets.make("free", {"size": 2}), content_type=APPLY, fieldManager="anna")
    found = {}
    for name in ("owned", "free"):
        path = url(gadgets.resource, ns, name, "scale")
        await api.ok("PATCH", path, {"spec": {"replicas": 2}}, content_type=MERGE, fieldManager="hpa")
        stored = await api.get(gadgets.resource, ns, name)
        assert stored["spec"]["replicas"] == 2
        entries = [one for one in stored["metadata"]["managedFields"] if "f:replicas" in one["fieldsV1"]["f:spec"]]
        found[name] = [(one["manager"], one["operation"], one.get("subresource")) for one in entries]
    assert found == {"owned": [("hpa", "Update", "scale")], "free": []}
