"""Keeps the status of PodDisruptionBudgets, so that evictions are refused exactly when a real cluster refuses them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import ControllerApi, StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.jsonvalues import Clock, Object, dig, parsed_time, timestamp
from evenflow_devcluster.embedded.kinds.budgets import BUDGETS, DISRUPTION_TIMEOUT
from evenflow_devcluster.embedded.kinds.definitions import CRDS
from evenflow_devcluster.embedded.kinds.pods import is_ready
from evenflow_devcluster.embedded.kinds.workloads import DEPLOYMENTS, REPLICA_SETS, controller_of
from evenflow_devcluster.embedded.syntax.selectors import labels_match, requirements_of

Place = tuple[str, str]


class UnknownScaleError(Exception):
    """The pods' controllers don't say how many pods they want."""


class DisruptionController(ControlLoop[Place]):
    """Key: namespace and name of a budget. As in Kubernetes, a change of the pods' owner alone triggers nothing."""

    watched = (BUDGETS, "pods", CRDS)

    def __init__(self, api: ControllerApi, clock: Clock) -> None:
        super().__init__(api)
        self._clock = clock

    def touched(self, event: StoreEvent, before: Mapping[str, Any] | None) -> list[Place]:
        namespace = event.object["metadata"].get("namespace", "")
        if event.resource == BUDGETS and event.type != "DELETED":
            return [(namespace, event.object["metadata"]["name"])]
        if event.resource == "pods":
            return [(namespace, budget["metadata"]["name"]) for budget in self.mirror.values(BUDGETS, namespace)]
        return []

    def initial(self) -> list[Place]:
        return [(budget["metadata"]["namespace"], budget["metadata"]["name"]) for budget in self.mirror.values(BUDGETS)]

    def reconcile(self, key: Place) -> None:
        namespace, name = key
        budget = self.mirror.get(BUDGETS, namespace, name)
        if budget is None:
            return
        requirements = requirements_of(budget["spec"].get("selector"))
        pods = [
            pod
            for pod in self.mirror.values("pods", namespace)
            if requirements is not None and labels_match(requirements, pod["metadata"].get("labels"))
        ]
        old = {"disruptedPods": {}, **(budget.get("status") or {})}
        try:
            new = self._status(budget, pods)
        except UnknownScaleError as error:
            new = {"disruptionsAllowed": 0}
            condition = self._condition(budget, "SyncFailed", str(error))
        else:
            enough = new["disruptionsAllowed"] > 0
            condition = self._condition(budget, "SufficientPods" if enough else "InsufficientPods", "")
        new["conditions"] = [condition]
        if any(old.get(field) != value for field, value in new.items()):
            if "disruptedPods" in new:
                new["disruptedPods"] = {**dict.fromkeys(old["disruptedPods"]), **new["disruptedPods"]}
            self.api.merge_patch(BUDGETS, namespace, name, {"status": new}, subresource="status")

    def _condition(self, budget: Mapping[str, Any], reason: str, message: str) -> Object:
        old: Object = next(iter(dig(budget.get("status"), "conditions") or []), {})
        status = "True" if reason == "SufficientPods" else "False"
        kept = old.get("lastTransitionTime") if old.get("status") == status else None
        return {
            "type": "DisruptionAllowed",
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": budget["metadata"].get("generation", 1),
            "lastTransitionTime": kept or timestamp(self._clock()),
        }

    def _status(self, budget: Mapping[str, Any], pods: list[Mapping[str, Any]]) -> Object:
        spec = budget["spec"]
        disrupted = self._disrupted(budget, pods)
        healthy = sum(_is_healthy(pod) and pod["metadata"]["name"] not in disrupted for pod in pods)
        if "maxUnavailable" in spec:
            expected = self._expected(budget, pods)
            desired = max(expected - _count(spec["maxUnavailable"], expected), 0)
        elif str(spec.get("minAvailable", "")).endswith("%"):
            expected = self._expected(budget, pods)
            desired = _count(spec["minAvailable"], expected)
        else:
            expected = len(pods)
            desired = int(spec.get("minAvailable", 1))
        return {
            "observedGeneration": budget["metadata"].get("generation", 1),
            "expectedPods": expected,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": max(healthy - desired, 0) if expected > 0 else 0,
            "disruptedPods": disrupted,
        }

    def _disrupted(self, budget: Mapping[str, Any], pods: list[Mapping[str, Any]]) -> dict[str, str]:
        """Evicted pods that don't show it yet."""
        marked: Mapping[str, str] = dig(budget.get("status"), "disruptedPods") or {}
        found = {}
        for pod in pods:
            moment = parsed_time(marked.get(pod["metadata"]["name"]))
            if moment and not pod["metadata"].get("deletionTimestamp") and self._clock() - moment < DISRUPTION_TIMEOUT:
                found[pod["metadata"]["name"]] = marked[pod["metadata"]["name"]]
        return found

    def _expected(self, budget: Mapping[str, Any], pods: list[Mapping[str, Any]]) -> int:
        """What the pods' controllers want in all, read from their scale; bare pods aren't counted."""
        namespace = budget["metadata"]["namespace"]
        expected = 0
        counted: set[str] = set()
        for pod in pods:
            owner = next((o for o in pod["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
            if owner is not None and owner["uid"] not in counted:
                counted.add(owner["uid"])
                expected += self._replicas(namespace, owner, pod["metadata"]["name"])
        return expected

    def _replicas(self, namespace: str, owner: Mapping[str, Any], pod: str) -> int:
        group, _, version = owner["apiVersion"].rpartition("/")
        if (group, owner["kind"]) == ("apps", "ReplicaSet"):
            return self._replicas_of_set(namespace, owner, pod)
        for definition in self.mirror.values(CRDS):
            spec = definition["spec"]
            if spec["group"] != group or spec["names"]["kind"] != owner["kind"]:
                continue
            path = next(_scale_paths(spec, version), None)
            if path is None:
                break
            found = self.api.get(definition["metadata"]["name"], namespace, owner["name"])
            if found is None or found["metadata"]["uid"] != owner["uid"]:
                raise UnknownScaleError(f'found no controllers for pod "{pod}"')
            replicas = dig(found, *path.strip(".").split("."))
            if replicas is None:
                raise UnknownScaleError(f'Internal error occurred: the spec replicas field "{path}" does not exist')
            return int(replicas)
        raise UnknownScaleError(f"{owner['kind']}.{group} does not implement the scale subresource")

    def _replicas_of_set(self, namespace: str, owner: Mapping[str, Any], pod: str) -> int:
        """What its Deployment wants, if it has one: during a rollout no set wants them all."""
        found = self.api.get(REPLICA_SETS, namespace, owner["name"])
        if found is None or found["metadata"]["uid"] != owner["uid"]:
            raise UnknownScaleError(f'found no controllers for pod "{pod}"')
        above = controller_of(found)
        deployment = self.api.get(DEPLOYMENTS, namespace, above["name"]) if above is not None else None
        return int((deployment or found)["spec"]["replicas"])


def _scale_paths(spec: Mapping[str, Any], version: str) -> Iterator[str]:
    for served in spec["versions"]:
        path = dig(served, "subresources", "scale", "specReplicasPath")
        if served["name"] == version and path:
            yield str(path)


def _is_healthy(pod: Mapping[str, Any]) -> bool:
    return is_ready(pod) and not pod["metadata"].get("deletionTimestamp")


def _count(value: object, total: int) -> int:
    """An int-or-percent field (`1`, `"25%"`) as a count of `total`, rounded up as Kubernetes does for budgets."""
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * total / 100)
    return int(str(value))
