"""Structural schemas: one view on the built-in kinds' OpenAPI and on the schemas of custom resources.

A `Schema` is built lazily (the API server's own kinds have 380 KB of it, and `JSONSchemaProps` refers to itself).
"""

import functools
import gzip
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Literal

ListType = Literal["atomic", "set", "map"]
_CONSTRAINTS = frozenset({
    "enum", "pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minimum", "maximum", "multipleOf", "uniqueItems", "allOf", "anyOf", "oneOf", "not",
})  # fmt: skip
_REFERENCE = "#/components/schemas/"
ROOT_FIELDS = frozenset({"apiVersion", "kind", "metadata"})
"""What every object has, whatever its own schema says."""


class Schema:
    """What the server needs to know about one value: its type, its children and how it merges."""

    __slots__ = (
        "_additional",
        "_children",
        "_items",
        "_properties",
        "_table",
        "atomic_map",
        "constrained",
        "embedded",
        "has_default",
        "int_or_string",
        "list_keys",
        "list_type",
        "merge_key",
        "merge_strategy",
        "nullable",
        "preserve_unknown",
        "raw",
        "required",
        "type",
    )

    def __init__(self, raw: Mapping[str, Any], table: Mapping[str, Any] | None = None) -> None:
        self._table = table or {}
        self.raw = self._resolved(raw)
        raw = self.raw
        self.type: str | None = raw.get("type")
        self.int_or_string: bool = bool(raw.get("x-kubernetes-int-or-string")) or (
            self.type is None and "oneOf" in raw and table is not None
        )
        self.nullable: bool = bool(raw.get("nullable"))
        self.has_default: bool = "default" in raw
        self.preserve_unknown: bool = bool(raw.get("x-kubernetes-preserve-unknown-fields"))
        self.embedded: bool = bool(raw.get("x-kubernetes-embedded-resource"))
        self.atomic_map: bool = raw.get("x-kubernetes-map-type") == "atomic"
        self.list_type: ListType = raw.get("x-kubernetes-list-type", "atomic")
        self.list_keys: tuple[str, ...] = tuple(raw.get("x-kubernetes-list-map-keys", ()))
        self.merge_key: str | None = raw.get("x-kubernetes-patch-merge-key")
        self.merge_strategy: tuple[str, ...] = tuple(raw.get("x-kubernetes-patch-strategy", "").split(","))
        self.required: tuple[str, ...] = tuple(raw.get("required") or ())
        self.constrained: bool = not _CONSTRAINTS.isdisjoint(raw) or self.list_type != "atomic"
        """Whether the value must satisfy more than its type."""
        self._properties: Mapping[str, Any] = raw.get("properties") or {}
        additional = raw.get("additionalProperties")
        if additional is True:
            additional = {}
        self._additional: Any = additional if isinstance(additional, Mapping) else None
        self._items: Any = raw.get("items")
        self._children: dict[str, Schema] = {}

    def _resolved(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        if "$ref" in raw:
            target: Mapping[str, Any] = self._table[raw["$ref"].removeprefix(_REFERENCE)]
            return target
        parts = raw.get("allOf")
        if self._table and parts and len(parts) == 1 and "$ref" in parts[0]:
            outer = {key: value for key, value in raw.items() if key != "allOf"}
            return {**self._resolved(parts[0]), **outer}
        return raw

    @property
    def free_form(self) -> bool:
        """Declares neither fields nor keys: whatever is in there stays (managedFields.fieldsV1, a JSON value)."""
        return self.type == "object" and not self._properties and self._additional is None

    def child(self, key: str) -> "Schema | None":
        """The schema of a field or map value; None if the schema knows no such field."""
        known = self._children.get(key)
        if known is not None:
            return known
        raw = self._properties.get(key)
        if raw is not None:
            made = self._children[key] = Schema(raw, self._table or None)
            return made
        if self._additional is None:
            return None
        shared = self._children.get("*")
        if shared is None:
            shared = self._children["*"] = Schema(self._additional, self._table or None)
        return shared

    @property
    def items(self) -> "Schema":
        known = self._children.get("[]")
        if known is None:
            known = self._children["[]"] = Schema(self._items or {}, self._table or None)
        return known

    def item_key(self, item: Any) -> Any:
        """The key of an item of a list map, with the defaults of its key fields; the item itself if it is no object."""
        if not isinstance(item, dict):
            return item
        key: dict[str, Any] = {}
        for name in self.list_keys:
            if name in item:
                key[name] = item[name]
            else:
                child = self.items.child(name)
                if child is not None and child.has_default:
                    key[name] = child.raw["default"]
        return key

    def properties(self) -> Iterator[tuple[str, "Schema"]]:
        for name in self._properties:
            child = self.child(name)
            if child is not None:
                yield name, child


ANY = Schema({"x-kubernetes-preserve-unknown-fields": True})


def field_path(path: str, key: str) -> str:
    """`spec.containers[0]` and `image`: the path of a field of the value at `path` ("" is the root)."""
    return f"{path}.{key}" if path else key


@functools.cache
def builtin_table() -> Mapping[str, Any]:
    """Name -> schema of the built-in kinds, as Kubernetes publishes them."""
    packed = resources.files(__package__).joinpath("data", "builtin_schemas.json.gz").read_bytes()
    table: Mapping[str, Any] = json.loads(gzip.decompress(packed))
    return table


@functools.cache
def builtin(name: str) -> Schema:
    return Schema(builtin_table()[name], builtin_table())


def object_meta() -> Schema:
    return builtin("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
