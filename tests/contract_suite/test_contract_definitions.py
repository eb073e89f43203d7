"""CustomResourceDefinitions: from the definition to a served, defaulted, pruned and validated API."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from suite_behaviours import behaviour
from suite_client import MERGE, Client, Object, eventually, url
from suite_objects import Gadgets, definition, gadget_schema

CRDS = "customresourcedefinitions.apiextensions.k8s.io"


@pytest.fixture
async def group(api: Client) -> AsyncIterator[str]:
    """A group of this test's own; its definitions are removed afterwards."""
    name = f"d{secrets.token_hex(4)}.contract.test"
    yield name
    for plural in ("gadgets", "widgets"):
        await api.send("DELETE", url(CRDS, None, f"{plural}.{name}"))


async def install(api: Client, body: Object) -> str:
    """Returns the resource once it is served."""
    await api.create(CRDS, None, body)
    resource: str = body["metadata"]["name"]

    async def served() -> bool:
        return (await api.send("GET", url(resource))).status == 200

    await eventually(served, f"{resource} is served")
    return resource


@behaviour("crd-established", "A new definition becomes Established with accepted names, and its API is served.")
async def test_established(api: Client, ns: str, group: str) -> None:
    resource = await install(api, definition(group))

    def established(found: Object) -> bool:
        conditions = {one["type"]: one["status"] for one in found.get("status", {}).get("conditions") or []}
        return conditions.get("Established") == conditions.get("NamesAccepted") == "True"

    found = await api.settled(CRDS, None, resource, established)
    assert found["status"]["storedVersions"] == ["v1"]
    assert found["status"]["acceptedNames"]["kind"] == "Gadget"
    body = {"apiVersion": f"{group}/v1", "kind": "Gadget", "metadata": {"name": "one"}}
    assert (await api.create(resource, ns, body))["metadata"]["name"] == "one"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("metadata", "name"), "wrong", "metadata.name"),
        (("spec", "scope"), "Everywhere", "spec.scope"),
        (("spec", "versions", 0, "storage"), False, "spec.versions"),
        (
            ("spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec", "type"),
            "",
            "properties[spec].type",
        ),
    ],
)
@behaviour("crd-checked", "A definition with a wrong name, scope or storage version, or an untyped schema, is 422.")
async def test_checked(api: Client, group: str, path: tuple[Any, ...], value: Any, field: str) -> None:
    body = definition(group)
    node: Any = body
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    status = await api.refused(422, "POST", url(CRDS), body)
    assert any(field in cause["field"] for cause in status["details"]["causes"]), status["details"]["causes"]


@behaviour("crd-defaults", "Defaults fill in on write; a nested one only where its parent is there or has a default.")
async def test_defaults(api: Client, ns: str, gadgets: Gadgets) -> None:
    bare = await api.create(gadgets.resource, ns, gadgets.make("one"))
    assert bare["spec"] == {"size": 1, "options": {"retries": 2}}
    spec = {"options": {"inner": {}, "retries": 7}, "parts": [{"name": "a"}]}
    full = await api.create(gadgets.resource, ns, gadgets.make("two", spec))
    assert full["spec"]["options"] == {"retries": 7, "inner": {"deep": "down"}}
    assert full["spec"]["parts"] == [{"name": "a", "count": 1}]


@behaviour("crd-default-replaces-null", "A null for a field that isn't nullable counts as absent and is defaulted.")
async def test_default_null(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one", {"size": None, "maybe": None}))
    assert created["spec"]["size"] == 1
    assert created["spec"]["maybe"] is None


@behaviour("crd-default-on-read", "A default added to the schema later shows on objects stored before.")
async def test_default_on_read(api: Client, ns: str, group: str) -> None:
    body = definition(group)
    resource = await install(api, body)
    gadget = {"apiVersion": f"{group}/v1", "kind": "Gadget", "metadata": {"name": "one"}, "spec": {}}
    await api.create(resource, ns, gadget)
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/code/default"
    operation = [{"op": "add", "path": path, "value": "late"}]
    await api.patch(CRDS, None, resource, operation, kind="application/json-patch+json")
    await api.settled(resource, ns, "one", lambda found: found["spec"].get("code") == "late")


@behaviour("crd-pruning", "Fields that the schema doesn't know are dropped, at every depth.")
async def test_pruning(api: Client, ns: str, gadgets: Gadgets) -> None:
    spec = {"bogus": 1, "options": {"inner": {"bogus": 1}}, "parts": [{"name": "a", "bogus": 1}]}
    created = await api.create(gadgets.resource, ns, gadgets.make("one", spec, bogus=1))
    assert "bogus" not in str(created["spec"])
    assert "bogus" not in created


@behaviour(
    "crd-free-form", "Under x-kubernetes-preserve-unknown-fields, and in maps, everything of the right type stays."
)
async def test_free(api: Client, ns: str, gadgets: Gadgets) -> None:
    free = {"any": [1, {"deep": None, "thing": 1.5}], "x": {"y": True}}
    created = await api.create(gadgets.resource, ns, gadgets.make("one", {"free": free, "table": {"a": "b"}}))
    assert created["spec"]["free"] == free
    assert created["spec"]["table"] == {"a": "b"}


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"color": "pink"}, "spec.color", 'supported values: "red", "green", "blue"'),
        ({"size": -1}, "spec.size", "greater than or equal to 0"),
        ({"size": 101}, "spec.size", "less than or equal to 100"),
        ({"size": "3"}, "spec.size", "must be of type integer"),
        ({"size": 1.5}, "spec.size", "must be of type integer"),
        ({"code": "A1"}, "spec.code", "should match '^[a-z]+$'"),
        ({"code": "abcdefghi"}, "spec.code", "may not be more than 8"),
        ({"parts": [{"name": "a"}, {"note": "b"}]}, "spec.parts[1].name", "Required value"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]", "Duplicate value"),
        ({"parts": [{"name": str(n)} for n in range(5)]}, "spec.parts", "must have at most 4 items"),
        ({"tags": ["a", "b", "a"]}, "spec.tags[2]", "Duplicate value"),
        ({"port": True}, "spec.port", 'must be of type integer,string: "boolean"'),
        ({"port": 1.5}, "spec.port", 'must be of type integer,string: "number"'),
        ({"table": {"a": 1}}, "spec.table.a", "must be of type string"),
        ({"notes": "text"}, "spec.notes", "must be of type array"),
    ],
)
@behaviour(
    "crd-validation", "Enum, range, pattern, length, type, required, list-map and set violations are 422 with the path."
)
async def test_validation(api: Client, ns: str, gadgets: Gadgets, spec: Object, field: str, says: str) -> None:
    status = await api.refused(422, "POST", url(gadgets.resource, ns), gadgets.make("one", spec))
    assert status["reason"] == "Invalid"
    assert status["details"]["kind"] == "Gadget"
    causes = {cause["field"]: cause["message"] for cause in status["details"]["causes"]}
    assert field in causes, causes
    assert says in causes[field]


