"""Sets of fields as server-side apply keeps them (`metadata.managedFields[].fieldsV1`).

A path is a tuple of FieldsV1 elements: `f:name` for a field or key, `k:{…}` for an item of a list map, `v:…` for a
member of a set. A field set maps each owned path to its value; an item of a list map is owned itself, value `ITEM`.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.schema.structural import ANY, Schema, object_meta

Path = tuple[str, ...]
ITEM = "\x00item"
_UNOWNED_METADATA = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "selfLink", "managedFields", "generateName",
})  # fmt: skip


def field_values(obj: Mapping[str, Any], schema: Schema, *, skip: Iterable[str] = ()) -> dict[Path, Any]:
    """Every ownable path of an object with its value; `skip` names root fields that this endpoint doesn't write."""
    found: dict[Path, Any] = {}
    left_out = {"apiVersion", "kind", *skip}
    for key, value in obj.items():
        if key in left_out:
            continue
        if key == "metadata":
            metadata = {name: item for name, item in value.items() if name not in _UNOWNED_METADATA}
            if metadata:
                _collect(metadata, object_meta(), ("f:metadata",), found)
        else:
            _collect(value, schema.child(key) or ANY, (f"f:{key}",), found)
    return found


def _collect(value: Any, schema: Schema, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value and not schema.atomic_map:
        for key, item in value.items():
            if type(item) in (dict, list):
                _collect(item, schema.child(key) or ANY, (*path, f"f:{key}"), found)
            else:
                found[(*path, f"f:{key}")] = item
    elif isinstance(value, list) and value and schema.list_type == "map":
        for item in value:
            place = (*path, item_element(item, schema))
            found[place] = ITEM
            _collect(item, schema.items, place, found)
    elif isinstance(value, list) and value and schema.list_type == "set":
        for item in value:
            found[(*path, f"v:{_json(item)}")] = item
    else:
        found[path] = value


_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def item_element(item: Any, schema: Schema) -> str:
    return f"k:{_json(schema.item_key(item))}" if isinstance(item, dict) else f"v:{_json(item)}"


def to_fields_v1(paths: Iterable[Path]) -> Object:
    root: Object = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        if path[-1].startswith("k:"):
            node["."] = {}
    return root


def from_fields_v1(fields: Mapping[str, Any]) -> set[Path]:
    found: set[Path] = set()
    _read(fields, (), found)
    return found


def _read(node: Mapping[str, Any], path: Path, found: set[Path]) -> None:
    if not node:
        if path:
            found.add(path)
        return
    for element, child in node.items():
        if element == ".":
            found.add(path)
        elif isinstance(child, Mapping):
            _read(child, (*path, element), found)


def well_formed(path: Path) -> bool:
    """Whether every element has the form that FieldsV1 demands."""
    return all(map(_well_formed, path))


@functools.lru_cache(maxsize=4096)
def _well_formed(element: str) -> bool:
    kind, _, rest = element.partition(":")
    if kind != "k":
        return kind in ("f", "v", "i")
    try:
        return isinstance(json.loads(rest), dict)
    except ValueError:
        return False


def readable(path: Path) -> str:
    """`.spec.containers[name="a"].image`, as conflict messages name a field."""
    text = ""
    for element in path:
        kind, rest = element.split(":", 1)
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={_json(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            text += f"[={rest}]"
    return text
