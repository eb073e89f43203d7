"""What is done to a pod through a subresource: binding it to a node, evicting it within its disruption budget."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError, StatusError, conflict, invalid, success
from evenflow_devcluster.embedded.jsonvalues import Object, dig, parsed_time, timestamp
from evenflow_devcluster.embedded.kinds.budgets import BUDGETS, DISRUPTION_TIMEOUT
from evenflow_devcluster.embedded.kinds.pods import is_ready
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.deletion import options_from
from evenflow_devcluster.embedded.store.memory import Key
from evenflow_devcluster.embedded.syntax.selectors import labels_match, requirements_of

_MAX_DISRUPTED = 2000


def bind(api: Api, key: Key, binding: Object, caller: Caller) -> Object:
    """Assign a pod to a node, once. 409 if it has a node already or is being deleted."""
    pods = api.registry.builtin("pods")
    target = binding.get("target") or {}
    node = target.get("name")
    if not node or target.get("kind", "Node") != "Node":
        raise invalid("Binding", "", key[1], [FieldError("target.name", "", "Required")])

    def change(live: Object) -> Object:
        uid = dig(binding, "metadata", "uid")
        if uid and uid != live["metadata"]["uid"]:
            raise conflict("pods/binding", key[1], f"Precondition failed: UID in precondition: {uid}")
        if dig(live, "spec", "nodeName"):
            assigned = live["spec"]["nodeName"]
            raise conflict("pods/binding", key[1], f'pod {key[1]} is already assigned to node "{assigned}"')
        if "deletionTimestamp" in live["metadata"]:
            raise conflict("pods/binding", key[1], f"pod {key[1]} is being deleted, cannot be assigned to a host")
        spec = {**live["spec"], "nodeName": node}
        metadata = dict(live["metadata"])
        for field in ("annotations", "labels"):
            extra = dig(binding, "metadata", field)
            if extra:
                metadata[field] = {**(metadata.get(field) or {}), **extra}
        return {**live, "metadata": metadata, "spec": spec}

    stored = api.writer.update(pods, key, change, caller, subresource="binding", trusted=True)
    if not caller.dry_run:
        _set_condition(api, pods, key, stored, caller, {"type": "PodScheduled", "status": "True"})
    return success({"name": key[1], "kind": "pods"})


def _set_condition(api: Api, pods: Resource, key: Key, pod: Object, caller: Caller, condition: Object) -> None:
    now = timestamp(api.clock())
    conditions = [one for one in dig(pod, "status", "conditions") or () if one["type"] != condition["type"]]
    conditions.append({"lastProbeTime": None, "lastTransitionTime": now, **condition})
    status = {**(pod.get("status") or {}), "conditions": conditions}
    api.writer.update(pods, key, lambda live: {**live, "status": status}, caller, subresource="status")


def evict(api: Api, key: Key, eviction: Object, caller: Caller) -> Object:
    """Delete a pod if its disruption budget allows it, else 429."""
    pods = api.registry.builtin("pods")
    pod = api.record(pods, key).object
    options = options_from(eviction.get("deleteOptions") or {})
    if caller.dry_run:
        options = replace(options, dry_run=True)
    finished = dig(pod, "status", "phase") in ("Succeeded", "Failed", "Pending")
    if not finished and "deletionTimestamp" not in pod["metadata"]:
        _spend_budget(api, pod, key, options.dry_run)
    if not options.dry_run and not finished:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        _set_condition(api, pods, key, pod, caller, condition)
        options = replace(options, uid=options.uid or pod["metadata"]["uid"], version=None)
    api.delete(pods, key, options)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _spend_budget(api: Api, pod: Object, key: Key, dry_run: bool) -> None:
    labels = pod["metadata"].get("labels")
    found = []
    for record in api.store.records(BUDGETS, key[0]):
        selector = requirements_of(dig(record.object, "spec", "selector"))
        if selector is not None and labels_match(selector, labels):
            found.append(record.object)
    if not found:
        return
    if len(found) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "InternalError", message)
    budget = found[0]
    status: Mapping[str, Any] = budget.get("status") or {}
    name = budget["metadata"]["name"]
    if not is_ready(pod) and _may_go_unready(budget, status):
        return
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", 10)
    if status.get("disruptionsAllowed", 0) < 1:
        healthy, wanted = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        raise _refused(f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently", None)
    disrupted = {
        pod_name: when
        for pod_name, when in (status.get("disruptedPods") or {}).items()
        if (moment := parsed_time(when)) and api.clock() - moment < DISRUPTION_TIMEOUT
    }
    if len(disrupted) > _MAX_DISRUPTED:
        raise StatusError(
            403, "Forbidden", "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if dry_run:
        return
    disrupted[key[1]] = timestamp(api.clock())
    spent = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted}
    budgets = api.registry.builtin(BUDGETS)
    caller = Caller(manager="kube-apiserver")
    api.writer.update(budgets, (key[0], name), lambda live: {**live, "status": spent}, caller, subresource="status")


def _may_go_unready(budget: Object, status: Mapping[str, Any]) -> bool:
    """spec.unhealthyPodEvictionPolicy; by default unready pods may go while the healthy ones suffice."""
    if dig(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _refused(why: str, retry_after: int | None) -> StatusError:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    causes = [{"reason": "DisruptionBudget", "message": why}]
    return StatusError(429, "TooManyRequests", message, details={"causes": causes}, retry_after=retry_after)