@behaviour("crd-all-errors", "All violations of an object are told at once.")
async def test_all_errors(api: Client, ns: str, gadgets: Gadgets) -> None:
    spec = {"size": -1, "color": "pink", "code": "A"}
    status = await api.refused(422, "POST", url(gadgets.resource, ns), gadgets.make("one", spec))
    assert {cause["field"] for cause in status["details"]["causes"]} == {"spec.size", "spec.color", "spec.code"}


@pytest.mark.parametrize("port", [80, "http", "80%"])
@behaviour("crd-int-or-string", "x-kubernetes-int-or-string takes both and keeps which it was.")
async def test_int_or_string(api: Client, ns: str, gadgets: Gadgets, port: object) -> None:
    assert (await api.create(gadgets.resource, ns, gadgets.make("one", {"port": port})))["spec"]["port"] == port


@behaviour("crd-status-validated", "The status is validated by the schema as well.")
async def test_status_validated(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    path = url(gadgets.resource, ns, "one", "status")
    bad = {"status": {"replicas": "three"}}
    status = await api.refused(422, "PATCH", path, bad, content_type=MERGE)
    assert status["details"]["causes"][0]["field"] == "status.replicas"
    twice = {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False"}]}}
    await api.refused(422, "PATCH", path, twice, content_type=MERGE)


@behaviour(
    "crd-subresources-as-declared", "Without declared subresources there is no /status and /scale, and status is plain."
)
async def test_no_subresources(api: Client, ns: str, group: str) -> None:
    resource = await install(api, definition(group, plural="widgets", kind="Widget"))
    body = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "one"}, "status": {"phase": "Up"}}
    assert (await api.create(resource, ns, body))["status"] == {"phase": "Up"}
    for sub in ("status", "scale"):
        assert (await api.send("GET", url(resource, ns, "one", sub))).status == 404


@behaviour("crd-deletion-takes-objects", "Deleting a definition removes its objects; the API is 404 then.")
async def test_deletion(api: Client, ns: str, group: str) -> None:
    resource = await install(api, definition(group, plural="widgets", kind="Widget"))
    body = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "one"}}
    await api.create(resource, ns, body)
    await api.delete(CRDS, None, resource)
    await api.gone(CRDS, None, resource, 60)

    async def withdrawn() -> bool:
        return (await api.send("GET", url(resource, ns))).status == 404

    await eventually(withdrawn, f"{resource} is served no longer")
    await install(api, definition(group, plural="widgets", kind="Widget"))
    assert await api.names(resource, ns) == []


@behaviour("crd-versions", "An object is served in every served version, with that version's apiVersion.")
async def test_versions(api: Client, ns: str, group: str) -> None:
    body = definition(group)
    old = {"name": "v1alpha1", "served": True, "storage": False, "schema": {"openAPIV3Schema": gadget_schema()}}
    body["spec"]["versions"].append(old)
    resource = await install(api, body)
    gadget = {"apiVersion": f"{group}/v1", "kind": "Gadget", "metadata": {"name": "one"}, "spec": {"size": 3}}
    await api.create(resource, ns, gadget)
    found = await api.ok("GET", f"/apis/{group}/v1alpha1/namespaces/{ns}/gadgets/one")
    assert (found["apiVersion"], found["spec"]["size"]) == (f"{group}/v1alpha1", 3)


@behaviour("crd-cluster-scope", "A cluster-scoped kind lives outside namespaces.")
async def test_cluster_scope(api: Client, ns: str, group: str) -> None:
    body = definition(group, plural="widgets", kind="Widget")
    body["spec"]["scope"] = "Cluster"
    resource = await install(api, body)
    created = await api.create(
        resource, None, {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "one"}}
    )
    assert "namespace" not in created["metadata"]
    assert (await api.send("GET", url(resource, ns, "one"))).status == 404
