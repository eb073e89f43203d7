"""EndpointSlices follow a Service's selector and its pods' readiness, one slice per Service."""

from collections.abc import Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import Object, StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop

SLICES = "endpointslices.discovery.k8s.io"
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"


class EndpointSliceController(ControlLoop[tuple[str, str]]):
    def touched(self, event: StoreEvent) -> list[tuple[str, str]]:
        namespace = event.object["metadata"].get("namespace", "")
        if event.resource == "services":
            return [(namespace, event.object["metadata"]["name"])]
        if event.resource == "pods":
            # A pod that was relabelled must leave slices whose selector it no longer matches: look at all that name it.
            return [(namespace, service["metadata"]["name"]) for service in self.api.list("services", namespace)]
        return []

    def initial(self) -> list[tuple[str, str]]:
        return [
            (service["metadata"]["namespace"], service["metadata"]["name"]) for service in self.api.list("services")
        ]

    def reconcile(self, key: tuple[str, str]) -> None:
        namespace, name = key
        service = self.api.get("services", namespace, name)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return
        selector = service["spec"].get("selector")
        if not selector:
            return
        pods = [pod for pod in self.api.list("pods", namespace) if _selects(selector, pod)]
        desired = _slice(service, pods)
        current = self.api.get(SLICES, namespace, desired["metadata"]["name"])
        if current is None:
            self.api.create(SLICES, namespace, desired)
            return
        patch: Object = {}
        if current.get("endpoints", []) != desired["endpoints"]:
            patch["endpoints"] = desired["endpoints"]
        if current.get("ports", []) != desired["ports"]:
            patch["ports"] = desired["ports"]
        if current["metadata"].get("labels") != desired["metadata"]["labels"]:
            gone = set(current["metadata"].get("labels") or {}) - set(desired["metadata"]["labels"])
            patch["metadata"] = {"labels": {**dict.fromkeys(gone), **desired["metadata"]["labels"]}}
        if patch:
            self.api.merge_patch(SLICES, namespace, desired["metadata"]["name"], patch)


def _selects(selector: Mapping[str, str], pod: Mapping[str, Any]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _slice(service: Mapping[str, Any], pods: list[Object]) -> Object:
    metadata = service["metadata"]
    addressed = [pod for pod in pods if _is_endpoint(pod)]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{metadata['name']}-{metadata['uid'][:5]}",
            "namespace": metadata["namespace"],
            "labels": {
                **(metadata.get("labels") or {}),
                SERVICE_NAME: metadata["name"],
                MANAGED_BY: "endpointslice-controller.k8s.io",
            },
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "addressType": "IPv4",
        "endpoints": [_endpoint(pod) for pod in sorted(addressed, key=lambda pod: str(pod["metadata"]["name"]))],
        "ports": [_port(port, addressed) for port in service["spec"].get("ports", [])],
    }


def _is_endpoint(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    return bool(status.get("podIP")) and status.get("phase") not in ("Succeeded", "Failed")


def _endpoint(pod: Mapping[str, Any]) -> Object:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    terminating = bool(pod["metadata"].get("deletionTimestamp"))
    metadata = pod["metadata"]
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready and not terminating, "serving": ready, "terminating": terminating},
        "nodeName": pod["spec"].get("nodeName"),
        "targetRef": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def _port(port: Mapping[str, Any], pods: list[Object]) -> Object:
    target = port.get("targetPort", port["port"])
    number = target if isinstance(target, int) else _named_port(str(target), pods)
    return {"name": port.get("name", ""), "port": number, "protocol": port.get("protocol", "TCP")}


def _named_port(name: str, pods: list[Object]) -> int | None:
    for pod in pods:
        for container in pod["spec"].get("containers", []):
            for port in container.get("ports", []) or []:
                if port.get("name") == name:
                    return int(port["containerPort"])
    return None
