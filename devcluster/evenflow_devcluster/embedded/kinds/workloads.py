"""Deployments and ReplicaSets: their defaults; what their controllers here can't do is refused when it is asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError, unsupported
from evenflow_devcluster.embedded.jsonvalues import Object, dig
from evenflow_devcluster.embedded.kinds.pods import PodStrategy
from evenflow_devcluster.embedded.kinds.resources import Resource
from evenflow_devcluster.embedded.kinds.strategy import Strategy
from evenflow_devcluster.embedded.syntax.selectors import labels_match, requirements_of

DEPLOYMENTS = "deployments.apps"
REPLICA_SETS = "replicasets.apps"


def controller_of(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner that manages the object."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


class ReplicaSetStrategy(Strategy):
    def __init__(self, resource: Resource) -> None:
        super().__init__(resource)
        self._pods = PodStrategy(resource)

    def default(self, obj: Object) -> None:
        spec = obj.get("spec")
        if isinstance(spec, dict):
            spec.setdefault("replicas", 1)
            if isinstance(spec.get("template"), dict):
                self._pods.default(spec["template"])

    def validate(self, obj: Object) -> Iterator[FieldError]:
        spec = obj.get("spec") or {}
        if spec.get("minReadySeconds"):
            raise unsupported(f"{self.resource.plural} with minReadySeconds")
        replicas = spec.get("replicas")
        if isinstance(replicas, int) and replicas < 0:
            yield FieldError("spec.replicas", "must be greater than or equal to 0", value=replicas)
        template = spec.get("template") or {}
        requirements = requirements_of(spec.get("selector"))
        labels = dig(template, "metadata", "labels") or {}
        if not requirements:
            message = "empty selector is invalid for deployment"
            yield FieldError("spec.selector", message, value=spec.get("selector"))
        elif not labels_match(requirements, labels):
            message = "`selector` does not match template `labels`"
            yield FieldError("spec.template.metadata.labels", message, value=labels)
        for error in self._pods.validate(template):
            yield replace(error, path=f"spec.template.{error.path}")
        policy = dig(template, "spec", "restartPolicy")
        if policy in ("OnFailure", "Never"):
            listed = 'supported values: "Always"'
            yield FieldError("spec.template.spec.restartPolicy", listed, "NotSupported", policy)

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        if dig(new, "spec", "selector") != dig(old, "spec", "selector"):
            yield FieldError("spec.selector", "field is immutable", value=dig(new, "spec", "selector"))


class DeploymentStrategy(ReplicaSetStrategy):
    def default(self, obj: Object) -> None:
        super().default(obj)
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)
        strategy = spec.setdefault("strategy", {})
        if isinstance(strategy, dict) and strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            if isinstance(rolling, dict):
                rolling.setdefault("maxUnavailable", "25%")
                rolling.setdefault("maxSurge", "25%")

    def validate(self, obj: Object) -> Iterator[FieldError]:
        spec = obj.get("spec") or {}
        if spec.get("paused"):
            raise unsupported("paused deployments")
        kind = dig(spec, "strategy", "type")
        if kind == "Recreate":
            raise unsupported("deployments of strategy Recreate; use RollingUpdate")
        if kind != "RollingUpdate":
            listed = 'supported values: "Recreate", "RollingUpdate"'
            yield FieldError("spec.strategy.type", listed, "NotSupported", kind)
        yield from super().validate(obj)
