"""meta/v1 Table: what `kubectl get` prints, made on the server."""

import functools
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds import columns
from evenflow_devcluster.embedded.kinds.columns import Row
from evenflow_devcluster.embedded.kinds.resources import Column, Resource

_NAME = Column("Name", "string", description="Name must be unique within a namespace.", format="name")
_AGE = Column("Age", "string", description="Time since the object was created.")


def _columns(*specs: str) -> tuple[Column, ...]:
    """`Ready` (string), `Allowed:integer`, `IP*` (only with -o wide)."""
    made = [_NAME] if specs[0] == "Name" else []
    for spec in specs[len(made) :]:
        name, _, kind = spec.rstrip("*").partition(":")
        made.append(_AGE if name == "Age" else Column(name, kind or "string", priority=int(spec.endswith("*"))))
    return tuple(made)


BUILTIN: dict[str, tuple[tuple[Column, ...], Row]] = {
    "pods": (
        _columns("Name", "Ready", "Status", "Restarts", "Age", "IP*", "Node*", "Nominated Node*", "Readiness Gates*"),
        columns.pod,
    ),
    "nodes": (
        _columns("Name", "Status", "Roles", "Age", "Version", "Internal-IP*", "External-IP*", "OS-Image*",
                 "Kernel-Version*", "Container-Runtime*"),
        columns.node,
    ),
    "services": (
        _columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector*"),
        columns.service,
    ),
    "endpointslices.discovery.k8s.io": (
        _columns("Name", "AddressType", "Ports", "Endpoints", "Age"),
        columns.endpoint_slice,
    ),
    "events": (
        (*_columns("Last Seen", "Type", "Reason", "Object", "Subobject*", "Source*", "Message", "First Seen*",
                   "Count:integer*"), Column("Name", "string", priority=1, format="name")),
        columns.event,
    ),
    "leases.coordination.k8s.io": (_columns("Name", "Holder", "Age"), columns.lease),
    "namespaces": (_columns("Name", "Status", "Age"), columns.namespace),
    "configmaps": (_columns("Name", "Data:integer", "Age"), columns.config_map),
    "secrets": (_columns("Name", "Type", "Data:integer", "Age"), columns.secret),
    "serviceaccounts": (_columns("Name", "Secrets:integer", "Age"), columns.service_account),
    "poddisruptionbudgets.policy": (
        _columns("Name", "Min Available", "Max Unavailable", "Allowed Disruptions:integer", "Age"),
        columns.disruption_budget,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (_columns("Name", "Created At:date"), columns.definition),
    "deployments.apps": (
        _columns("Name", "Ready", "Up-to-date:integer", "Available:integer", "Age", "Containers*", "Images*",
                 "Selector*"),
        columns.deployment,
    ),
    "replicasets.apps": (
        _columns("Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", "Containers*", "Images*",
                 "Selector*"),
        columns.replica_set,
    ),
    "networkpolicies.networking.k8s.io": (_columns("Name", "Pod-Selector", "Age"), columns.network_policy),
    "clusterroles.rbac.authorization.k8s.io": (_columns("Name", "Created At:date"), columns.definition),
    "clusterrolebindings.rbac.authorization.k8s.io": (_columns("Name", "Role", "Age"), columns.binding),
    "roles.rbac.authorization.k8s.io": (_columns("Name", "Created At:date"), columns.definition),
    "rolebindings.rbac.authorization.k8s.io": (_columns("Name", "Role", "Age"), columns.binding),
}  # fmt: skip
_CREATED = Column("Age", "date", ".metadata.creationTimestamp")


def table(resource: Resource, objects: Iterable[Object], metadata: Object, include: str, now: datetime) -> Object:
    definitions, row = _printer(resource)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in definitions],
        "rows": [_row(obj, row(obj, now), include) for obj in objects],
    }


def _printer(resource: Resource) -> tuple[Sequence[Column], Row]:
    found = BUILTIN.get(resource.qualified)
    if found is not None:
        return found
    own = resource.columns or (_CREATED,)
    return (_NAME, *own), functools.partial(_custom_row, own)


def _custom_row(own: Sequence[Column], obj: Object, now: datetime) -> list[Any]:
    return [obj["metadata"]["name"], *(_custom_cell(column, obj, now) for column in own)]


def _custom_cell(column: Column, obj: Object, now: datetime) -> Any:
    found = json_path(obj, column.path)
    if not found:
        return None
    value = found[0] if len(found) == 1 else ",".join(str(item) for item in found)
    if column.type == "date":
        return columns.age(value, now)
    if column.type == "integer" and isinstance(value, int | float):
        return int(value)
    if column.type == "boolean" and isinstance(value, bool):
        return value
    if column.type == "number" and isinstance(value, int | float):
        return float(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


_STEP = re.compile(
    r"""\.(?P<field>[A-Za-z0-9_$-]+(?:\\\.[A-Za-z0-9_$/-]+)*)"""
    r"""|\[\?\(@\.(?P<key>[A-Za-z0-9_.]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]"""
    r"""|\[(?P<index>\*|-?\d+)\]|\[["'](?P<quoted>[^"']+)["']\]"""
)


def json_path(value: Any, path: str) -> list[Any]:
    """The subset of JSONPath that printer columns use: fields, indices, `[*]`, `[?(@.type=="Ready")]`."""
    nodes = [value]
    for step in _STEP.finditer(path):
        nodes = [found for node in nodes for found in _walk(node, step)]
    return [node for node in nodes if node is not None]


def _walk(node: Any, step: re.Match[str]) -> list[Any]:
    field = step["field"] or step["quoted"]
    if field is not None:
        return [node[name]] if isinstance(node, dict) and (name := field.replace("\\.", ".")) in node else []
    if step["key"] is not None:
        items = node if isinstance(node, list) else []
        return [item for item in items if json_path(item, "." + step["key"])[:1] == [step["value"]]]
    if not isinstance(node, list):
        return []
    if step["index"] == "*":
        return list(node)
    index = int(step["index"])
    return [node[index]] if -len(node) <= index < len(node) else []


def _definition(column: Column) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(obj: Object, cells: list[Any], include: str) -> Object:
    row: Object = {"cells": cells}
    if include == "Metadata":
        row["object"] = partial(obj)
    elif include == "Object":
        row["object"] = obj
    return row


def partial(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
