"""Keeps as many pods as a ReplicaSet says, and counts them in its status. It adopts no pods and releases none."""

from collections.abc import Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.jsonvalues import Object, copied
from evenflow_devcluster.embedded.kinds.pods import ended, is_ready
from evenflow_devcluster.embedded.kinds.workloads import REPLICA_SETS, controller_of

View = Mapping[str, Any]
Place = tuple[str, str]


class ReplicaSetController(ControlLoop[Place]):
    """Key: namespace and name of a ReplicaSet."""

    watched = (REPLICA_SETS, "pods")

    def touched(self, event: StoreEvent, before: View | None) -> list[Place]:
        metadata = event.object["metadata"]
        if event.resource == REPLICA_SETS:
            return [(metadata["namespace"], metadata["name"])]
        owner = controller_of(event.object) if event.resource == "pods" else None
        return [(metadata["namespace"], owner["name"])] if owner and owner["kind"] == "ReplicaSet" else []

    def initial(self) -> list[Place]:
        return [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in self.mirror.values(REPLICA_SETS)]

    def reconcile(self, key: Place) -> None:
        namespace, name = key
        found = self.mirror.get(REPLICA_SETS, namespace, name)
        if found is None:
            return
        if not found["metadata"].get("deletionTimestamp"):
            pods = self._pods(found)
            missing = found["spec"]["replicas"] - len(pods)
            for _ in range(missing):
                self.api.create("pods", namespace, _pod(found))
            for pod in sorted(pods, key=_worth)[: max(0, -missing)]:
                self.api.delete("pods", namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        self._write_status(found)

    def _pods(self, owner: View) -> list[View]:
        """The living ones: what has ended or is being deleted is replaced."""
        uid = owner["metadata"]["uid"]
        return [
            pod
            for pod in self.mirror.values("pods", owner["metadata"]["namespace"])
            if (controller_of(pod) or {}).get("uid") == uid
            and not pod["metadata"].get("deletionTimestamp")
            and not ended(pod)
        ]

    def _write_status(self, found: View) -> None:
        metadata = found["metadata"]
        pods = self._pods(found)
        ready = sum(map(is_ready, pods))
        status: Object = {
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods) or None,
            "readyReplicas": ready or None,
            "availableReplicas": ready or None,
            "observedGeneration": metadata["generation"],
        }
        old = found.get("status") or {}
        if any(old.get(field) != value for field, value in status.items()):
            patch = {"metadata": {"uid": metadata["uid"]}, "status": status}
            self.api.merge_patch(REPLICA_SETS, metadata["namespace"], metadata["name"], patch, subresource="status")


def _pod(owner: View) -> Object:
    template, metadata = owner["spec"]["template"], owner["metadata"]
    reference = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    kept = {key: copied(value) for key, value in template["metadata"].items() if key in ("labels", "annotations")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{metadata['name']}-", "ownerReferences": [reference], **kept},
        "spec": copied(template["spec"]),
    }


def _worth(pod: View) -> tuple[bool, bool, bool]:
    """Deleted first: what has no node, then what doesn't run, then what isn't ready."""
    running = (pod.get("status") or {}).get("phase") == "Running"
    return bool(pod["spec"].get("nodeName")), running, is_ready(pod)
