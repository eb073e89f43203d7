"""Faults that only several pools together have: a name given twice, and Services that would be one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenflow_contract.labels import service_name
from evenflow_operator.api.errors import FieldError
from evenflow_operator.api.messages import shown
from evenflow_operator.api.names import DEFAULT_CLASS


@dataclass(frozen=True, slots=True)
class PoolSource:
    """One pool manifest as written, faults and all. `document` counts from 1."""

    file: str
    document: int
    manifest: Mapping[str, Any]

    def where(self) -> str:
        return f"{self.file}, document {self.document}"


def clashes(sources: Sequence[PoolSource]) -> Iterator[tuple[PoolSource, FieldError]]:
    """Each clash once, at the later of the two pools. Manifests without a readable name are passed over."""
    pools: dict[tuple[str, str], PoolSource] = {}
    services: dict[tuple[str, str], tuple[str, PoolSource]] = {}
    for source in sources:
        metadata = source.manifest.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if not isinstance(metadata, Mapping) or not isinstance(name, str):
            continue
        namespace = str(metadata.get("namespace") or "default")
        first = pools.setdefault((namespace, name), source)
        if first is not source:
            message = f"found {shown(f'{namespace}/{name}')} a second time, first in {first.where()}"
            yield source, FieldError("metadata.name", f"{message}; rename or remove one of the two")
            continue
        for traffic_class, path in _classes(source.manifest):
            service = service_name(name, traffic_class)
            owner, other = services.setdefault((namespace, service), (name, source))
            if other is not source:
                message = f"found Service {shown(service)} a second time, pool {shown(owner)} in {other.where()} has it"
                yield source, FieldError(path, f"{message}; rename the pool or the class, or use two namespaces")


def _classes(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Classes with a Service, and the field that names it."""
    yield DEFAULT_CLASS, "metadata.name"
    spec = manifest.get("spec")
    classes = spec.get("trafficClasses") if isinstance(spec, Mapping) else None
    for index, entry in enumerate(classes if isinstance(classes, list) else []):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and name != DEFAULT_CLASS:
            yield name, f"spec.trafficClasses[{index}].name"
