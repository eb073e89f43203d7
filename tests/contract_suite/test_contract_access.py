"""Who may come in, and how a client finds out what is served."""

from suite_behaviours import behaviour
from suite_client import MERGE, Client, eventually, url
from suite_objects import Gadgets

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
GROUPS = {"apiextensions.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "policy"}


@behaviour(
    "wrong-token-401", "A request with an unknown bearer token is answered 401 with a Status, reason Unauthorized."
)
async def test_wrong_token(api: Client) -> None:
    status = await api.refused(401, "GET", url("namespaces"), token="not-a-token")
    assert status["reason"] == "Unauthorized"


@behaviour("version", "`/version` tells major 1, minor 37 and a gitVersion of v1.37.")
async def test_version(api: Client) -> None:
    version = await api.ok("GET", "/version")
    assert version["major"] == "1"
    assert version["minor"].rstrip("+") == "37"
    assert version["gitVersion"].startswith("v1.37.")


@behaviour("discovery-groups", "`/api` and `/apis` list the versions and groups with their preferred versions.")
async def test_groups(api: Client) -> None:
    assert (await api.ok("GET", "/api"))["versions"] == ["v1"]
    listed = await api.ok("GET", "/apis")
    assert listed["kind"] == "APIGroupList"
    preferred = {group["name"]: group["preferredVersion"]["groupVersion"] for group in listed["groups"]}
    assert preferred.keys() >= GROUPS
    assert preferred["policy"] == "policy/v1"


@behaviour(
    "discovery-resources",
    "`/api/v1` lists each resource and subresource with kind, scope, verbs, short names and categories.",
)
async def test_resources(api: Client) -> None:
    listed = await api.ok("GET", "/api/v1")
    assert listed["kind"] == "APIResourceList"
    resources = {resource["name"]: resource for resource in listed["resources"]}
    pods = resources["pods"]
    assert (pods["kind"], pods["namespaced"], pods["singularName"]) == ("Pod", True, "pod")
    assert set(pods["verbs"]) == {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
    assert pods["shortNames"] == ["po"]
    assert "all" in pods["categories"]
    assert resources["nodes"]["namespaced"] is False
    assert (resources["pods/eviction"]["kind"], resources["pods/eviction"]["group"]) == ("Eviction", "policy")
    assert resources["pods/binding"]["kind"] == "Binding"
    assert set(resources["pods/status"]["verbs"]) == {"get", "patch", "update"}


@behaviour("discovery-one-group", "`/apis/<group>` and `/apis/<group>/<version>` describe a group, also a custom one.")
async def test_one_group(api: Client, gadgets: Gadgets) -> None:
    group = await api.ok("GET", f"/apis/{gadgets.group}")
    assert (group["kind"], group["name"]) == ("APIGroup", gadgets.group)
    listed = await api.ok("GET", f"/apis/{gadgets.group}/v1")
    assert {resource["name"] for resource in listed["resources"]} == {"gadgets", "gadgets/status", "gadgets/scale"}
    gadget = next(resource for resource in listed["resources"] if resource["name"] == "gadgets")
    assert gadget["shortNames"] == [gadgets.short_name]
    assert gadget["categories"] == [gadgets.category]
    scale = next(resource for resource in listed["resources"] if resource["name"] == "gadgets/scale")
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")


@behaviour(
    "discovery-aggregated",
    "Asked for an APIGroupDiscoveryList, `/api` and `/apis` answer everything at once, subresources nested.",
)
async def test_aggregated(api: Client, gadgets: Gadgets) -> None:
    core = await api.ok("GET", "/api", accept=AGGREGATED)
    assert core["kind"] == "APIGroupDiscoveryList"
    resources = {found["resource"]: found for found in core["items"][0]["versions"][0]["resources"]}
    pods = resources["pods"]
    assert (pods["scope"], pods["responseKind"]["kind"], pods["shortNames"]) == ("Namespaced", "Pod", ["po"])
    assert {"binding", "eviction", "status"} <= {sub["subresource"] for sub in pods["subresources"]}
    assert resources["nodes"]["scope"] == "Cluster"

    async def listed() -> bool:
        found = await api.ok("GET", "/apis", accept=AGGREGATED)
        return gadgets.group in {item["metadata"]["name"] for item in found["items"]}

    await eventually(listed, "the custom group is in aggregated discovery")


@behaviour("openapi-v3", "`/openapi/v3` indexes one document per group and version, with the schemas kubectl needs.")
async def test_openapi(api: Client, gadgets: Gadgets) -> None:
    custom = f"apis/{gadgets.group}/v1"

    async def listed() -> bool:
        return custom in (await api.ok("GET", "/openapi/v3"))["paths"]

    await eventually(listed, "the custom group is in the OpenAPI index")
    paths = (await api.ok("GET", "/openapi/v3"))["paths"]
    core_path, _, query = paths["api/v1"]["serverRelativeURL"].partition("?hash=")
    core = await api.ok("GET", core_path, hash=query)
    assert core["openapi"].startswith("3.0")
    assert "spec" in core["components"]["schemas"]["io.k8s.api.core.v1.Pod"]["properties"]
    document = await api.ok("GET", paths[custom]["serverRelativeURL"].partition("?")[0])
    kinds = [
        (entry["group"], entry["kind"])
        for schema in document["components"]["schemas"].values()
        for entry in schema.get("x-kubernetes-group-version-kind", [])
    ]
    assert (gadgets.group, "Gadget") in kinds


@behaviour("unknown-path-404", "A group, resource or path that doesn't exist is answered 404.")
async def test_unknown_paths(api: Client, ns: str) -> None:
    for path in ("/apis/nothing.contract.test/v1", url("gizmos", ns), f"/api/v1/namespaces/{ns}/gizmos/one"):
        assert (await api.send("GET", path)).status == 404, path


@behaviour(
    "method-405",
    "A method that a path doesn't take is answered 405, reason MethodNotAllowed; a custom kind asks for a name: 400.",
)
async def test_method_not_allowed(api: Client, ns: str, gadgets: Gadgets) -> None:
    for method, kind in (("PUT", "application/json"), ("PATCH", MERGE)):
        body = {"metadata": {"name": "a"}}
        status = await api.refused(405, method, url("configmaps", ns), body, content_type=kind)
        assert status["reason"] == "MethodNotAllowed"
        status = await api.refused(400, method, url(gadgets.resource, ns), body, content_type=kind)
        assert status["message"] == "name must be provided"


@behaviour("health", "`/healthz`, `/livez` and `/readyz` answer ok.")
async def test_health(api: Client) -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        answer = await api.send("GET", path)
        assert (answer.status, answer.body) == (200, "ok"), path
