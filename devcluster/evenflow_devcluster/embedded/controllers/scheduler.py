"""Binds pods to nodes: nodeSelector, required node affinity, taints and extended resources, oldest pod first."""

import contextlib
from collections.abc import Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import ControllerApi, StoreEvent
from evenflow_devcluster.embedded.controllers.fitting import Allocations, choose_node
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.jsonvalues import Clock, Object, timestamp
from evenflow_devcluster.embedded.kinds.pods import ended

NAME = "default-scheduler"
Place = tuple[str, str]


class Scheduler(ControlLoop[Place]):
    """Key: namespace and name of a waiting pod. All are looked at again when a node changes or room is freed."""

    watched = ("pods", "nodes")

    def __init__(self, api: ControllerApi, clock: Clock) -> None:
        super().__init__(api)
        self._clock = clock
        self._held = Allocations()
        self._waiting: dict[Place, Mapping[str, Any]] = {}

    def initial(self) -> list[Place]:
        for pod in self.mirror.values("pods"):
            self._note(pod, gone=False)
        return list(self._waiting)

    def touched(self, event: StoreEvent, before: Mapping[str, Any] | None) -> list[Place]:
        if event.resource == "nodes":
            return list(self._waiting)
        if event.resource != "pods":
            return []
        freed = self._note(event.object, gone=event.type == "DELETED")
        if freed:
            return list(self._waiting)
        place = _place(event.object)
        if place in self._waiting and (before is None or before["spec"] != event.object["spec"]):
            return [place]
        return []

    def _note(self, pod: Mapping[str, Any], *, gone: bool) -> bool:
        """Keep the books; returns whether this pod gave resources back."""
        place = _place(pod)
        if not gone and _waits(pod):
            self._waiting[place] = pod
        else:
            self._waiting.pop(place, None)
        if gone or ended(pod) or not pod["spec"].get("nodeName"):
            return self._held.release(place)
        self._held.take(place, pod)
        return False

    def reconcile(self, key: Place) -> None:
        pod = self._waiting.get(key)
        if pod is None:
            return
        nodes = [node for node in self.mirror.values("nodes") if not node["metadata"].get("deletionTimestamp")]
        node, message = choose_node(pod, nodes, self._held.by_node)
        if node is None:
            self._refuse(pod, message)
            return
        namespace, name = key
        target = {"metadata": {"name": name, "uid": pod["metadata"]["uid"]}, "target": {"kind": "Node", "name": node}}
        self.api.create("pods/binding", namespace, target)
        self._say(pod, "Normal", "Scheduled", f"Successfully assigned {namespace}/{name} to {node}")

    def _refuse(self, pod: Mapping[str, Any], message: str) -> None:
        conditions = list(pod.get("status", {}).get("conditions") or [])
        old: Object = next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})
        if old.get("message") == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": old.get("lastTransitionTime") or timestamp(self._clock()),
        }
        others = [condition for condition in conditions if condition["type"] != "PodScheduled"]
        namespace, name = _place(pod)
        status = {"phase": "Pending", "conditions": [*others, condition]}
        self.api.merge_patch("pods", namespace, name, {"status": status}, subresource="status")
        self._say(pod, "Warning", "FailedScheduling", message)

    def _say(self, pod: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        now = self._clock()
        event: Object = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "action": "Binding" if kind == "Normal" else "Scheduling",
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingComponent": NAME,
            "reportingInstance": NAME,
        }
        # An event is only told: a namespace that is going away refuses it, and scheduling goes on.
        with contextlib.suppress(StatusError):
            self.api.create("events", metadata["namespace"], event)


def _place(pod: Mapping[str, Any]) -> Place:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _waits(pod: Mapping[str, Any]) -> bool:
    return (
        not pod["spec"].get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
        and not ended(pod)
        and pod["spec"].get("schedulerName", NAME) == NAME
        and not pod["spec"].get("schedulingGates")
    )
