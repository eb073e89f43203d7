"""Pods: Kubernetes' defaults, the rules worth having here, and which parts of a spec may change."""

from collections.abc import Iterator, Mapping
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object, copied, dig
from evenflow_devcluster.embedded.kinds.pod_rules import address_errors, resource_errors, toleration_errors
from evenflow_devcluster.embedded.kinds.strategy import Strategy
from evenflow_devcluster.embedded.syntax.naming import name_errors
from evenflow_devcluster.embedded.syntax.quantities import canonize

_CONTAINER_LISTS = ("initContainers", "containers")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def is_ready(pod: Mapping[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in dig(pod, "status", "conditions") or ())


def ended(pod: Mapping[str, Any]) -> bool:
    """Whether its containers have ended for good; a pod that is being deleted may still run."""
    return dig(pod, "status", "phase") in ("Succeeded", "Failed")


class PodStrategy(Strategy):
    def default(self, obj: Object) -> None:
        spec = obj.get("spec")
        if isinstance(spec, dict):
            _default_spec(spec)

    def prepare_create(self, obj: Object) -> None:
        status: Object = {"phase": "Pending"}
        spec = obj.get("spec")
        if isinstance(spec, dict):
            _admit(spec)
            status["qosClass"] = _qos(spec)
        obj["status"] = status

    def prepare_update(self, new: Object, old: Object, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if subresource == "status":
            new["metadata"]["ownerReferences"] = old["metadata"].get("ownerReferences", [])
            if not new["metadata"]["ownerReferences"]:
                del new["metadata"]["ownerReferences"]
            qos = dig(old, "status", "qosClass")
            if qos is not None and isinstance(new.get("status"), dict):
                new["status"].setdefault("qosClass", qos)

    def validate(self, obj: Object) -> Iterator[FieldError]:
        spec = obj.get("spec") or {}
        if not spec.get("containers"):
            yield FieldError("spec.containers", "", "Required")
        names: set[str] = set()
        volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
        for field in _CONTAINER_LISTS:
            for index, container in enumerate(spec.get(field) or ()):
                yield from _container_errors(container, f"spec.{field}[{index}]", names, volumes)
        yield from _choice(spec, "restartPolicy", ("Always", "OnFailure", "Never"))
        yield from _choice(spec, "dnsPolicy", ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"))
        grace = spec.get("terminationGracePeriodSeconds", 0)
        if isinstance(grace, int) and grace < 0:
            yield FieldError("spec.terminationGracePeriodSeconds", "must be greater than or equal to 0", value=grace)
        yield from toleration_errors(spec.get("tolerations") or [])
        yield from address_errors(obj.get("status") or {})

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        if subresource or new.get("spec") == old.get("spec"):
            return
        if _frozen_part(new["spec"], old["spec"]) != _frozen_part(old["spec"], old["spec"]):
            yield FieldError("spec", _IMMUTABLE, "Forbidden")


def _frozen_part(spec: Object, reference: Object) -> Object:
    frozen = copied(spec)
    for field in _CONTAINER_LISTS:
        for container in frozen.get(field) or ():
            container.pop("image", None)
    frozen.pop("activeDeadlineSeconds", None)
    before = reference.get("tolerations") or []
    if all(toleration in (spec.get("tolerations") or []) for toleration in before):
        frozen.pop("tolerations", None)
    return frozen


def _default_spec(spec: Object) -> None:
    for key, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("securityContext", {}),
        ("schedulerName", "default-scheduler"),
    ):
        if key not in spec:
            spec[key] = copied(value)
    for field in _CONTAINER_LISTS:
        for container in spec.get(field) or ():
            if isinstance(container, dict):
                _default_container(container)
    for volume in spec.get("volumes") or ():
        if isinstance(volume, dict):
            _default_volume(volume)


def _default_container(container: Object) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    if "imagePullPolicy" not in container:
        image = container.get("image", "")
        tag = image.rpartition("/")[2].partition(":")[2] if isinstance(image, str) else ""
        latest = "@" not in str(image) and tag in ("", "latest")
        container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        source = dig(variable, "valueFrom", "fieldRef")
        if isinstance(source, dict):
            source.setdefault("apiVersion", "v1")
    for name in _PROBES:
        probe = container.get(name)
        if isinstance(probe, dict):
            for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1)):
                probe.setdefault(key, value)
            probe.setdefault("failureThreshold", 3)
            _default_http(probe.get("httpGet"))
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _default_http(hook.get("httpGet"))
    _default_resources(container["resources"])


