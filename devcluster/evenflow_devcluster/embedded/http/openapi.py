"""OpenAPI v3 of each group version: enough for `kubectl explain`, for apply's validation and for its merge keys."""

import hashlib
from typing import Any

from evenflow_devcluster.embedded.http.discovery import VERSION
from evenflow_devcluster.embedded.jsonvalues import Object, encoded
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.patching.media_types import accepted
from evenflow_devcluster.embedded.schema.structural import builtin_table

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_QUERY = ("dryRun", "fieldManager", "fieldValidation")


class OpenApi:
    """Documents per group version, cached until the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._documents: dict[str, bytes] = {}

    def _fresh(self) -> dict[str, bytes]:
        if self._generation != self._registry.generation:
            self._documents.clear()
            self._generation = self._registry.generation
        return self._documents

    def index(self) -> Object:
        paths = {}
        for group, versions in self._registry.groups().items():
            for version in versions:
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                digest = hashlib.sha256(self.document(group, version)).hexdigest().upper()
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return {"paths": paths}

    def document(self, group: str, version: str) -> bytes:
        documents = self._fresh()
        name = f"{group}/{version}"
        if name not in documents:
            documents[name] = encoded(self._make(group, version))
        return documents[name]

    def _make(self, group: str, version: str) -> Object:
        resources = [one for one in self._registry.all() if (one.group, one.version) == (group, version)]
        schemas: Object = {}
        paths: Object = {}
        for resource in resources:
            name = _add_schemas(resource, schemas)
            paths.update(_paths(resource, name))
        if group in ("", "policy"):
            _collect("io.k8s.api.policy.v1.Eviction", schemas)
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes (evenflow embedded)", "version": VERSION["gitVersion"]},
            "paths": paths,
            "components": {"schemas": schemas},
        }


def _collect(name: str, schemas: Object) -> None:
    if name in schemas:
        return
    schemas[name] = builtin_table()[name]
    for target in _references(schemas[name]):
        _collect(target, schemas)


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"].rsplit("/", 1)[1]] if isinstance(node.get("$ref"), str) else []
        return own + [name for value in node.values() for name in _references(value)]
    if isinstance(node, list):
        return [name for value in node for name in _references(value)]
    return []


def _add_schemas(resource: Resource, schemas: Object) -> str:
    kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    if resource.custom:
        name = f"{'.'.join(reversed(resource.group.split('.')))}.{resource.version}.{resource.kind}"
        schemas[name] = _custom_schema(resource, kind)
        _collect(_META + "ObjectMeta", schemas)
    else:
        name = next(
            key for key, raw in builtin_table().items() if kind in raw.get("x-kubernetes-group-version-kind", ())
        )
        _collect(name, schemas)
    list_name = f"{name}List"
    _collect(_META + "ListMeta", schemas)
    schemas[list_name] = {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"$ref": f"#/components/schemas/{_META}ListMeta"},
            "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
        },
        "x-kubernetes-group-version-kind": [{**kind, "kind": resource.list}],
    }
    return name


def _custom_schema(resource: Resource, kind: Object) -> Object:
    schema: Object = dict(resource.schema.raw)
    common = builtin_table()["io.k8s.api.core.v1.ConfigMap"]["properties"]
    properties = {key: common[key] for key in ("apiVersion", "kind")}
    properties["metadata"] = {"allOf": [{"$ref": f"#/components/schemas/{_META}ObjectMeta"}]}
    schema["properties"] = {**(schema.get("properties") or {}), **properties}
    schema["x-kubernetes-group-version-kind"] = [kind]
    return schema


def _paths(resource: Resource, name: str) -> Object:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"{root}{scope}/{resource.plural}"
    kind = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    def operation(action: str, patch: bool = False, write: bool = True) -> Object:
        made: Object = {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
            "responses": {"200": {"description": "OK", "content": content}},
        }
        if write:
            made["parameters"] = [{"name": key, "in": "query", "schema": {"type": "string"}} for key in _QUERY]
        if patch:
            made["requestBody"] = {
                "content": {media: {"schema": {"type": "object"}} for media in accepted(custom=resource.custom)}
            }
        elif write:
            made["requestBody"] = {"content": content}
        return made

    paths: Object = {
        collection: {"get": operation("list", write=False), "post": operation("post")},
        collection + "/{name}": {
            "get": operation("get", write=False),
            "put": operation("put"),
            "patch": operation("patch", patch=True),
            "delete": {**operation("delete", write=False), "parameters": [
                {"name": "dryRun", "in": "query", "schema": {"type": "string"}}
            ]},
        },
    }  # fmt: skip
    if resource.namespaced:
        paths[f"{root}/{resource.plural}"] = {"get": operation("list", write=False)}
    return paths
