"""What the server serves: version, groups and resources, as single lists and aggregated (apidiscovery.k8s.io/v2)."""

from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.kinds.resources import VERBS, Resource

VERSION: Object = {
    "major": "1",
    "minor": "37",
    "emulationMajor": "1",
    "emulationMinor": "37",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "36",
    "gitVersion": "v1.37.2+evenflow-embedded",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def wants_aggregated(accept: str) -> bool:
    alternatives = (part.replace(" ", "") for part in accept.split(","))
    return any("g=apidiscovery.k8s.io" in part and "v=v2" in part.split(";") for part in alternatives)


def api_versions() -> Object:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: Registry) -> Object:
    groups = [group(registry, name) for name in registry.groups() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> Object:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in registry.groups()[name]]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": versions[0],
        "serverAddressByClientCIDRs": [],
    }


def resource_list(registry: Registry, name: str, version: str) -> Object:
    served: list[Object] = []
    for resource in registry.all():
        if (resource.group, resource.version) == (name, version):
            served.extend(_plain(resource))
    group_version = f"{name}/{version}" if name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": served}


def _other_names(resource: Resource) -> Object:
    names: Object = {}
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return names


def _plain(resource: Resource) -> list[Object]:
    entries: list[Object] = [
        {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(VERBS),
            **_other_names(resource),
        }
    ]
    for name, (api_version, kind, verbs) in resource.subresources.items():
        group_name, _, version = api_version.rpartition("/")
        entries.append({
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "group": group_name,
            "version": version,
            "kind": kind,
            "verbs": list(verbs),
        })  # fmt: skip
    return entries


def aggregated(registry: Registry, core: bool) -> Object:
    items = []
    for name, versions in registry.groups().items():
        if bool(name) is core:
            continue
        served = [
            {"version": version, "freshness": "Current", "resources": _aggregated_resources(registry, name, version)}
            for version in versions
        ]
        items.append({"metadata": {"name": name, "creationTimestamp": None}, "versions": served})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_resources(registry: Registry, name: str, version: str) -> list[Object]:
    found = []
    for resource in registry.all():
        if (resource.group, resource.version) != (name, version):
            continue
        entry: Object = {
            "resource": resource.plural,
            "responseKind": {"group": name, "version": version, "kind": resource.kind},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "singularResource": resource.singular,
            "verbs": list(VERBS),
            **_other_names(resource),
        }
        subresources = []
        for sub, (api_version, kind, verbs) in resource.subresources.items():
            sub_group, _, sub_version = api_version.rpartition("/")
            subresources.append({
                "subresource": sub,
                "responseKind": {"group": sub_group, "version": sub_version, "kind": kind},
                "verbs": list(verbs),
            })  # fmt: skip
        if subresources:
            entry["subresources"] = subresources
        found.append(entry)
    return found
