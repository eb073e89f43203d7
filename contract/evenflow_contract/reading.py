"""Strict reading of JSON objects: every field is taken once, checked, and what is left over is refused.

Documents come from annotations and HTTP bodies, so every size is bounded and every number finite.
"""

import json
from collections.abc import Mapping
from typing import Any

from evenflow_contract.errors import ContractError

MAX_DOCUMENT_BYTES = 65_536
MAX_STRING = 256

_REQUIRED: Any = object()


def parse_json(text: str | bytes, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> Mapping[str, Any]:
    """Decode one JSON object of at most `max_bytes` bytes; NaN and Infinity are refused as JSON refuses them."""
    size = len(text if isinstance(text, bytes) else text.encode())
    if size > max_bytes:
        raise ContractError("(document)", f"{size} bytes", f"send at most {max_bytes} bytes")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ContractError("(document)", f"not JSON ({error})", "send one JSON object") from error
    if not isinstance(value, dict):
        raise ContractError("(document)", f"a JSON {type(value).__name__}", "send one JSON object")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def shown(value: object) -> str:
    """The value as an error message shows it: short, one line."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


class ObjectReader:
    """Takes the fields of one JSON object; `finish` refuses what nobody took."""

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, Mapping):
            raise ContractError(path or "(document)", shown(value), "must be an object")
        self._value = value
        self._path = path
        self._taken: set[str] = set()

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        return self._value.get(key) is not None

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        """The raw value; a missing one is an error unless a default is given. null counts as missing."""
        self._taken.add(key)
        value = self._value.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ContractError(self.path(key), "missing", "the field is required")
        return default

    def integer(self, key: str, default: Any = _REQUIRED, *, low: int = 0, high: int = 2**53) -> int:
        value = self.take(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ContractError(self.path(key), shown(value), f"must be an integer from {low} to {high}")
        return value

    def number(self, key: str, default: Any = _REQUIRED, *, low: float = 0.0, high: float = 1e15) -> float:
        value = self.take(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        # Compared first: an integer of hundreds of digits is no float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ContractError(self.path(key), shown(value), f"must be a finite number from {low:g} to {high:g}")
        return float(value)

    def string(self, key: str, default: Any = _REQUIRED, *, max_length: int = MAX_STRING) -> str:
        value = self.take(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, str) or len(value) > max_length:
            raise ContractError(self.path(key), shown(value), f"must be a string of at most {max_length} characters")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: Any = _REQUIRED) -> str:
        value = self.take(key, default)
        if value not in choices:
            raise ContractError(self.path(key), shown(value), f"must be one of {', '.join(choices)}")
        return value  # type: ignore[no-any-return]

    def boolean(self, key: str, default: Any = _REQUIRED) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise ContractError(self.path(key), shown(value), "must be true or false")
        return value

    def items(self, key: str, default: Any = _REQUIRED, *, max_items: int) -> list[Any]:
        value = self.take(key, default)
        if not isinstance(value, list) or len(value) > max_items:
            raise ContractError(self.path(key), shown(value), f"must be a list of at most {max_items} items")
        return value

    def mapping(self, key: str, default: Any = _REQUIRED, *, max_items: int) -> dict[str, Any]:
        value = self.take(key, default)
        if not isinstance(value, dict) or len(value) > max_items:
            raise ContractError(self.path(key), shown(value), f"must be an object of at most {max_items} fields")
        return value

    def nested(self, key: str) -> "ObjectReader":
        return ObjectReader(self.take(key), self.path(key))

    def finish(self) -> None:
        unknown = sorted(set(self._value) - self._taken)
        if unknown:
            raise ContractError(self.path(unknown[0]), "unknown field", f"known here: {', '.join(sorted(self._taken))}")


def check_version(reader: ObjectReader, current: int) -> int:
    """The version rule: N and N-1 are both accepted, so that operator and worker may be upgraded in either order."""
    oldest = max(current - 1, 1)
    version = reader.integer("version", low=0, high=1_000_000)
    if not oldest <= version <= current:
        accepted = f"{current}" if oldest == current else f"{oldest} and {current}"
        raise ContractError("version", str(version), f"this release reads version {accepted}")
    return version
