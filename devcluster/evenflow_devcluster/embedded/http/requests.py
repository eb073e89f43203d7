"""What a request asks for: its path, its verb and its options, parsed and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evenflow_devcluster.embedded.errors import StatusError, bad_request, no_such_path, unsupported
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.kinds.resources import ABSENT_GROUPS, ABSENT_KINDS, ABSENT_SUBRESOURCES, Resource
from evenflow_devcluster.embedded.operations.caller import Caller, Validation
from evenflow_devcluster.embedded.syntax.selectors import Predicate, both, parse_field_selector, parse_label_selector

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
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
        qualified = f"{path.plural}.{path.group}" if path.group else path.plural
        if path.group in ABSENT_GROUPS or qualified in ABSENT_KINDS:
            raise unsupported(f"{path.plural} of {path.group or 'core'}/{path.version}")
        raise no_such_path()
    if path.subresource and path.subresource not in resource.subresources:
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
