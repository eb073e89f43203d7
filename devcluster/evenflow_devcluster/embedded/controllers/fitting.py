"""Which node a pod fits on, and why the others refuse it: the filters of kube-scheduler that Evenflow's pods use."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from evenflow_devcluster.embedded.syntax.quantities import quantity

Resources = dict[str, float]


def requested(pod: Mapping[str, Any]) -> Resources:
    """What the pod asks for: its containers and sidecars together, or the peak of its init phase where that is more."""
    spec = pod.get("spec", {})
    total: Resources = {}
    for container in spec.get("containers", []):
        _add(total, _requests(container))
    sidecars: Resources = {}
    peak: Resources = {}
    for container in spec.get("initContainers", []) or []:
        wanted = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            _add(total, wanted)
            wanted = {}
        for name in {*sidecars, *wanted}:
            peak[name] = max(peak.get(name, 0.0), sidecars.get(name, 0.0) + wanted.get(name, 0.0))
    for name, amount in peak.items():
        total[name] = max(total.get(name, 0.0), amount)
    _add(total, {name: quantity(amount) for name, amount in (spec.get("overhead") or {}).items()})
    return {**total, "pods": 1.0}


def _add(total: Resources, more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0.0) + amount


def _requests(container: Mapping[str, Any]) -> Resources:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in merged.items()}


class Allocations:
    """What bound pods hold, per node, until they have ended or are gone; a key names one pod."""

    def __init__(self) -> None:
        self.by_node: dict[str, Resources] = {}
        self._held: dict[Hashable, tuple[str, Resources]] = {}

    def take(self, key: Hashable, pod: Mapping[str, Any]) -> None:
        """Book a bound pod; its node and requests never change, so the first booking stands."""
        if key in self._held:
            return
        node, wanted = pod["spec"]["nodeName"], requested(pod)
        self._held[key] = (node, wanted)
        _add(self.by_node.setdefault(node, {}), wanted)

    def release(self, key: Hashable) -> bool:
        """Returns whether the pod held anything."""
        node, wanted = self._held.pop(key, ("", {}))
        if not node:
            return False
        _add(self.by_node[node], {name: -amount for name, amount in wanted.items()})
        return True


def choose_node(
    pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], used: Mapping[str, Resources]
) -> tuple[str | None, str]:
    """The node with most room for the pod's scarcest resource, or None with the scheduler's message."""
    if not nodes:
        return None, "no nodes available to schedule pods"
    wanted = requested(pod)
    refusals: Counter[str] = Counter()
    best: tuple[float, str] | None = None
    for node in nodes:
        name = node["metadata"]["name"]
        reasons = _refusals(pod, node, wanted, used.get(name, {}))
        if reasons:
            refusals.update(reasons)
            continue
        candidate = (-_tightness(node, wanted, used.get(name, {})), name)
        if best is None or candidate[0] > best[0]:
            best = candidate
    if best is not None:
        return best[1], ""
    details = ", ".join(sorted(f"{count} {text}" for text, count in refusals.items()))
    return None, f"0/{len(nodes)} nodes are available: {details}."


def _tightness(node: Mapping[str, Any], wanted: Resources, used: Resources) -> float:
    allocatable = node.get("status", {}).get("allocatable", {})
    shares = [
        (used.get(name, 0.0) + amount) / max(quantity(allocatable.get(name, 0)), 1e-9)
        for name, amount in wanted.items()
        if amount > 0
    ]
    return max(shares, default=0.0)


def _refusals(pod: Mapping[str, Any], node: Mapping[str, Any], wanted: Resources, used: Resources) -> list[str]:
    spec = pod.get("spec", {})
    tolerations = spec.get("tolerations") or []
    unschedulable = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if node.get("spec", {}).get("unschedulable") and not _tolerated(unschedulable, tolerations):
        return ["node(s) were unschedulable"]
    for taint in node.get("spec", {}).get("taints") or []:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerated(taint, tolerations):
            return ["node(s) had untolerated taint(s)"]
    if not _selected(spec, node["metadata"]):
        return ["node(s) didn't match Pod's node affinity/selector"]
    allocatable = node.get("status", {}).get("allocatable", {})
    return [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in wanted.items()
        if amount > 0 and used.get(name, 0.0) + amount > quantity(allocatable.get(name, 0)) + 1e-9
    ]


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for toleration in tolerations:
        key, operator = toleration.get("key"), toleration.get("operator") or "Equal"
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        if operator == "Exists" and key in (None, "", taint.get("key")):
            return True
        if operator == "Equal" and key == taint.get("key") and toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def _selected(spec: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    labels = metadata.get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": metadata["name"]}
    return any(_term_matches(term, labels, fields) for term in required.get("nodeSelectorTerms", []))


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """An empty term matches no node."""
    by_label, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not by_label and not by_field:
        return False
    return all(_matches(one, labels) for one in by_label) and all(_matches(one, fields) for one in by_field)


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    values = expression.get("values") or []
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator if value is not None and values:
            try:
                left, right = int(value), int(values[0])
            except ValueError:
                return False
            return left > right if operator == "Gt" else left < right
        case _:
            return False
