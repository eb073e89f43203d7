"""EndpointSlices follow a Service's selector and its pods' readiness: one slice per set of port numbers."""

import hashlib
from collections.abc import Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import Object, StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.jsonvalues import encoded

SLICES = "endpointslices.discovery.k8s.io"
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
CONTROLLER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"


class EndpointSliceController(ControlLoop[tuple[str, str]]):
    """Key: namespace and name of a Service."""

    watched = ("services", "pods", SLICES)

    def touched(self, event: StoreEvent, before: Mapping[str, Any] | None) -> list[tuple[str, str]]:
        namespace = event.object["metadata"].get("namespace", "")
        if event.resource == "services":
            return [(namespace, event.object["metadata"]["name"])]
        if event.resource == SLICES:
            service = (event.object["metadata"].get("labels") or {}).get(SERVICE_NAME)
            return [(namespace, service)] if service else []
        if event.resource != "pods":
            return []
        # The labels before count too: a relabelled pod must leave the slices that its new labels no longer match.
        seen = [event.object] if before is None else [event.object, before]
        return [
            (namespace, service["metadata"]["name"])
            for service in self.mirror.values("services", namespace)
            if any(_selects(service["spec"].get("selector"), pod) for pod in seen)
        ]

    def initial(self) -> list[tuple[str, str]]:
        return [
            (service["metadata"]["namespace"], service["metadata"]["name"])
            for service in self.mirror.values("services")
        ]

    def reconcile(self, key: tuple[str, str]) -> None:
        namespace, name = key
        service = self.mirror.get("services", namespace, name)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return
        selector = service["spec"].get("selector")
        if not selector or service["spec"].get("type") == "ExternalName":
            return
        pods = [pod for pod in self.mirror.values("pods", namespace) if _selects(selector, pod) and _is_endpoint(pod)]
        desired = {piece["metadata"]["name"]: piece for piece in _slices(service, pods)}
        current = {
            piece["metadata"]["name"]: piece
            for piece in self.mirror.values(SLICES, namespace)
            if _belongs(piece, service)
        }
        for slice_name, wanted in desired.items():
            found = current.pop(slice_name, None)
            if found is None:
                self.api.create(SLICES, namespace, wanted)
            elif patch := _difference(found, wanted):
                self.api.merge_patch(SLICES, namespace, slice_name, patch)
        for slice_name, leftover in current.items():
            self.api.delete(SLICES, namespace, slice_name, uid=leftover["metadata"]["uid"])


def _selects(selector: Mapping[str, str] | None, pod: Mapping[str, Any]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in (selector or {}).items())


def _belongs(piece: Mapping[str, Any], service: Mapping[str, Any]) -> bool:
    labels = piece["metadata"].get("labels") or {}
    owners = piece["metadata"].get("ownerReferences") or []
    return labels.get(MANAGED_BY) == CONTROLLER and any(o["uid"] == service["metadata"]["uid"] for o in owners)


def _difference(found: Mapping[str, Any], wanted: Object) -> Object:
    fields = ("endpoints", "ports")
    patch: Object = {field: wanted[field] for field in fields if (found.get(field) or []) != wanted[field]}
    labels = found["metadata"].get("labels") or {}
    if labels != wanted["metadata"]["labels"]:
        gone = set(labels) - set(wanted["metadata"]["labels"])
        patch["metadata"] = {"labels": {**dict.fromkeys(gone), **wanted["metadata"]["labels"]}}
    return patch


def _slices(service: Mapping[str, Any], pods: list[Mapping[str, Any]]) -> list[Object]:
    """A named target port may be another number in another pod, so pods are grouped by the numbers they resolve to."""
    groups: dict[bytes, tuple[list[Object], list[Object]]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        ports = _ports(service, pod)
        groups.setdefault(encoded(ports), (ports, []))[1].append(_endpoint(service, pod))
    if not groups:
        # The last pod's slice stays, empty: with the ports that are known without a pod it keeps its name.
        ports = _ports(service, {"spec": {}})
        groups[encoded(ports)] = (ports, [])
    return [_slice(service, key, ports, endpoints) for key, (ports, endpoints) in groups.items()]


def _slice(service: Mapping[str, Any], key: bytes, ports: list[Object], endpoints: list[Object]) -> Object:
    metadata = service["metadata"]
    suffix = hashlib.sha256(metadata["uid"].encode() + key).hexdigest()[:5]
    labels = {**(metadata.get("labels") or {}), SERVICE_NAME: metadata["name"], MANAGED_BY: CONTROLLER}
    if service["spec"].get("clusterIP") == "None":
        labels[HEADLESS] = ""
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{metadata['name']}-{suffix}",
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    }


def _is_endpoint(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    return bool(status.get("podIP")) and status.get("phase") not in ("Succeeded", "Failed")


def _endpoint(service: Mapping[str, Any], pod: Mapping[str, Any]) -> Object:
    conditions = pod.get("status", {}).get("conditions") or []
    serving = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    terminating = bool(pod["metadata"].get("deletionTimestamp"))
    ready = bool(service["spec"].get("publishNotReadyAddresses")) or (serving and not terminating)
    metadata = pod["metadata"]
    endpoint: Object = {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
    if pod["spec"].get("nodeName"):
        endpoint["nodeName"] = pod["spec"]["nodeName"]
    return endpoint


def _ports(service: Mapping[str, Any], pod: Mapping[str, Any]) -> list[Object]:
    """A named target port that the pod doesn't declare is left out, as Kubernetes does."""
    found = []
    for port in service["spec"].get("ports") or []:
        number = _number(port.get("targetPort", port["port"]), pod)
        if number is not None:
            found.append({"name": port.get("name", ""), "port": number, "protocol": port.get("protocol", "TCP")})
    return found


def _number(target: object, pod: Mapping[str, Any]) -> int | None:
    if isinstance(target, int):
        return target
    for container in pod["spec"].get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == target:
                return int(port["containerPort"])
    return None
