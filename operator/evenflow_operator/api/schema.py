"""From a pydantic model to a structural OpenAPI v3 schema, as a CustomResourceDefinition wants it.

Strict on purpose: a keyword that the converter doesn't know, a union, a recursion or a missing bound is an error, never
silently lost. A null branch is dropped (absent = null), and so are titles.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_INT32_MAX = 2**31 - 1
_COPIED = frozenset(
    {
        "type",
        "enum",
        "default",
        "minLength",
        "maxLength",
        "pattern",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
    }
)
_HANDLED = frozenset(
    {
        "$ref",
        "anyOf",
        "const",
        "description",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "additionalProperties",
        "properties",
        "items",
    }
)
_DROPPED = frozenset({"title", "$defs"})
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean"})


class SchemaError(ValueError):
    """A model says something that a structural schema can't, or must not, say."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(f"{path or '(root)'}: {found}")


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of a model. Raises SchemaError, naming the field."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return convert(schema, definitions=schema.get("$defs", {}))


def convert(
    schema: Mapping[str, Any], *, definitions: Mapping[str, Any], path: str = "", parents: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Convert one node; `parents` are the references that led here."""
    node, parents = _resolved(schema, definitions, path, parents)
    unknown = sorted(set(node) - _COPIED - _HANDLED - _DROPPED)
    if unknown:
        raise SchemaError(path, f"can't express the keyword {unknown[0]!r}")
    result = {key: value for key, value in node.items() if key in _COPIED and not (key == "default" and value is None)}
    if "description" in node:
        result["description"] = " ".join(node["description"].split())
    _const(node, result, path)
    for bound, keyword in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        _exclusive(node, result, bound, keyword, path)
    if not isinstance(result.get("type"), str) or result["type"] not in _TYPES:
        raise SchemaError(path, f"type {result.get('type')!r}; a structural schema needs exactly one type")
    if "items" in node:
        result["items"] = convert(node["items"], definitions=definitions, path=f"{path}[]", parents=parents)
    if result["type"] == "object":
        _object(node, result, definitions, path, parents)
    _bounded(result, path)
    return result


def _resolved(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str, parents: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The node with its null branch dropped and its reference inlined; what stands beside a reference wins."""
    node = dict(schema)
    while "anyOf" in node or "$ref" in node:
        if "anyOf" in node:
            branches = [branch for branch in node.pop("anyOf") if branch != {"type": "null"}]
            if len(branches) != 1:
                raise SchemaError(path, f"a union of {len(branches)} types; only `X | None` is allowed")
            inner = branches[0]
        else:
            name = node.pop("$ref").removeprefix("#/$defs/")
            if name in parents:
                raise SchemaError(path, f"{name} contains itself; structural schemas can't recurse")
            if name not in definitions:
                raise SchemaError(path, f"the reference {name!r} leads nowhere")
            parents = (*parents, name)
            inner = definitions[name]
        twice = sorted((set(inner) & set(node)) - {"description", "title", "default"})
        if twice:
            raise SchemaError(path, f"{twice[0]!r} stands beside a reference and inside it")
        node = {**inner, **node}
    return node, parents


def _const(node: Mapping[str, Any], result: dict[str, Any], path: str) -> None:
    if "const" not in node:
        return
    if "enum" in node:
        raise SchemaError(path, "const and enum together")
    result["enum"] = [node["const"]]


def _exclusive(node: Mapping[str, Any], result: dict[str, Any], bound: str, keyword: str, path: str) -> None:
    """JSON Schema says `exclusiveMinimum: 3`, OpenAPI v3 says `minimum: 3, exclusiveMinimum: true`."""
    if keyword not in node:
        return
    if bound in node:
        raise SchemaError(path, f"{bound} and {keyword} together")
    result[bound] = node[keyword]
    result[keyword] = True


def _object(
    node: Mapping[str, Any],
    result: dict[str, Any],
    definitions: Mapping[str, Any],
    path: str,
    parents: tuple[str, ...],
) -> None:
    additional = node.get("additionalProperties", False)
    if "properties" in node:
        if additional is not False:
            raise SchemaError(path, "properties and additionalProperties together")
        required = node.get("required", [])
        result["properties"] = {}
        for name, child in node["properties"].items():
            where = f"{path}.{name}" if path else name
            converted = convert(child, definitions=definitions, path=where, parents=parents)
            if name not in required and "default" not in child and converted.get("properties"):
                _default_empty(converted, where)
            result["properties"][name] = converted
    elif additional is True:
        result["x-kubernetes-preserve-unknown-fields"] = True
    elif isinstance(additional, Mapping):
        result["additionalProperties"] = convert(
            additional, definitions=definitions, path=f"{path}{{}}", parents=parents
        )
    else:
        raise SchemaError(path, "an object without fields")


def _default_empty(child: dict[str, Any], path: str) -> None:
    """A nested default applies only if its parent has one."""
    if child.get("required"):
        raise SchemaError(path, f"optional without null, but its field {child['required'][0]!r} has no default")
    child["default"] = {}


def _bounded(result: dict[str, Any], path: str) -> None:
    """Every size has a bound, or the API server's cost estimate for CEL refuses the whole CRD."""
    match result["type"]:
        case "string" if "enum" not in result and "maxLength" not in result:
            raise SchemaError(path, "a string without maxLength")
        case "array" if "maxItems" not in result or "items" not in result:
            raise SchemaError(path, "a list without maxItems or without items")
        case "object" if "additionalProperties" in result and "maxProperties" not in result:
            raise SchemaError(path, "a map without maxProperties")
        case "integer":
            if "minimum" not in result or "maximum" not in result:
                raise SchemaError(path, "an integer without minimum or maximum")
            fits = result["minimum"] >= -_INT32_MAX - 1 and result["maximum"] <= _INT32_MAX
            result["format"] = "int32" if fits else "int64"
