"""What Kubernetes checks of a pod's resources, tolerations and addresses."""

import ipaddress
from collections.abc import Iterator
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.syntax.quantities import quantity


def resource_errors(resources: Object, path: str) -> Iterator[FieldError]:
    """Extended resources (`nvidia.com/gpu`) are whole, and requested exactly as limited; others at most as limited."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if "/" in name and not quantity(amount).is_integer():
                yield FieldError(f"{path}.{part}[{name}]", "must be an integer", value=amount)
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None and "/" in name:
            yield FieldError(f"{path}.limits", "Limit must be set for non overcommitable resources", "Required")
        elif limit is not None and "/" in name and amount != limit:
            yield FieldError(f"{path}.requests", f"must be equal to {name} limit of {limit}", value=amount)
        elif limit is not None and quantity(amount) > quantity(limit):
            message = f"must be less than or equal to {name} limit of {limit}"
            yield FieldError(f"{path}.requests", message, value=amount)


def toleration_errors(tolerations: list[Object]) -> Iterator[FieldError]:
    for index, toleration in enumerate(tolerations):
        effect = toleration.get("effect", "")
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield FieldError(f"spec.tolerations[{index}].effect", message, value=effect)


def address_errors(status: Object) -> Iterator[FieldError]:
    for index, entry in enumerate(status.get("podIPs") or ()):
        if not _is_address(entry.get("ip")):
            message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            yield FieldError(f"status.podIPs[{index}]", message, value=entry.get("ip"))


def _is_address(text: Any) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
