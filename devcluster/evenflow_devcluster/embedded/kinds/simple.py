"""The strategies of the built-in kinds that need few rules of their own."""

import base64
import binascii
import re
from collections.abc import Iterator

from evenflow_devcluster.embedded.errors import FieldError, bad_request
from evenflow_devcluster.embedded.jsonvalues import Object, dig
from evenflow_devcluster.embedded.kinds.strategy import Strategy
from evenflow_devcluster.embedded.syntax.quantities import canonize

MAX_DATA_BYTES = 1024 * 1024
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_NOT_READY_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


class NamespaceStrategy(Strategy):
    name_rule = "label"

    def default(self, obj: Object) -> None:
        labels = obj["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")
        obj.setdefault("spec", {})

    def prepare_create(self, obj: Object) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def prepare_update(self, new: Object, old: Object, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if subresource != "finalize":
            new["spec"] = old["spec"]


class NodeStrategy(Strategy):
    def default(self, obj: Object) -> None:
        obj.setdefault("spec", {})
        for part in ("capacity", "allocatable"):
            amounts = dig(obj, "status", part)
            if isinstance(amounts, dict):
                canonize(amounts, "Node")

    def prepare_create(self, obj: Object) -> None:
        # A kubelet registers its node with capacity and addresses, so the status of a new node stays;
        # and, as the admission plugin TaintNodesByCondition has it, the node is not ready until that taint is removed.
        taints = obj.setdefault("spec", {}).setdefault("taints", [])
        if not any(taint.get("key") == _NOT_READY_TAINT["key"] for taint in taints):
            taints.append(dict(_NOT_READY_TAINT))


class DataStrategy(Strategy):
    """ConfigMaps and Secrets."""

    def default(self, obj: Object) -> None:
        if self.resource.kind == "Secret":
            obj.setdefault("type", "Opaque")
            plain = obj.pop("stringData", None)
            if isinstance(plain, dict):
                data = obj.setdefault("data", {})
                for key, value in plain.items():
                    data[key] = base64.b64encode(str(value).encode()).decode()

    def validate(self, obj: Object) -> Iterator[FieldError]:
        size = 0
        for field in ("data", "binaryData"):
            encoded_field = field == "binaryData" or self.resource.kind == "Secret"
            for key, value in (obj.get(field) or {}).items():
                if not _DATA_KEY.fullmatch(key):
                    rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                    yield FieldError(f"{field}[{key}]", rule, value=key)
                size += len(value)
                if encoded_field and not _is_base64(value):
                    yield FieldError(f"{field}[{key}]", "must be base64", value="…")
        if size > MAX_DATA_BYTES:
            yield FieldError("data", f"may not be more than {MAX_DATA_BYTES} bytes", "TooLong")

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        if self.resource.kind == "Secret" and new.get("type") != old.get("type"):
            yield FieldError("type", "field is immutable", value=new.get("type"))
        if old.get("immutable") and any(new.get(key) != old.get(key) for key in ("data", "binaryData", "immutable")):
            yield FieldError("data", "field is immutable when `immutable` is set", "Forbidden")


def _is_base64(value: str) -> bool:
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error:
        return False
    return True


class EventStrategy(Strategy):
    def validate(self, obj: Object) -> Iterator[FieldError]:
        involved = dig(obj, "involvedObject", "namespace") or "default"
        if obj["metadata"].get("namespace") != involved:
            yield FieldError("involvedObject.namespace", "does not match event.namespace", value=involved)


class EndpointSliceStrategy(Strategy):
    def validate(self, obj: Object) -> Iterator[FieldError]:
        if obj.get("addressType") not in ("IPv4", "IPv6", "FQDN"):
            listed = '"FQDN", "IPv4", "IPv6"'
            yield FieldError("addressType", f"supported values: {listed}", "NotSupported", obj.get("addressType"))
        if len(obj.get("endpoints") or ()) > 1000:
            yield FieldError("endpoints", "must have at most 1000 items", "TooMany", len(obj["endpoints"]))

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        if new.get("addressType") != old.get("addressType"):
            yield FieldError("addressType", "field is immutable", value=new.get("addressType"))


class LeaseStrategy(Strategy):
    def default(self, obj: Object) -> None:
        for field in ("acquireTime", "renewTime"):
            moment = dig(obj, "spec", field)
            if isinstance(moment, str) and not _MICRO_TIME.fullmatch(moment):
                raise bad_request(
                    f'Lease in version "v1" cannot be handled as a Lease: parsing time "{moment}" as '
                    '"2006-01-02T15:04:05.000000Z07:00": cannot parse it'
                )

    def validate(self, obj: Object) -> Iterator[FieldError]:
        transitions = dig(obj, "spec", "leaseTransitions")
        if transitions is not None and transitions < 0:
            yield FieldError("spec.leaseTransitions", "must be greater than or equal to 0", value=transitions)
        duration = dig(obj, "spec", "leaseDurationSeconds")
        if duration is not None and duration <= 0:
            yield FieldError("spec.leaseDurationSeconds", "must be greater than 0", value=duration)
