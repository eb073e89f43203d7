"""RBAC objects and NetworkPolicies: stored as a user writes them.

Nobody enforces them here: this server has one user, who may do everything, and a NetworkPolicy is for network plugins.
"""

from collections.abc import Iterator

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds.strategy import Strategy

_GROUP = "rbac.authorization.k8s.io"


class RoleStrategy(Strategy):
    name_rule = "segment"


class BindingStrategy(Strategy):
    name_rule = "segment"

    def default(self, obj: Object) -> None:
        role = obj.get("roleRef")
        if isinstance(role, dict) and not role.get("apiGroup"):
            role["apiGroup"] = _GROUP
        for subject in obj.get("subjects") or ():
            if isinstance(subject, dict) and subject.get("kind") in ("User", "Group"):
                subject.setdefault("apiGroup", _GROUP)

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        if new.get("roleRef") != old.get("roleRef"):
            yield FieldError("roleRef", "cannot change roleRef", value=new.get("roleRef"))


class NetworkPolicyStrategy(Strategy):
    def default(self, obj: Object) -> None:
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return
        if not spec.get("policyTypes"):
            spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
        for direction in ("ingress", "egress"):
            for rule in spec.get(direction) or ():
                for port in rule.get("ports") or ():
                    port.setdefault("protocol", "TCP")
