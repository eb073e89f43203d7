"""Keeps the status of PodDisruptionBudgets, so that evictions are refused exactly when a real cluster refuses them."""

from collections.abc import Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import Object, StoreEvent
from evenflow_devcluster.embedded.controllers.fitting import percent_or_count
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.selectors import labels_match, requirements_of

BUDGETS = "poddisruptionbudgets.policy"


class DisruptionController(ControlLoop[tuple[str, str]]):
    def touched(self, event: StoreEvent) -> list[tuple[str, str]]:
        namespace = event.object["metadata"].get("namespace", "")
        if event.resource == BUDGETS and event.type != "DELETED":
            return [(namespace, event.object["metadata"]["name"])]
        if event.resource == "pods":
            return [(namespace, budget["metadata"]["name"]) for budget in self.api.list(BUDGETS, namespace)]
        return []

    def initial(self) -> list[tuple[str, str]]:
        return [(budget["metadata"]["namespace"], budget["metadata"]["name"]) for budget in self.api.list(BUDGETS)]

    def reconcile(self, key: tuple[str, str]) -> None:
        namespace, name = key
        budget = self.api.get(BUDGETS, namespace, name)
        if budget is None:
            return
        requirements = requirements_of(budget["spec"].get("selector"))
        pods = [
            pod
            for pod in self.api.list("pods", namespace)
            if requirements is not None and labels_match(requirements, pod["metadata"].get("labels"))
        ]
        status = self._status(budget, namespace, pods)
        current = {key: budget.get("status", {}).get(key) for key in status}
        if current != status:
            self.api.merge_patch(BUDGETS, namespace, name, {"status": status}, subresource="status")

    def _status(self, budget: Object, namespace: str, pods: list[Object]) -> Object:
        spec = budget["spec"]
        healthy = sum(_is_healthy(pod) for pod in pods)
        if "maxUnavailable" in spec:
            expected = self._expected(namespace, pods)
            allowed = percent_or_count(spec["maxUnavailable"], expected, round_up=True)
            desired = max(expected - allowed, 0)
        elif str(spec.get("minAvailable", "")).endswith("%"):
            expected = self._expected(namespace, pods)
            desired = percent_or_count(spec["minAvailable"], expected, round_up=True)
        else:
            expected = len(pods)
            desired = int(spec.get("minAvailable", 1))
        return {
            "observedGeneration": budget["metadata"].get("generation", 1),
            "expectedPods": expected,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": max(healthy - desired, 0),
        }

    def _expected(self, namespace: str, pods: list[Object]) -> int:
        """What the pods' controllers want in all, read from spec.replicas; bare pods count as they are."""
        expected = 0
        counted: set[str] = set()
        for pod in pods:
            owner = next((o for o in pod["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
            if owner is None:
                expected += 1
            elif owner["uid"] not in counted:
                counted.add(owner["uid"])
                expected += self._replicas(namespace, owner, pods)
        return expected

    def _replicas(self, namespace: str, owner: Mapping[str, Any], pods: list[Object]) -> int:
        group = owner["apiVersion"].rpartition("/")[0]
        plural = owner["kind"].lower() + "s"
        found = self.api.get(f"{plural}.{group}" if group else plural, namespace, owner["name"])
        replicas = (found or {}).get("spec", {}).get("replicas")
        if replicas is not None:
            return int(replicas)
        return sum(any(o["uid"] == owner["uid"] for o in pod["metadata"].get("ownerReferences") or []) for pod in pods)


def _is_healthy(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")
