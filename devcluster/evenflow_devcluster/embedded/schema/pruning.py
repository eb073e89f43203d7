"""What happens to an object before validation: unknown fields found and removed, nulls dropped, defaults filled in."""

from collections.abc import Callable
from typing import Any

from evenflow_devcluster.embedded.jsonvalues import Object, copied
from evenflow_devcluster.embedded.schema.structural import ROOT_FIELDS, Schema, field_path, object_meta

Report = Callable[[str], None]


def prune(value: Object, schema: Schema, report: Report) -> None:
    """Remove, in place, every field the schema doesn't know; `report` is told each path."""
    _prune(value, schema, "", report, root=True)


def _prune(value: Any, schema: Schema, path: str, report: Report, root: bool = False) -> None:
    if isinstance(value, dict):
        _prune_object(value, schema, path, report, root or schema.embedded)
    elif isinstance(value, list) and schema.type in (None, "array"):
        items = schema.items
        for index, item in enumerate(value):
            if isinstance(item, dict | list):
                _prune(item, items, f"{path}[{index}]", report)


def _prune_object(value: Object, schema: Schema, path: str, report: Report, root: bool) -> None:
    if schema.free_form and not root:
        return
    unknown: list[str] = []
    for key, item in value.items():
        if root and key in ROOT_FIELDS:
            if key == "metadata" and isinstance(item, dict):
                _prune(item, object_meta(), field_path(path, key), report)
            continue
        child = schema.child(key)
        if child is None:
            if not schema.preserve_unknown and not schema.int_or_string and schema.type == "object":
                unknown.append(key)
        elif isinstance(item, dict | list):
            _prune(item, child, field_path(path, key), report)
    for key in unknown:
        del value[key]
        report(field_path(path, key))


def drop_nulls(value: Any) -> None:
    """Go decodes null into "absent": for the built-in kinds a null field is no field. In place."""
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None]:
            del value[key]
        for item in value.values():
            if isinstance(item, dict | list):
                drop_nulls(item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict | list):
                drop_nulls(item)


def apply_defaults(value: Any, schema: Schema) -> None:
    """Fill in the defaults of a custom resource's schema, in place; a forbidden null counts as absent."""
    if isinstance(value, dict):
        for name, child in schema.properties():
            if child.has_default and (name not in value or (value[name] is None and not child.nullable)):
                value[name] = copied(child.raw["default"])
        for key, item in value.items():
            if isinstance(item, dict | list):
                found = schema.child(key)
                if found is not None:
                    apply_defaults(item, found)
    elif isinstance(value, list):
        items = schema.items
        for item in value:
            if isinstance(item, dict | list):
                apply_defaults(item, items)
