"""JSON values: copying, encoding, and the times Kubernetes writes into them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

Object = dict[str, Any]
Clock = Callable[[], datetime]

_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False)


def utc_now() -> datetime:
    return datetime.now(UTC)


T = TypeVar("T")


def copied(value: T) -> T:
    """A deep copy of a JSON value, several times faster than `copy.deepcopy`."""
    return _copied(value)  # type: ignore[no-any-return]


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _copied(item) if type(item) in (dict, list) else item for key, item in value.items()}
    if kind is list:
        return [_copied(item) if type(item) in (dict, list) else item for item in value]
    return value


def encoded(value: Any) -> bytes:
    return _encoder.encode(value).encode()


def timestamp(moment: datetime) -> str:
    """metav1.Time: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed_time(text: Any) -> datetime | None:
    """A metav1.Time or MicroTime; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def dig(value: Any, *path: str) -> Any:
    """The value under a path of keys, or None where a step is missing or no object."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
