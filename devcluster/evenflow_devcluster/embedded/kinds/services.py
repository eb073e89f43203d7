"""Services: cluster addresses, defaults and the rules on ports."""

import ipaddress
import random
from collections.abc import Iterator, Mapping
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError, unsupported
from evenflow_devcluster.embedded.jsonvalues import Object, dig
from evenflow_devcluster.embedded.kinds.strategy import Strategy

_NETWORK = ipaddress.ip_network("127.78.0.0/16")


class AddressPool:
    """Cluster addresses in 127.78.0.0/16. Several clusters may share a computer: each starts at a place of its own,
    whatever their seeds.
    """

    def __init__(self, rng: random.Random) -> None:
        self._size = _NETWORK.num_addresses - 2
        self._next = rng.randrange(self._size)
        self._taken: set[str] = set()

    def take(self) -> str:
        """The next free address. Raises LookupError if all 65,534 are taken."""
        for _ in range(self._size):
            address = str(_NETWORK[1 + self._next])
            self._next = (self._next + 1) % self._size
            if address not in self._taken:
                self._taken.add(address)
                return address
        raise LookupError("no free cluster address is left in 127.78.0.0/16: delete services")

    def claim(self, address: str) -> bool:
        """Whether `address` belongs to the network and was free; it is taken now."""
        try:
            inside = ipaddress.ip_address(address) in _NETWORK
        except ValueError:
            return False
        if not inside or address in self._taken:
            return False
        self._taken.add(address)
        return True

    def release(self, address: str) -> None:
        self._taken.discard(address)


class ServiceStrategy(Strategy):
    name_rule = "label"  # since 1.36 also one that begins with a digit

    def default(self, obj: Object) -> None:
        spec = obj.setdefault("spec", {})
        if not isinstance(spec, dict):
            return
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports") or ():
            port.setdefault("protocol", "TCP")
            if "targetPort" not in port and "port" in port:
                port["targetPort"] = port["port"]
        if spec["type"] == "ExternalName":
            return
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")

    def prepare_create(self, obj: Object) -> None:
        kind = dig(obj, "spec", "type")
        if kind in ("NodePort", "LoadBalancer"):
            raise unsupported(f"services of type {kind}; use ClusterIP")
        obj["status"] = {"loadBalancer": {}}

    def prepare_update(self, new: Object, old: Object, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        before = old["spec"]
        spec = new.get("spec")
        if isinstance(spec, dict) and "ExternalName" not in (spec.get("type"), before.get("type")):
            for key in ("clusterIP", "clusterIPs"):
                if not spec.get(key) and key in before:
                    spec[key] = before[key]

    def validate(self, obj: Object) -> Iterator[FieldError]:
        spec = obj["spec"]
        kind = spec.get("type")
        if kind not in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"):
            listed = '"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"'
            yield FieldError("spec.type", f"supported values: {listed}", "NotSupported", kind)
        ports = spec.get("ports") or []
        if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
            yield FieldError("spec.ports", "", "Required")
        names: set[str] = set()
        for index, port in enumerate(ports):
            path = f"spec.ports[{index}]"
            number = port.get("port")
            if not isinstance(number, int) or not 1 <= number <= 65535:
                yield FieldError(f"{path}.port", "must be between 1 and 65535, inclusive", value=number)
            name = port.get("name", "")
            if len(ports) > 1 and not name:
                yield FieldError(f"{path}.name", "", "Required")
            elif name in names:
                yield FieldError(f"{path}.name", "", "Duplicate", name)
            names.add(name)

    def validate_update(self, new: Object, old: Object, subresource: str) -> Iterator[FieldError]:
        spec, before = new["spec"], old["spec"]
        if "ExternalName" in (spec.get("type"), before.get("type")):
            return
        if spec.get("clusterIP") != before.get("clusterIP"):
            message = "may not change once set"
            yield FieldError("spec.clusterIPs[0]", message, value=[spec.get("clusterIP", "")])


def allocate(service: Object, pool: AddressPool) -> Iterator[FieldError]:
    """Give a new service its address, or the one that it asks for if that is free."""
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return
    wanted = spec.get("clusterIP") or next(iter(spec.get("clusterIPs") or ()), "")
    if wanted and wanted != "None" and not pool.claim(wanted):
        message = "provided IP is already allocated or not in 127.78.0.0/16"
        yield FieldError("spec.clusterIPs", message, value=[wanted])
        return
    spec["clusterIP"] = wanted or pool.take()
    spec["clusterIPs"] = [spec["clusterIP"]]


def release(service: Mapping[str, Any], pool: AddressPool) -> None:
    address = service.get("spec", {}).get("clusterIP", "")
    if address and address != "None":
        pool.release(address)