def _default_http(action: Any) -> None:
    if isinstance(action, dict):
        action.setdefault("path", "/")
        action.setdefault("scheme", "HTTP")


def _default_resources(resources: Any) -> None:
    if not isinstance(resources, dict):
        return
    for part in ("limits", "requests"):
        amounts = resources.get(part)
        if isinstance(amounts, dict):
            canonize(amounts, "Pod")
    limits = resources.get("limits")
    if isinstance(limits, dict) and limits:
        requests = resources.setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)


def _default_volume(volume: Object) -> None:
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        source = volume.get(kind)
        if isinstance(source, dict):
            source.setdefault("defaultMode", 420)
    items = list(dig(volume, "downwardAPI", "items") or ())
    for source in dig(volume, "projected", "sources") or ():
        items += dig(source, "downwardAPI", "items") or ()
    for item in items:
        if isinstance(item.get("fieldRef"), dict):
            item["fieldRef"].setdefault("apiVersion", "v1")


def _admit(spec: Object) -> None:
    """What the admission plugins Priority, ServiceAccount and DefaultTolerationSeconds add."""
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("enableServiceLinks", True)
    account = spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", account)
    tolerations = spec.setdefault("tolerations", [])
    for taint in _LOST_NODE_TAINTS:
        if not any(_tolerates(toleration, taint) for toleration in tolerations if isinstance(toleration, dict)):
            tolerations.append({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def _tolerates(toleration: Object, taint: str) -> bool:
    return bool(toleration.get("effect", "NoExecute") == "NoExecute" and toleration.get("key", taint) == taint)


def _qos(spec: Object) -> str:
    containers = [c for field in _CONTAINER_LISTS for c in spec.get(field) or () if isinstance(c, dict)]
    resources = [container.get("resources") or {} for container in containers]
    compute = [
        {
            part: {k: v for k, v in (r.get(part) or {}).items() if k in ("cpu", "memory")}
            for part in ("limits", "requests")
        }
        for r in resources
    ]
    if all(not r["limits"] and not r["requests"] for r in compute):
        return "BestEffort"
    if all(set(r["limits"]) == {"cpu", "memory"} and r["requests"] in ({}, r["limits"]) for r in compute):
        return "Guaranteed"
    return "Burstable"


def _container_errors(container: Object, path: str, names: set[str], volumes: set[Any]) -> Iterator[FieldError]:
    name = container.get("name")
    if not name:
        yield FieldError(f"{path}.name", "", "Required")
    else:
        yield from name_errors(str(name), "label", f"{path}.name")
        if name in names:
            yield FieldError(f"{path}.name", "", "Duplicate", name)
        names.add(str(name))
    if not container.get("image"):
        yield FieldError(f"{path}.image", "", "Required")
    for index, port in enumerate(container.get("ports") or ()):
        number = port.get("containerPort")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            yield FieldError(
                f"{path}.ports[{index}].containerPort", "must be between 1 and 65535, inclusive", value=number
            )
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            yield FieldError(f"{path}.volumeMounts[{index}].name", "", "NotFound", mount.get("name"))
    yield from resource_errors(container.get("resources") or {}, f"{path}.resources")


def _choice(spec: Object, field: str, allowed: tuple[str, ...]) -> Iterator[FieldError]:
    value = spec.get(field)
    if value is not None and value not in allowed:
        listed = ", ".join(f'"{choice}"' for choice in allowed)
        yield FieldError(f"spec.{field}", f"supported values: {listed}", "NotSupported", value)
