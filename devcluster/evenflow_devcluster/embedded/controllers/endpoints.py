"""EndpointSlices follow a Service's selector and its pods' readiness: per set of port numbers, in slices of 100."""

import hashlib
from collections.abc import Mapping

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.controllers.mirror import View
from evenflow_devcluster.embedded.jsonvalues import Object, dig, encoded
from evenflow_devcluster.embedded.kinds.pods import ended, is_ready

SLICES = "endpointslices.discovery.k8s.io"
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
CONTROLLER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"
MAX_ENDPOINTS = 100
"""Per slice, as in Kubernetes; the API refuses more than 1000."""


class EndpointSliceController(ControlLoop[tuple[str, str]]):
    """Key: namespace and name of a Service."""

    watched = ("services", "pods", "nodes", SLICES)

    def touched(self, event: StoreEvent, before: View | None) -> list[tuple[str, str]]:
        namespace = event.object["metadata"].get("namespace", "")
        if event.resource == "services":
            return [(namespace, event.object["metadata"]["name"])]
        if event.resource == SLICES:
            service = (event.object["metadata"].get("labels") or {}).get(SERVICE_NAME)
            return [(namespace, service)] if service else []
        if event.resource == "nodes":
            changed = before is not None and event.type == "MODIFIED"
            return [] if changed else self._concerned(event.object["metadata"]["name"])
        if event.resource != "pods":
            return []
        # The labels before count too: a relabelled pod must leave the slices that its new labels no longer match.
        seen = [event.object] if before is None else [event.object, before]
        return [
            (namespace, service["metadata"]["name"])
            for service in self.mirror.values("services", namespace)
            if any(_selects(service["spec"].get("selector"), pod) for pod in seen)
        ]

    def _concerned(self, node: str) -> list[tuple[str, str]]:
        """Services whose pods may be on this node, which has come or gone."""
        spaces = {
            pod["metadata"]["namespace"] for pod in self.mirror.values("pods") if pod["spec"].get("nodeName") == node
        }
        return [key for key in self.initial() if key[0] in spaces]

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
        # A pod without a node, or on one that doesn't exist, is left out unless readiness doesn't count.
        anywhere = bool(service["spec"].get("publishNotReadyAddresses"))
        pods = [
            pod
            for pod in self.mirror.values("pods", namespace)
            if _selects(selector, pod) and _is_endpoint(pod) and (anywhere or self._has_node(pod))
        ]
        current = [piece for piece in self.mirror.values(SLICES, namespace) if _belongs(piece, service)]
        wanted = {piece["metadata"]["name"]: piece for piece in _slices(service, pods, current)}
        found = {piece["metadata"]["name"]: piece for piece in current}
        for slice_name, piece in wanted.items():
            if slice_name not in found:
                self.api.create(SLICES, namespace, piece)
            elif patch := _difference(found[slice_name], piece):
                self.api.merge_patch(SLICES, namespace, slice_name, patch)
        for slice_name in found.keys() - wanted.keys():
            self.api.delete(SLICES, namespace, slice_name, uid=found[slice_name]["metadata"]["uid"])

    def _has_node(self, pod: View) -> bool:
        return self.mirror.get("nodes", "", pod["spec"].get("nodeName") or "") is not None


def _selects(selector: Mapping[str, str] | None, pod: View) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in (selector or {}).items())


def _belongs(piece: View, service: View) -> bool:
    labels = piece["metadata"].get("labels") or {}
    owners = piece["metadata"].get("ownerReferences") or []
    return labels.get(MANAGED_BY) == CONTROLLER and any(o["uid"] == service["metadata"]["uid"] for o in owners)


def _difference(found: View, wanted: Object) -> Object:
    fields = ("endpoints", "ports")
    patch: Object = {field: wanted[field] for field in fields if (found.get(field) or []) != wanted[field]}
    labels = found["metadata"].get("labels") or {}
    if labels != wanted["metadata"]["labels"]:
        gone = set(labels) - set(wanted["metadata"]["labels"])
        patch["metadata"] = {"labels": {**dict.fromkeys(gone), **wanted["metadata"]["labels"]}}
    return patch


def _slices(service: View, pods: list[View], current: list[View]) -> list[Object]:
    """All slices that the service should have; an endpoint stays in the slice that it is in."""
    groups: dict[bytes, tuple[list[Object], dict[str, Object]]] = {}
    for pod in pods:
        # A named target port may be another number in another pod.
        ports = _ports(service, pod)
        groups.setdefault(encoded(ports), (ports, {}))[1][pod["metadata"]["name"]] = _endpoint(service, pod)
    if not groups:
        # The last pod's slice stays, empty: with the ports that are known without a pod it keeps its name.
        ports = _ports(service, {"spec": {}})
        groups[encoded(ports)] = (ports, {})
    found = []
    for key, (ports, endpoints) in groups.items():
        pieces = [piece for piece in current if encoded(piece.get("ports") or []) == key]
        for name, listed in _spread(service, key, endpoints, pieces).items():
            found.append(_slice(service, name, ports, [endpoints[pod] for pod in listed]))
    return found


def _spread(service: View, key: bytes, endpoints: Mapping[str, Object], pieces: list[View]) -> dict[str, list[str]]:
    """Slice name -> names of its pods. Who is placed stays, newcomers fill what has room, then come new slices."""
    placed: dict[str, list[str]] = {}
    new = dict.fromkeys(endpoints)
    for piece in pieces:
        names = [endpoint["targetRef"]["name"] for endpoint in piece.get("endpoints") or []]
        kept = [name for name in names if name in new]
        for name in kept:
            del new[name]
        placed[piece["metadata"]["name"]] = kept
    waiting = list(new)
    for kept in placed.values():
        room = MAX_ENDPOINTS - len(kept)
        kept += waiting[:room]
        del waiting[:room]
    number = 0
    while waiting or not placed:
        name = _name(service, key, number)
        number += 1
        if name not in placed:
            placed[name] = waiting[:MAX_ENDPOINTS]
            del waiting[:MAX_ENDPOINTS]
    filled = {name: kept for name, kept in placed.items() if kept}
    return filled or dict(list(placed.items())[:1])


def _name(service: View, key: bytes, number: int) -> str:
    digest = hashlib.sha256(f"{service['metadata']['uid']} {number} ".encode() + key).hexdigest()
    return f"{service['metadata']['name']}-{digest[:5]}"


def _slice(service: View, name: str, ports: list[Object], endpoints: list[Object]) -> Object:
    metadata = service["metadata"]
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
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    }


def _is_endpoint(pod: View) -> bool:
    return bool(dig(pod, "status", "podIP")) and not ended(pod)


def _endpoint(service: View, pod: View) -> Object:
    serving = is_ready(pod)
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


def _ports(service: View, pod: View) -> list[Object]:
    """A named target port that the pod doesn't declare is left out, as Kubernetes does."""
    found = []
    for port in service["spec"].get("ports") or []:
        number = _number(port.get("targetPort", port["port"]), pod)
        if number is not None:
            found.append({"name": port.get("name", ""), "port": number, "protocol": port.get("protocol", "TCP")})
    return found


def _number(target: object, pod: View) -> int | None:
    if isinstance(target, int):
        return target
    for container in pod["spec"].get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == target:
                return int(port["containerPort"])
    return None
