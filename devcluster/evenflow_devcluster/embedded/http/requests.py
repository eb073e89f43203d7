"""What a request asks for: its path, its verb and its options, parsed and checked."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from evenflow_devcluster.embedded.errors import (
    StatusError,
    bad_request,
    no_such_path,
    unsupported,
    unsupported_media_type,
)
from evenflow_devcluster.embedded.http.protobuf import MEDIA_TYPE, read_protobuf
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.kinds.resources import ABSENT_CORE, ABSENT_GROUPS, ABSENT_SUBRESOURCES, Resource
from evenflow_devcluster.embedded.operations.writes import Caller, Validation
from evenflow_devcluster.embedded.syntax.selectors import Predicate, both, parse_field_selector, parse_label_selector

MAX_BODY = 3 * 1024 * 1024
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_READABLE = frozenset({
    "application/json", "application/yaml", "application/json-patch+json", "application/merge-patch+json",
    "application/strategic-merge-patch+json", "application/apply-patch+yaml",
})  # fmt: skip
_TRUE = frozenset({"true", "1", "True", "t", "T", "TRUE"})


@dataclass(frozen=True, slots=True)
class Target:
    """The resource that a path names; `namespace` is None for all namespaces, "" for cluster-scoped resources."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace or "", self.name


@dataclass(frozen=True, slots=True)
class Path:
    group: str
    version: str
    namespace: str | None
    plural: str
    name: str
    subresource: str


def parse_path(path: str) -> Path | None:
    """None for a path that isn't a resource's (discovery, /version, …)."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise unsupported(f"the subresource path {'/'.join(rest[2:])} of {rest[0]}")
    name, subresource = [*rest, "", ""][1:3]
    return Path(group, version, namespace, rest[0], name, subresource)


def find_target(path: Path, registry: Registry) -> Target:
    """Raises 501 for what Kubernetes has and this server hasn't, 404 for what nobody has."""
    resource = registry.find(path.group, path.version, path.plural)
    if resource is None:
        if path.group in ABSENT_GROUPS:
            raise unsupported(f"{path.plural} of {path.group}/{path.version}")
        if path.group == "" and path.plural in ABSENT_CORE:
            raise unsupported(f"{path.plural} of core/v1")
        raise no_such_path()
    if path.subresource and path.subresource not in subresources_of(resource):
        if path.subresource in ABSENT_SUBRESOURCES:
            raise unsupported(f"{path.plural}/{path.subresource}")
        raise no_such_path()
    if not resource.namespaced:
        if path.namespace is not None:
            raise no_such_path()
        return Target(resource, "", path.name, path.subresource)
    if path.namespace is None and path.name:
        raise no_such_path()
    return Target(resource, path.namespace, path.name, path.subresource)


def subresources_of(resource: Resource) -> list[str]:
    found = list(resource.extra_subresources)
    if resource.status:
        found.append("status")
    if resource.scale is not None:
        found.append("scale")
    return found


def verb_of(method: str, path: Path, query: Mapping[str, str]) -> str:
    """The RBAC verb; raises 405 for a method that has none."""
    if method in ("GET", "HEAD"):
        if path.name:
            return "get"
        return "watch" if flag(query, "watch") else "list"
    if method == "DELETE" and not path.name:
        return "deletecollection"
    verb = _VERBS.get(method)
    if verb is None:
        raise StatusError(405, "MethodNotAllowed", f"the server does not allow the method {method}")
    return verb


def flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name) in _TRUE


def number(query: Mapping[str, str], name: str) -> int | None:
    """A non-negative integer parameter; None if it is absent or empty. Raises 400 for anything else."""
    text = query.get(name)
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f'invalid query parameter {name}: "{text}" is not a non-negative integer')
    return int(text)


def caller_of(query: Mapping[str, str], user_agent: str, warn: Callable[[str], None]) -> Caller:
    dry_run = query.get("dryRun")
    if dry_run not in (None, "", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
    manager = query.get("fieldManager") or user_agent.split("/", 1)[0] or "unknown"
    if len(manager) > 128:
        raise bad_request("fieldManager: may not be more than 128 bytes")
    return Caller(manager, dry_run == "All", validation_of(query), flag(query, "force"), warn)


def validation_of(query: Mapping[str, str]) -> Validation:
    match query.get("fieldValidation") or "Warn":
        case "Strict":
            return "Strict"
        case "Warn":
            return "Warn"
        case "Ignore":
            return "Ignore"
        case other:
            listed = '"Ignore", "Strict", "Warn"'
            raise bad_request(f'fieldValidation: Unsupported value: "{other}": supported values: {listed}')


def predicate_of(target: Target, query: Mapping[str, str]) -> Predicate | None:
    """Label and field selector of the query, and the name if the path has one."""
    resource = target.resource
    labels = parse_label_selector(query.get("labelSelector", ""))
    text = query.get("fieldSelector", "")
    fields = parse_field_selector(text, resource.selectable(), resource.qualified) if text else None
    return both(labels, fields)


def decoded(body: bytes, content_type: str, validation: Validation) -> Any:
    """The JSON or YAML of a body. Raises 400 if it can't be read, 415 for any other media type."""
    kind = content_type.split(";", 1)[0].strip()
    if kind == MEDIA_TYPE:
        return read_protobuf(body)
    if kind not in _READABLE:
        raise unsupported_media_type(kind, ("application/json", "application/yaml"))
    try:
        if validation == "Strict":
            return json.loads(body, object_pairs_hook=_without_duplicates)
        return json.loads(body)
    except ValueError as error:
        if "yaml" not in kind:
            raise bad_request(f"couldn't read the request's body as JSON: {error}") from None
    try:
        return _json_like(yaml.load(body, Loader=_YAML_LOADER))
    except yaml.YAMLError as error:
        raise bad_request(f"couldn't read the request's body as YAML: {error}") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Times stay strings, as in JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_YAML_LOADER = _Loader


def _json_like(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_like(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_like(item) for item in value]
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise bad_request(f'strict decoding error: duplicate field "{key}"')
        found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class Shape:
    """How the client wants objects: whole, as a Table, or only their metadata."""

    kind: str = "Object"
    include: str = "Metadata"


_ACCEPTS = re.compile(r"^\s*(application/json|application/\*|\*/\*)\s*(;|$)")


def shape_of(accept: str, query: Mapping[str, str]) -> Shape:
    """The first alternative of an Accept header that can be served. Raises 406 if none can."""
    if not accept:
        return Shape()
    for alternative in accept.split(","):
        if not _ACCEPTS.match(alternative):
            continue
        parameters = dict(part.strip().partition("=")[::2] for part in alternative.split(";")[1:])
        wanted = parameters.get("as")
        if wanted is None:
            return Shape()
        if parameters.get("g") == "meta.k8s.io" and parameters.get("v") == "v1":
            if wanted == "Table":
                return Shape("Table", query.get("includeObject") or "Metadata")
            if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return Shape("PartialObjectMetadata")
    message = f"only application/json can be served, not {accept!r}"
    raise StatusError(406, "NotAcceptable", message)
