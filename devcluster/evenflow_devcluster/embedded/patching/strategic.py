"""Strategic merge patch for the built-in kinds, with the merge keys of Kubernetes' own schemas."""

from typing import Any

from evenflow_devcluster.embedded.errors import bad_request
from evenflow_devcluster.embedded.jsonvalues import Object, copied
from evenflow_devcluster.embedded.schema.structural import ANY, Schema

_ORDER = "$setElementOrder/"
_PRIMITIVES = "$deleteFromPrimitiveList/"
_RETAIN = "$retainKeys"


def strategic_merge(target: Object, patch: Any, schema: Schema) -> Object:
    """Changes neither argument. Raises 400 for a malformed patch."""
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch is an object")
    merged = _merge_object(target, patch, schema)
    return merged if merged is not None else {}


def _merge_object(target: Any, patch: Object, schema: Schema) -> Object | None:
    directive = patch.get("$patch", "merge")
    if directive == "delete":
        return None
    body = {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "replace":
        return dict(_without_directives(body))
    if directive != "merge":
        raise bad_request(f"unrecognized $patch directive {directive!r}: use merge, replace or delete")
    result: Object = dict(target) if isinstance(target, dict) else {}
    retained = body.pop(_RETAIN, None)
    if retained is not None:
        if not isinstance(retained, list):
            raise bad_request(f"{_RETAIN} must be a list")
        result = {key: value for key, value in result.items() if key in retained}
    orders: dict[str, list[Any]] = {}
    for key, value in body.items():
        if key.startswith((_ORDER, _PRIMITIVES)) and not isinstance(value, list):
            raise bad_request(f"{key} must be a list")
        if key.startswith(_ORDER):
            orders[key.removeprefix(_ORDER)] = value
        elif key.startswith(_PRIMITIVES):
            name = key.removeprefix(_PRIMITIVES)
            if isinstance(result.get(name), list):
                result[name] = [item for item in result[name] if item not in value]
        elif value is None:
            result.pop(key, None)
        else:
            merged = _merge_value(result.get(key), value, schema.child(key) or ANY)
            if merged is None:
                result.pop(key, None)
            else:
                result[key] = merged
    for key, order in orders.items():
        if isinstance(result.get(key), list):
            result[key] = _ordered(result[key], order, (schema.child(key) or ANY).merge_key)
    return result


def _merge_value(target: Any, value: Any, schema: Schema) -> Any:
    if isinstance(value, dict):
        return _merge_object(target, value, schema)
    if isinstance(value, list) and "merge" in schema.merge_strategy:
        current = target if isinstance(target, list) else []
        if schema.merge_key is None:
            return current + [item for item in value if item not in current]
        return _merge_items(current, value, schema.merge_key, schema.items)
    return copied(value)


def _merge_items(current: list[Any], patch: list[Any], key: str, items: Schema) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        kept = [item for item in patch if not isinstance(item, dict) or item.get("$patch") != "replace"]
        return [_without_directives(item) for item in kept]
    result = list(current)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item!r} does not contain declared merge key: {key}")
        place = next((i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]), None)
        merged = _merge_object(result[place] if place is not None else {}, item, items)
        if merged is None:
            if place is not None:
                del result[place]
        elif place is None:
            result.append(merged)
        else:
            result[place] = merged
    return result


def _ordered(items: list[Any], order: list[Any], key: str | None) -> list[Any]:
    """Items named in `order` in that order; each of the others stays behind the one it stood behind."""
    marks = [entry.get(key) if key and isinstance(entry, dict) else entry for entry in order]

    def mark(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    listed = sorted((item for item in items if mark(item) in marks), key=lambda item: marks.index(mark(item)))
    result = list(listed)
    previous: Any = None
    for item in items:
        if item not in listed:
            result.insert(result.index(previous) + 1 if previous is not None else 0, item)
        previous = item
    return result


def _without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_directives(item) for key, item in value.items() if not key.startswith("$")}
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    return value
