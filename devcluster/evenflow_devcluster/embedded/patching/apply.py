"""Server-side apply: merge by ownership, with conflicts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.jsonvalues import Object, copied
from evenflow_devcluster.embedded.patching.fieldsets import ITEM, Path, field_values, item_element, readable
from evenflow_devcluster.embedded.patching.ownership import APPLY, Managed, Owner, Ownership
from evenflow_devcluster.embedded.schema.structural import ANY, Schema, object_meta


def apply(
    live: Object,
    config: Object,
    schema: Schema,
    managed: Managed,
    owner: Owner,
    *,
    api_version: str,
    now: str,
    force: bool,
    skip: tuple[str, ...] = (),
) -> tuple[Object, Managed]:
    """The merged object and the new owners. Raises 409 naming every manager and field in conflict unless `force`."""
    wanted = field_values(config, schema, skip=skip)
    current = field_values(live, schema, skip=skip)
    contested = _contested(wanted, current, managed, owner)
    if contested and not force:
        raise _conflict(contested, managed)
    merged = _merge_root(live, config, schema, skip)
    previous = managed[owner].paths if owner in managed else frozenset()
    others = {path for other, owned in managed.items() if other != owner for path in owned.paths}
    dropped = [path for path in previous if path not in wanted and not _held(path, others)]
    # Shortest first: an item goes whole, before its key fields, by which it is found.
    for path in sorted(dropped, key=len):
        _remove(merged, schema, path, root=True)
    result: Managed = {}
    for other, owned in managed.items():
        kept = owned.paths - frozenset(contested.get(other, ())) - frozenset(dropped)
        if other != owner and kept:
            result[other] = replace(owned, paths=kept)
    paths = frozenset(wanted)
    same = owner in managed and managed[owner].paths == paths and managed[owner].api_version == api_version
    result[owner] = managed[owner] if same else Ownership(paths, api_version, now)
    return merged, result


def _contested(
    wanted: Mapping[Path, Any], current: Mapping[Path, Any], managed: Managed, owner: Owner
) -> dict[Owner, list[Path]]:
    missing = object()
    changed = {path for path, value in wanted.items() if value is not ITEM and current.get(path, missing) != value}
    found: dict[Owner, list[Path]] = {}
    for other, owned in managed.items():
        if other != owner and not (other.manager == owner.manager and other.operation == APPLY):
            overlap = sorted(changed & owned.paths)
            if overlap:
                found[other] = overlap
    return found


def _conflict(contested: Mapping[Owner, list[Path]], managed: Managed) -> StatusError:
    causes, lines, count = [], [], 0
    for owner, paths in contested.items():
        using = f" using {managed[owner].api_version}" if owner.operation != APPLY else ""
        sub = f' with subresource "{owner.subresource}"' if owner.subresource else ""
        lines.append(f'conflicts with "{owner.manager}"{sub}{using}:')
        for path in paths:
            count += 1
            lines.append(f"- {readable(path)}")
            message = f'conflict with "{owner.manager}"{sub}{using}'
            causes.append({"reason": "FieldManagerConflict", "message": message, "field": readable(path)})
    plural = "conflict" if count == 1 else "conflicts"
    if count == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        text = f"Apply failed with {count} {plural}: " + "\n".join(lines)
    return StatusError(409, "Conflict", text, details={"causes": causes})


def _held(path: Path, others: set[Path]) -> bool:
    """Whether another manager owns the path, something inside it, or the list item whose key it is."""
    if len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:]):
        path = path[:-1]
    return any(other[: len(path)] == path for other in others)


def _merge_root(live: Object, config: Object, schema: Schema, skip: tuple[str, ...]) -> Object:
    result = copied(live)
    for key, value in config.items():
        if key in skip or key in ("apiVersion", "kind"):
            continue
        child = object_meta() if key == "metadata" else schema.child(key) or ANY
        if key == "metadata":
            value = {name: item for name, item in value.items() if name != "managedFields"}
        result[key] = _merge(result.get(key), value, child)
    return result


def _merge(live: Any, config: Any, schema: Schema) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not schema.atomic_map:
        result = dict(live)
        for key, value in config.items():
            result[key] = _merge(live.get(key), value, schema.child(key) or ANY)
        return result
    if isinstance(config, list) and isinstance(live, list) and schema.list_type in ("map", "set"):
        return _merge_items(live, config, schema)
    return copied(config)


def _merge_items(live: list[Any], config: list[Any], schema: Schema) -> list[Any]:
    """The applied order leads; an item only the live object has stays behind its neighbour there."""
    old = {item_element(item, schema): item for item in live}
    result: dict[str, Any] = {}
    for item in config:
        element = item_element(item, schema)
        result[element] = _merge(old.get(element), item, schema.items)
    order = list(result)
    previous: str | None = None
    for element, item in old.items():
        if element not in result:
            result[element] = item
            order.insert(order.index(previous) + 1 if previous is not None else 0, element)
        previous = element
    return [result[element] for element in order]


def _remove(node: Any, schema: Schema, path: Path, root: bool = False) -> bool:
    """Take a path out; returns whether the container became empty by it (and should go as well)."""
    element, rest = path[0], path[1:]
    if isinstance(node, dict) and element.startswith("f:"):
        key = element[2:]
        if key not in node:
            return False
        child = object_meta() if root and key == "metadata" else schema.child(key) or ANY
        if not rest or _remove(node[key], child, rest):
            del node[key]
            return not node
    elif isinstance(node, list):
        for index, item in enumerate(node):
            if item_element(item, schema) == element:
                if not rest:
                    del node[index]
                else:
                    _remove(item, schema.items, rest)
                return not node
    return False
