"""What the API server does with an object before it validates it: fill in defaults, find unknown fields."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Location = tuple[int | str, ...]
Schema = Mapping[str, Any]


def with_defaults(schema: Schema, value: Any) -> Any:
    """A deep copy of the value with every default of the schema filled in. A null field counts as absent, as on the API
    server; what the schema doesn't describe stays as it is.
    """
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, Mapping):
        return copy.deepcopy(value)
    if "properties" in schema:
        properties: Mapping[str, Any] = schema["properties"]
        result = {
            key: with_defaults(properties[key], item) if key in properties else copy.deepcopy(item)
            for key, item in value.items()
            if not (item is None and key in properties)
        }
        for key, child in properties.items():
            if key not in result and "default" in child:
                result[key] = with_defaults(child, child["default"])
        return result
    if "additionalProperties" in schema:
        child = schema["additionalProperties"]
        return {key: with_defaults(child, item) for key, item in value.items() if item is not None}
    return copy.deepcopy(dict(value))


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the schema would prune, the names known there, and those of them that are still free."""

    location: Location
    known: tuple[str, ...]
    free: tuple[str, ...]


def unknown_fields(schema: Schema, value: Any, location: Location = ()) -> Iterator[UnknownField]:
    """Every field of the value that the schema doesn't know."""
    for where, node, item in _walk(schema, value, location):
        if isinstance(item, Mapping) and "properties" in node:
            known = tuple(node["properties"])
            free = tuple(name for name in known if name not in item)
            yield from (UnknownField((*where, str(key)), known, free) for key in item if key not in known)


def duplicate_items(schema: Schema, value: Any, location: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Where a set or a list map has the same value or key a second time, and that value."""
    for where, node, items in _walk(schema, value, location):
        kind = node.get("x-kubernetes-list-type")
        if not isinstance(items, list) or kind not in ("set", "map"):
            continue
        key = node["x-kubernetes-list-map-keys"][0] if kind == "map" else None
        seen = []
        for index, item in enumerate(items):
            found = item if key is None else item.get(key) if isinstance(item, Mapping) else None
            if found is not None and found in seen:
                yield (*where, index) if key is None else (*where, index, key), found
            seen.append(found)


def _walk(schema: Schema, value: Any, location: Location) -> Iterator[tuple[Location, Mapping[str, Any], Any]]:
    yield location, schema, value
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _walk(schema["items"], item, (*location, index))
    elif isinstance(value, Mapping):
        for key, child in schema.get("properties", {}).items():
            if key in value:
                yield from _walk(child, value[key], (*location, key))
