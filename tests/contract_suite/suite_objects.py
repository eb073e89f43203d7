"""The objects that the suite makes: a custom kind with one field of every sort, pods, nodes, services."""

import secrets
from typing import Any

from suite_client import STRATEGIC, Client, Object

STR: Object = {"type": "string"}
INT: Object = {"type": "integer"}


def unique(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


def gadget_schema() -> Object:
    part = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": STR, "count": {"type": "integer", "default": 1}, "note": STR},
    }
    options = {
        "type": "object",
        "default": {},
        "properties": {
            "retries": {"type": "integer", "default": 2},
            "inner": {"type": "object", "properties": {"deep": {"type": "string", "default": "down"}}},
        },
    }
    spec = {
        "type": "object",
        "properties": {
            "color": {"type": "string", "enum": ["red", "green", "blue"], "description": "What colour the gadget has."},
            "size": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
            "replicas": {"type": "integer", "minimum": 0},
            "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
            "port": {"x-kubernetes-int-or-string": True},
            "parts": {
                "type": "array",
                "maxItems": 4,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": part,
            },
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": STR},
            "notes": {"type": "array", "items": STR},
            "options": options,
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "table": {"type": "object", "additionalProperties": STR},
            "maybe": {"type": "string", "nullable": True},
        },
    }
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {"type": STR, "status": STR, "reason": STR, "message": STR, "lastTransitionTime": STR},
    }
    status = {
        "type": "object",
        "properties": {
            "phase": STR,
            "replicas": INT,
            "selector": STR,
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": condition,
            },
        },
    }
    return {"type": "object", "properties": {"spec": spec, "status": status}}


def definition(
    group: str, *, plural: str = "gadgets", kind: str = "Gadget", schema: Object | None = None, **version: Any
) -> Object:
    served = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema or gadget_schema()}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{**served, **version}],
        },
    }


def gadget_definition(group: str, tag: str) -> Object:
    """With `/status`, `/scale`, columns, a selectable field, and a short name and category that end in `tag`."""
    made = definition(
        group,
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        additionalPrinterColumns=[
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How big it is."},
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
            {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        selectableFields=[{"jsonPath": ".spec.color"}],
    )
    made["spec"]["names"] |= {"shortNames": [f"gd{tag}"], "categories": [f"toys{tag}"]}
    return made


class Gadgets:
    """The suite's own custom kind as it is installed for this run."""

    def __init__(self, group: str, tag: str) -> None:
        self.group = group
        self.api_version = f"{group}/v1"
        self.resource = f"gadgets.{group}"
        self.short_name = f"gd{tag}"
        self.category = f"toys{tag}"

    def make(self, name: str, spec: Object | None = None, **more: Any) -> Object:
        metadata = {"name": name, **more.pop("metadata", {})}
        return {"apiVersion": self.api_version, "kind": "Gadget", "metadata": metadata, "spec": spec or {}, **more}


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {}}


def pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    container = {"name": "main", "image": "example.com/none:1", **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}, **spec.pop("metadata", {})},
        "spec": {"containers": [container], **spec},
    }


def service(name: str, selector: dict[str, str], **spec: Any) -> Object:
    ports = [{"name": "http", "port": 8000}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector, "ports": ports, **spec},
    }


def owner(api_version: str, kind: str, obj: Object, **more: Any) -> Object:
    metadata = obj["metadata"]
    return {"apiVersion": api_version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"], **more}


async def add_node(api: Client, name: str, labels: dict[str, str], **resources: str) -> None:
    """A node as an agent would register it: its resources stated, and the taint taken off that admission adds."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "20", **resources}
    await api.create("nodes", None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    await api.patch("nodes", None, name, {"status": status}, kind=STRATEGIC, sub="status")
    await api.patch("nodes", None, name, {"spec": {"taints": None}})


async def run_pod(api: Client, namespace: str, name: str, address: str, *, ready: bool = True) -> Object:
    """What a node agent reports of a pod that runs."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
    return await api.patch("pods", namespace, name, {"status": status}, kind=STRATEGIC, sub="status")


async def remove_now(api: Client, namespace: str, name: str) -> None:
    """Delete a pod as its node agent does once its containers have ended."""
    await api.delete("pods", namespace, name, {"gracePeriodSeconds": 0})


def scheduled(found: Object) -> Object:
    conditions = found.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


def managers(found: Object) -> dict[tuple[str, str], Object]:
    """(manager, operation) -> fieldsV1."""
    entries = found["metadata"].get("managedFields") or []
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in entries}
