"""Which node a pod fits on, and why the others refuse it: the filters of kube-scheduler that Evenflow's pods use."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Resources = dict[str, float]

_SUFFIX = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}


def quantity(text: object) -> float:
    """A Kubernetes quantity as a number; raises ValueError for anything else."""
    raw = str(text)
    for suffix in sorted(_SUFFIX, key=len, reverse=True):
        if raw.endswith(suffix):
            return float(raw.removesuffix(suffix)) * _SUFFIX[suffix]
    return float(raw)


def requested(pod: Mapping[str, Any]) -> Resources:
    """What the pod asks for: the sum over its containers, or an init container's share where that is more."""
    spec = pod.get("spec", {})
    total: Resources = {"pods": 1.0}
    for container in spec.get("containers", []):
        for name, amount in _requests(container).items():
            total[name] = total.get(name, 0.0) + amount
    for container in spec.get("initContainers", []):
        for name, amount in _requests(container).items():
            total[name] = max(total.get(name, 0.0), amount)
    return total


def _requests(container: Mapping[str, Any]) -> Resources:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in merged.items()}


def holds_resources(pod: Mapping[str, Any]) -> bool:
    """A bound pod holds its resources until it has ended or its object is gone, also while it terminates."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def used_by(pods: Iterable[Mapping[str, Any]]) -> dict[str, Resources]:
    """Per node name, the sum of what its bound pods hold."""
    used: dict[str, Resources] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if not node or not holds_resources(pod):
            continue
        total = used.setdefault(node, {})
        for name, amount in requested(pod).items():
            total[name] = total.get(name, 0.0) + amount
    return used


def choose_node(
    pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], used: Mapping[str, Resources]
) -> tuple[str | None, str]:
    """The node with most room for the pod's scarcest resource, or None with the scheduler's message."""
    wanted = requested(pod)
    refusals: Counter[str] = Counter()
    best: tuple[float, str] | None = None
    for node in nodes:
        name = node["metadata"]["name"]
        reason = _refusal(pod, node, wanted, used.get(name, {}))
        if reason is not None:
            refusals.update(reason)
            continue
        candidate = (-_tightness(node, wanted, used.get(name, {})), name)
        if best is None or candidate[0] > best[0]:
            best = candidate
    if best is not None:
        return best[1], ""
    details = ", ".join(f"{count} {text}" for text, count in sorted(refusals.items()))
    return None, f"0/{len(nodes)} nodes are available: {details}." if nodes else "no nodes available to schedule pods"


def _tightness(node: Mapping[str, Any], wanted: Resources, used: Resources) -> float:
    allocatable = node.get("status", {}).get("allocatable", {})
    shares = [
        (used.get(name, 0.0) + amount) / max(quantity(allocatable.get(name, 0)), 1e-9)
        for name, amount in wanted.items()
        if amount > 0
    ]
    return max(shares, default=0.0)


def _refusal(pod: Mapping[str, Any], node: Mapping[str, Any], wanted: Resources, used: Resources) -> list[str] | None:
    spec = pod.get("spec", {})
    labels = {**(node["metadata"].get("labels") or {}), "metadata.name": node["metadata"]["name"]}
    if node.get("spec", {}).get("unschedulable") and not _tolerated(
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, spec.get("tolerations", [])
    ):
        return ["node(s) were unschedulable"]
    for taint in node.get("spec", {}).get("taints", []) or []:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerated(taint, spec.get("tolerations", [])):
            return [f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value', '')}}}"]
    if not _selected(spec, labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    allocatable = node.get("status", {}).get("allocatable", {})
    missing = [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in wanted.items()
        if amount > 0 and used.get(name, 0.0) + amount > quantity(allocatable.get(name, 0)) + 1e-9
    ]
    return missing or None


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for toleration in tolerations or []:
        key, operator = toleration.get("key"), toleration.get("operator", "Equal")
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        if operator == "Exists" and key in (None, "", taint.get("key")):
            return True
        if key == taint.get("key") and toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def _selected(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(
        all(
            _matches(expression, labels)
            for expression in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
        )
        for term in required.get("nodeSelectorTerms", [])
    )


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    value = labels.get(key)
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and values:
            left, right = float(value), float(values[0])
            return left > right if operator == "Gt" else left < right
        case _:
            return False


def percent_or_count(value: object, total: int, *, round_up: bool) -> int:
    """An int-or-percent field (`1`, `"25%"`) as a count of `total`."""
    if isinstance(value, str) and value.endswith("%"):
        share = float(value[:-1]) / 100.0 * total
        return math.ceil(share) if round_up else math.floor(share)
    return int(str(value))
