"""Validation of a value against a structural schema, with Kubernetes' wording."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import encoded, parsed_time
from evenflow_devcluster.embedded.schema.structural import ROOT_FIELDS, Schema, field_path, object_meta

MAX_ERRORS = 30
_TEXT = Schema({"type": "string"})
_INT_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_TYPE_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def validate(value: Any, schema: Schema) -> list[FieldError]:
    """All errors of an object, root first, at most `MAX_ERRORS`."""
    if _conforms(value, schema, root=True):
        return []
    errors: list[FieldError] = []
    for error in _check(value, schema, "", root=True):
        errors.append(error)
        if len(errors) == MAX_ERRORS:
            break
    return errors


def _conforms(value: Any, schema: Schema, root: bool = False) -> bool:
    """Whether `_check` finds nothing, several times faster: almost every object is valid, and every write asks."""
    kind = schema.type
    if value is None or schema.int_or_string:
        return next(_check(value, schema, ""), None) is None
    if type(value) is dict and kind == "object":
        for name in schema.required:
            if name not in value:
                return False
        if schema.constrained and next(_own_errors(value, schema), None) is not None:
            return False
        root = root or schema.embedded
        for key, item in value.items():
            child = _field(schema, key, root)
            if child is not None and not _conforms(item, child):
                return False
        return True
    if type(value) is list and kind == "array":
        items = schema.items
        return all(_conforms(item, items) for item in value) and (
            not schema.constrained or next(_own_errors(value, schema), None) is None
        )
    if type(value) is str and kind == "string" and not schema.constrained:
        return True
    return next(_check(value, schema, "", root), None) is None


def _check(value: Any, schema: Schema, path: str, root: bool = False) -> Iterator[FieldError]:
    if value is None:
        if not schema.nullable and schema.type is not None:
            yield _type_error(path, "null", schema.type)
        return
    if schema.int_or_string:
        # A Quantity may be any number: `cpu: 0.5`.
        number = "number" if _is_quantity(schema) else "integer"
        if not (_has_type(value, number) or isinstance(value, str)):
            yield _type_error(path, _type_name(value), "integer,string")
            return
    elif schema.type is not None and not _has_type(value, schema.type):
        yield _type_error(path, _type_name(value), schema.type)
        return
    if isinstance(value, dict):
        yield from _check_fields(value, schema, path, root or schema.embedded)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check(item, schema.items, f"{path}[{index}]")
    if schema.constrained:
        yield from _own_errors(value, schema, path)


def _check_fields(value: dict[str, Any], schema: Schema, path: str, root: bool) -> Iterator[FieldError]:
    for name in schema.required:
        if name not in value:
            yield FieldError(field_path(path, name), "", "Required")
    for key, item in value.items():
        child = _field(schema, key, root)
        if child is not None:
            yield from _check(item, child, field_path(path, key))


def _field(schema: Schema, key: str, root: bool) -> Schema | None:
    if root and key in ROOT_FIELDS:
        return object_meta() if key == "metadata" else _TEXT
    return schema.child(key)


def _own_errors(value: Any, schema: Schema, path: str = "") -> Iterator[FieldError]:
    """What is wrong with a value of the right type, its fields and items aside."""
    raw = schema.raw
    if isinstance(value, dict):
        yield from _check_size(value, raw, path)
    elif isinstance(value, list):
        yield from _check_list(value, schema, path)
    elif isinstance(value, str):
        yield from _check_string(value, raw, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(value, raw, path)
    if "enum" in raw and value not in raw["enum"]:
        allowed = ", ".join(f'"{choice}"' for choice in raw["enum"])
        yield FieldError(path, f"supported values: {allowed}", "NotSupported", value)
    yield from _check_combinations(value, raw, path)


def _check_size(value: dict[str, Any], raw: Any, path: str) -> Iterator[FieldError]:
    size = len(value)
    if "maxProperties" in raw and size > raw["maxProperties"]:
        yield FieldError(path, f"must have at most {raw['maxProperties']} items", "TooMany", size)
    if "minProperties" in raw and size < raw["minProperties"]:
        yield FieldError(path, f"{_body(path)} should have at least {raw['minProperties']} properties", value=size)


def _check_list(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    raw = schema.raw
    if "maxItems" in raw and len(value) > raw["maxItems"]:
        yield FieldError(path, f"must have at most {raw['maxItems']} items", "TooMany", len(value))
    if "minItems" in raw and len(value) < raw["minItems"]:
        yield FieldError(path, f"{_body(path)} should have at least {raw['minItems']} items", value=len(value))
    if len(value) < 2:
        return
    if schema.list_type == "map":
        yield from _duplicates([schema.item_key(item) for item in value], path)
    elif schema.list_type == "set" or raw.get("uniqueItems"):
        yield from _duplicates(value, path)


def _duplicates(keys: list[Any], path: str) -> Iterator[FieldError]:
    seen: set[bytes] = set()
    for index, key in enumerate(keys):
        mark = encoded(key)
        if mark in seen:
            yield FieldError(f"{path}[{index}]", "", "Duplicate", key)
        seen.add(mark)


def _check_string(value: str, raw: Any, path: str) -> Iterator[FieldError]:
    if "maxLength" in raw and len(value) > raw["maxLength"]:
        yield FieldError(path, f"may not be more than {raw['maxLength']} bytes", "TooLong", value)
    if "minLength" in raw and len(value) < raw["minLength"]:
        yield FieldError(path, f"{_body(path)} should be at least {raw['minLength']} chars long", value=value)
    if "pattern" in raw and not compiled(raw["pattern"]).search(value):
        yield FieldError(path, f"{_body(path)} should match '{raw['pattern']}'", value=value)
    if raw.get("format") == "date-time" and parsed_time(value) is None:
        yield FieldError(path, f"{_body(path)} must be of type date-time: {value!r}", value=value)


def _check_number(value: float, raw: Any, path: str) -> Iterator[FieldError]:
    if "minimum" in raw:
        exclusive = bool(raw.get("exclusiveMinimum"))
        if value < raw["minimum"] or (exclusive and value == raw["minimum"]):
            word = "greater than" if exclusive else "greater than or equal to"
            yield FieldError(path, f"{_body(path)} should be {word} {raw['minimum']}", value=value)
    if "maximum" in raw:
        exclusive = bool(raw.get("exclusiveMaximum"))
        if value > raw["maximum"] or (exclusive and value == raw["maximum"]):
            word = "less than" if exclusive else "less than or equal to"
            yield FieldError(path, f"{_body(path)} should be {word} {raw['maximum']}", value=value)
    multiple = raw.get("multipleOf")
    if multiple and (value / multiple) != round(value / multiple):
        yield FieldError(path, f"{_body(path)} should be a multiple of {multiple}", value=value)
    limits = _INT_RANGES.get(raw.get("format", ""))
    if limits and not limits[0] <= value <= limits[1]:
        yield FieldError(path, f"{_body(path)} must fit {raw['format']}", value=value)


def _check_combinations(value: Any, raw: Any, path: str) -> Iterator[FieldError]:
    for part in raw.get("allOf", ()):
        yield from _check(value, Schema(part), path)
    if "anyOf" in raw and not any(_valid(value, part) for part in raw["anyOf"]):
        yield FieldError(path, f"{_body(path)} must validate at least one schema (anyOf)", value=value)
    # The built-in Quantity and IntOrString have an untyped oneOf, which a number and a string both pass.
    if "oneOf" in raw and raw.get("type") is not None and sum(_valid(value, part) for part in raw["oneOf"]) != 1:
        yield FieldError(path, f"{_body(path)} must validate one and only one schema (oneOf)", value=value)
    if "not" in raw and _valid(value, raw["not"]):
        yield FieldError(path, f"{_body(path)} must not validate the schema (not)", value=value)


def _valid(value: Any, raw: Any) -> bool:
    return next(_check(value, Schema(raw), ""), None) is None


@functools.lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """An RE2 pattern; `$` means the very end there, in Python it also allows a newline before it."""
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def _has_type(value: Any, wanted: str) -> bool:
    if wanted == "integer":
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    if wanted == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return _TYPE_NAMES.get(type(value)) == wanted


def _is_quantity(schema: Schema) -> bool:
    return {"type": "number"} in schema.raw.get("oneOf", ())


def _type_name(value: Any) -> str:
    return "null" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)


def _type_error(path: str, found: str, wanted: str) -> FieldError:
    return FieldError(path, f'{_body(path)} must be of type {wanted}: "{found}"', "TypeInvalid", found)


def _body(path: str) -> str:
    return f"{path} in body"
