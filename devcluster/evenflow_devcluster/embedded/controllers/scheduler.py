"""Binds pods to nodes: nodeSelector, required node affinity, taints and extended resources, oldest pod first."""

from typing import Any

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.controllers.fitting import choose_node, used_by
from evenflow_devcluster.embedded.controllers.loop import ControlLoop

ALL_PENDING = "pending pods"


class Scheduler(ControlLoop[str]):
    """One key: any change of a pod or a node may let a waiting pod in, and the queue is short."""

    def touched(self, event: StoreEvent) -> list[str]:
        if event.resource == "nodes":
            return [ALL_PENDING]
        if event.resource == "pods" and (event.type != "MODIFIED" or not event.object["spec"].get("nodeName")):
            return [ALL_PENDING]
        if event.resource == "pods" and event.object.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return [ALL_PENDING]
        return []

    def initial(self) -> list[str]:
        return [ALL_PENDING]

    def reconcile(self, key: str) -> None:
        pods = self.api.list("pods")
        waiting = [pod for pod in pods if _waits(pod)]
        if not waiting:
            return
        nodes = [node for node in self.api.list("nodes") if not node["metadata"].get("deletionTimestamp")]
        used = used_by(pods)
        for pod in sorted(waiting, key=lambda pod: int(pod["metadata"]["resourceVersion"])):
            node, message = choose_node(pod, nodes, used)
            if node is None:
                self._say_unschedulable(pod, message)
                continue
            metadata = pod["metadata"]
            bound = self.api.merge_patch(
                "pods", metadata["namespace"], metadata["name"], {"spec": {"nodeName": node}}, subresource="binding"
            )
            for resource, amount in used_by([bound]).get(node, {}).items():
                used.setdefault(node, {})[resource] = used.get(node, {}).get(resource, 0.0) + amount

    def _say_unschedulable(self, pod: dict[str, Any], message: str) -> None:
        conditions = [c for c in pod.get("status", {}).get("conditions", []) if c["type"] != "PodScheduled"]
        old = [c for c in pod.get("status", {}).get("conditions", []) if c["type"] == "PodScheduled"]
        if old and old[0].get("message") == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": pod["metadata"]["creationTimestamp"],
        }
        self.api.merge_patch(
            "pods",
            pod["metadata"]["namespace"],
            pod["metadata"]["name"],
            {"status": {"phase": "Pending", "conditions": [*conditions, condition]}},
            subresource="status",
        )


def _waits(pod: dict[str, Any]) -> bool:
    return (
        not pod["spec"].get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
        and pod["spec"].get("schedulerName", "default-scheduler") == "default-scheduler"
        and not pod["spec"].get("schedulingGates")
    )
