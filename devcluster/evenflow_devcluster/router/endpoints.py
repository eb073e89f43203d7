"""Services and EndpointSlices as a table: which addresses stand behind each cluster address and port. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

SERVICE_LABEL = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where one pod listens."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, order=True)
class Frontend:
    """Where one port of one Service listens, and which Service that is."""

    cluster_ip: str
    port: int
    service: str


Table = Mapping[Frontend, tuple[Endpoint, ...]]


def build_table(services: Iterable[Json], slices: Iterable[Json]) -> dict[Frontend, tuple[Endpoint, ...]]:
    """Every TCP port of every Service with a cluster address, with its ready endpoints in a stable order."""
    by_service: dict[str, list[Json]] = {}
    for item in slices:
        owner = (item["metadata"].get("labels") or {}).get(SERVICE_LABEL)
        if owner and item.get("addressType", "IPv4") == "IPv4":
            by_service.setdefault(f"{item['metadata']['namespace']}/{owner}", []).append(item)
    table = {}
    for service in services:
        spec = service.get("spec") or {}
        address = spec.get("clusterIP") or "None"
        if address == "None":
            continue
        key = f"{service['metadata']['namespace']}/{service['metadata']['name']}"
        for port in spec.get("ports") or []:
            if port.get("protocol", "TCP") == "TCP":
                found = _ready(by_service.get(key, []), port.get("name") or "")
                table[Frontend(address, int(port["port"]), key)] = found
    return table


def _ready(slices: Iterable[Json], port_name: str) -> tuple[Endpoint, ...]:
    found = set()
    for item in slices:
        numbers = [int(port["port"]) for port in item.get("ports") or [] if (port.get("name") or "") == port_name]
        for endpoint in item.get("endpoints") or []:
            # Absent means unknown, which the API documents to be read as ready.
            if (endpoint.get("conditions") or {}).get("ready", True) is False:
                continue
            found |= {Endpoint(address, number) for address in endpoint.get("addresses") or [] for number in numbers}
    return tuple(sorted(found))
