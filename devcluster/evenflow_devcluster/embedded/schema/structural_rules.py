"""What a definition's schema must be for this server, and Kubernetes, to read it: a structural schema."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.schema.structural import Schema, builtin
from evenflow_devcluster.embedded.schema.validation import compiled, validate

_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_FORBIDDEN_KEYWORDS = ("$ref", "definitions", "dependencies", "patternProperties", "additionalItems", "id", "$schema")


def structural_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    errors = list(_shape_errors(schema, path))
    yield from errors or _structural_errors(schema, path)


def _shape_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """What JSON Schema allows in two shapes, or as text, must be what this server reads."""
    for key in ("items", "additionalProperties"):
        value = schema.get(key)
        if isinstance(value, dict):
            yield from _schema_errors(value, f"{path}.{key}")
        elif value is not None and not (key == "additionalProperties" and isinstance(value, bool)):
            yield FieldError(f"{path}.{key}", "must be a schema", value=value)
    pattern = schema.get("pattern")
    if pattern is not None:
        try:
            compiled(pattern)
        except re.error as error:
            yield FieldError(f"{path}.pattern", f"must be a valid regular expression: {error}", value=pattern)
    for name, child in (schema.get("properties") or {}).items():
        yield from _shape_errors(child, f"{path}.properties[{name}]")
    for key in ("allOf", "anyOf", "oneOf"):
        for index, part in enumerate(schema.get(key) or ()):
            yield from _shape_errors(part, f"{path}.{key}[{index}]")
    if "not" in schema:
        yield from _shape_errors(schema["not"], f"{path}.not")


def _schema_errors(value: Any, path: str) -> Iterator[FieldError]:
    """The built-in schema leaves items and additionalProperties untyped, so they are checked as schemas here."""
    errors = validate(value, builtin("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"))
    for error in errors:
        yield FieldError(f"{path}.{error.path}", error.message, error.kind, error.value)
    if not errors:
        yield from _shape_errors(value, path)


def _structural_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for keyword in _FORBIDDEN_KEYWORDS:
        if keyword in schema:
            yield FieldError(f"{path}.{keyword}", "is not supported in a structural schema", "Forbidden")
    free = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    kind = schema.get("type")
    if kind is None and not free:
        yield FieldError(f"{path}.type", "must not be empty for specified object fields", "Required")
    elif kind is not None and kind not in _TYPES:
        listed = ", ".join(f'"{name}"' for name in _TYPES)
        yield FieldError(f"{path}.type", f"supported values: {listed}", "NotSupported", kind)
    if schema.get("properties") and schema.get("additionalProperties") is not None:
        yield FieldError(f"{path}.additionalProperties", "must not be used together with properties", "Forbidden")
    if kind == "array" and not isinstance(schema.get("items"), dict):
        yield FieldError(f"{path}.items", "must be specified", "Required")
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        message = "must be set when x-kubernetes-list-type is map"
        yield FieldError(f"{path}.x-kubernetes-list-map-keys", message, "Required")
    if schema.get("default") is not None:
        for error in validate(schema["default"], Schema(schema)):
            yield FieldError(f"{path}.default", str(error), value=schema["default"])
    for name, child in (schema.get("properties") or {}).items():
        yield from _structural_errors(child, f"{path}.properties[{name}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _structural_errors(schema[key], f"{path}.{key}")


def has_cel_rules(node: Any) -> bool:
    if isinstance(node, dict):
        return "x-kubernetes-validations" in node or any(has_cel_rules(child) for child in node.values())
    return isinstance(node, list) and any(has_cel_rules(child) for child in node)
