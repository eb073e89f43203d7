"""The subresources that aren't parts of their object: scale, binding, eviction."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from evenflow_devcluster.embedded.errors import (
    FieldError,
    StatusError,
    bad_request,
    conflict,
    invalid,
    success,
    unsupported,
)
from evenflow_devcluster.embedded.jsonvalues import Object, copied, dig, parsed_time, timestamp
from evenflow_devcluster.embedded.kinds.resources import Resource, Scale
from evenflow_devcluster.embedded.operations.api import APPLY, Api
from evenflow_devcluster.embedded.operations.deletion import DeleteOptions, options_from
from evenflow_devcluster.embedded.operations.writes import Caller
from evenflow_devcluster.embedded.schema.pruning import drop_nulls
from evenflow_devcluster.embedded.schema.structural import builtin
from evenflow_devcluster.embedded.schema.validation import validate
from evenflow_devcluster.embedded.store.memory import Key
from evenflow_devcluster.embedded.syntax.selectors import labels_match, requirements_of

_BUDGETS = "poddisruptionbudgets.policy"
_MAX_DISRUPTED = 2000
_BODIES = {
    "Binding": "io.k8s.api.core.v1.Binding",
    "Eviction": "io.k8s.api.policy.v1.Eviction",
    "Scale": "io.k8s.api.autoscaling.v1.Scale",
}


# --- scale ----------------------------------------------------------------------------------------------------


def scale_of(resource: Resource, obj: Object) -> Object:
    """autoscaling/v1 Scale. Raises 500 as the real server does if the object has no replicas."""
    paths = _scale_paths(resource)
    replicas = dig(obj, *paths.spec_replicas)
    if replicas is None:
        path = ".".join(("", *paths.spec_replicas))
        raise StatusError(
            500, "InternalError", f'Internal error occurred: the spec replicas field "{path}" does not exist'
        )
    status: Object = {"replicas": dig(obj, *paths.status_replicas) or 0}
    selector = dig(obj, *paths.selector) if paths.selector else None
    if selector:
        status["selector"] = selector
    metadata = obj["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": replicas},
        "status": status,
    }


def _scale_paths(resource: Resource) -> Scale:
    if resource.scale is None:
        raise StatusError(404, "NotFound", "the server could not find the requested resource")
    return resource.scale


def put_scale(api: Api, resource: Resource, key: Key, body: Object, caller: Caller) -> Object:
    return _write_scale(api, resource, key, lambda _: body, caller)


def patch_scale(api: Api, resource: Resource, key: Key, kind: str, patch: Any, caller: Caller) -> Object:
    if kind == APPLY:
        raise unsupported("server-side apply on /scale; use a merge patch or PUT")
    build = api.patcher(resource, kind, patch)
    return _write_scale(api, resource, key, build, caller)


def _write_scale(api: Api, resource: Resource, key: Key, build: Callable[[Object], Object], caller: Caller) -> Object:
    paths = _scale_paths(resource)

    def change(live: Object) -> Object:
        before = _scale_or_zero(resource, live)
        wanted = build(before)
        replicas = dig(wanted, "spec", "replicas") or 0
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
            error = FieldError("spec.replicas", "must be greater than or equal to 0", value=replicas)
            raise invalid("Scale", "autoscaling", key[1], [error])
        new = copied(live)
        node = new
        for step in paths.spec_replicas[:-1]:
            node = node.setdefault(step, {})
        node[paths.spec_replicas[-1]] = replicas
        for field in ("resourceVersion", "uid"):
            given = dig(wanted, "metadata", field)
            if given:
                new["metadata"][field] = given
        return new

    return scale_of(resource, api.writer.update(resource, key, change, caller, subresource="scale"))


def _scale_or_zero(resource: Resource, live: Object) -> Object:
    """A PUT or patch may set replicas for the first time."""
    try:
        return scale_of(resource, live)
    except StatusError:
        return {"metadata": {"name": live["metadata"]["name"]}, "spec": {"replicas": 0}}


# --- binding --------------------------------------------------------------------------------------------------


def bind(api: Api, key: Key, binding: Object, caller: Caller) -> Object:
    """Assign a pod to a node, once. 409 if it has a node already or is being deleted."""
    pods = _resource(api, "pods")
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


# --- eviction -------------------------------------------------------------------------------------------------


def evict(api: Api, key: Key, eviction: Object, caller: Caller) -> Object:
    """Delete a pod if its disruption budget allows it, else 429."""
    pods = _resource(api, "pods")
    pod = api.record(pods, key).object
    options = options_from(eviction.get("deleteOptions") or {})
    if caller.dry_run:
        options = DeleteOptions(options.grace, options.uid, options.version, options.propagation, True)
    finished = dig(pod, "status", "phase") in ("Succeeded", "Failed", "Pending")
    if not finished and "deletionTimestamp" not in pod["metadata"]:
        _spend_budget(api, pod, key, options.dry_run)
    if not options.dry_run and not finished:
        message = "Eviction API: evicting"
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": message,
        }
        _set_condition(api, pods, key, pod, caller, condition)
        options = DeleteOptions(options.grace, options.uid or pod["metadata"]["uid"], None, options.propagation)
    api.delete(pods, key, options)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _spend_budget(api: Api, pod: Object, key: Key, dry_run: bool) -> None:
    labels = pod["metadata"].get("labels")
    found = []
    for record in api.store.records(_BUDGETS, key[0]):
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
    if not _is_ready(pod) and _may_go_unready(budget, status):
        return
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", 10)
    if status.get("disruptionsAllowed", 0) < 1:
        healthy, wanted = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        raise _refused(f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently", None)
    disrupted = {
        pod_name: when
        for pod_name, when in (status.get("disruptedPods") or {}).items()
        if (moment := parsed_time(when)) and api.clock() - moment < timedelta(minutes=2)
    }
    if len(disrupted) > _MAX_DISRUPTED:
        raise StatusError(
            403, "Forbidden", "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if dry_run:
        return
    disrupted[key[1]] = timestamp(api.clock())
    spent = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted}
    budgets = _resource(api, _BUDGETS)
    caller = Caller(manager="kube-apiserver")
    api.writer.update(budgets, (key[0], name), lambda live: {**live, "status": spent}, caller, subresource="status")


def _is_ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in dig(pod, "status", "conditions") or ())


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


def _resource(api: Api, qualified: str) -> Resource:
    resource = api.registry.named(qualified)
    assert resource is not None, qualified
    return resource


def checked_body(body: Any, kind: str) -> Object:
    """The body of a binding, eviction or scale. Raises 400 if it is of another kind."""
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a {kind}")
    if body.get("kind", kind) != kind:
        raise bad_request(f"the body must be a {kind}, not {body.get('kind')!r}")
    drop_nulls(body)
    for error in validate(body, builtin(_BODIES[kind])):
        if error.kind == "TypeInvalid":
            raise bad_request(f"{kind} cannot be handled as a {kind}: {error}")
    return body
