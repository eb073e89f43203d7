"""Who owns which field: `metadata.managedFields`, kept on every write as the real API server does."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.patching.fieldsets import Path, from_fields_v1, to_fields_v1, well_formed

APPLY = "Apply"
UPDATE = "Update"


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of managedFields without its fields; the three together identify it."""

    manager: str
    operation: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Ownership:
    paths: frozenset[Path]
    api_version: str
    time: str


Managed = dict[Owner, Ownership]


def read(entries: Any) -> Managed:
    """The entries that can be understood; a client may have written anything."""
    found: Managed = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("fieldsV1"), Mapping):
            continue
        paths = frozenset(from_fields_v1(entry["fieldsV1"]))
        if not all(well_formed(path) for path in paths):
            continue
        owner = Owner(str(entry.get("manager", "")), str(entry.get("operation", "")), str(entry.get("subresource", "")))
        found[owner] = Ownership(paths, str(entry.get("apiVersion", "")), str(entry.get("time", "")))
    return found


def write(managed: Managed) -> list[Object]:
    """Applies first, then by time: the order in which Kubernetes lists the entries."""
    entries = []
    for owner, owned in sorted(managed.items(), key=lambda pair: (pair[0].operation, pair[1].time, pair[0].manager)):
        if not owned.paths:
            continue
        entry: Object = {"manager": owner.manager, "operation": owner.operation, "apiVersion": owned.api_version}
        if owned.time:
            entry["time"] = owned.time
        entry["fieldsType"] = "FieldsV1"
        entry["fieldsV1"] = to_fields_v1(owned.paths)
        if owner.subresource:
            entry["subresource"] = owner.subresource
        entries.append(entry)
    return entries


def after_update(
    managed: Managed, owner: Owner, old: Mapping[Path, Any], new: Mapping[Path, Any], api_version: str, now: str
) -> Managed:
    """The writer gains what it changed; everybody else loses that, and what no longer exists."""
    missing = object()
    changed = frozenset(path for path, value in new.items() if old.get(path, missing) != value)
    removed = frozenset(path for path in old if path not in new)
    if not changed and not removed:
        return managed
    result: Managed = {}
    for other, owned in managed.items():
        kept = owned.paths - removed - (changed if other != owner else frozenset())
        if kept:
            result[other] = replace(owned, paths=kept)
    mine = result[owner].paths if owner in result else frozenset()
    if mine | changed:
        result[owner] = Ownership(mine | changed, api_version, now)
    return result
