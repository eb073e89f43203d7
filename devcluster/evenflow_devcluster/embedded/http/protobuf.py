"""Reading the few protobuf bodies that kubectl insists on (`create namespace`, `create configmap`, `drain`, …).

kubectl's typed clients send `application/vnd.kubernetes.protobuf` and don't fall back to JSON. The messages below are
those it needs, with the field numbers of Kubernetes' generated.proto; every other kind is answered 415, and answers are
always JSON.
"""

import base64
from collections.abc import Iterator
from typing import Any

from evenflow_devcluster.embedded.errors import bad_request, unsupported_media_type
from evenflow_devcluster.embedded.jsonvalues import Object

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

# message -> field number -> (JSON name, type); a type is str, int, bool, bytes, a message, `[…]` repeated, `{…}` a map.
_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "ObjectMeta": {
        1: ("name", "str"), 2: ("generateName", "str"), 3: ("namespace", "str"), 5: ("uid", "str"),
        6: ("resourceVersion", "str"), 11: ("labels", "{str}"), 12: ("annotations", "{str}"),
        13: ("ownerReferences", "[OwnerReference]"), 14: ("finalizers", "[str]"),
    },
    "OwnerReference": {
        1: ("kind", "str"), 3: ("name", "str"), 4: ("uid", "str"), 5: ("apiVersion", "str"),
        6: ("controller", "bool"), 7: ("blockOwnerDeletion", "bool"),
    },
    "Namespace": {1: ("metadata", "ObjectMeta")},
    "ConfigMap": {
        1: ("metadata", "ObjectMeta"), 2: ("data", "{str}"), 3: ("binaryData", "{bytes}"), 4: ("immutable", "bool"),
    },
    "Secret": {
        1: ("metadata", "ObjectMeta"), 2: ("data", "{bytes}"), 3: ("type", "str"), 4: ("stringData", "{str}"),
        5: ("immutable", "bool"),
    },
    "ServiceAccount": {1: ("metadata", "ObjectMeta"), 4: ("automountServiceAccountToken", "bool")},
    "Service": {1: ("metadata", "ObjectMeta"), 2: ("spec", "ServiceSpec")},
    "ServiceSpec": {
        1: ("ports", "[ServicePort]"), 2: ("selector", "{str}"), 3: ("clusterIP", "str"), 4: ("type", "str"),
        10: ("externalName", "str"),
    },
    "ServicePort": {
        1: ("name", "str"), 2: ("protocol", "str"), 3: ("port", "int"), 4: ("targetPort", "IntOrString"),
    },
    "IntOrString": {1: ("type", "int"), 2: ("number", "int"), 3: ("text", "str")},
    "PodDisruptionBudget": {1: ("metadata", "ObjectMeta"), 2: ("spec", "PodDisruptionBudgetSpec")},
    "PodDisruptionBudgetSpec": {
        1: ("minAvailable", "IntOrString"), 2: ("selector", "LabelSelector"), 3: ("maxUnavailable", "IntOrString"),
    },
    "LabelSelector": {1: ("matchLabels", "{str}"), 2: ("matchExpressions", "[LabelSelectorRequirement]")},
    "LabelSelectorRequirement": {1: ("key", "str"), 2: ("operator", "str"), 3: ("values", "[str]")},
    "Eviction": {1: ("metadata", "ObjectMeta"), 2: ("deleteOptions", "DeleteOptions")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"), 2: ("preconditions", "Preconditions"), 3: ("orphanDependents", "bool"),
        4: ("propagationPolicy", "str"), 5: ("dryRun", "[str]"),
    },
    "Preconditions": {1: ("uid", "str"), 2: ("resourceVersion", "str")},
    "Unknown": {1: ("typeMeta", "TypeMeta"), 2: ("raw", "raw")},
    "TypeMeta": {1: ("apiVersion", "str"), 2: ("kind", "str")},
}  # fmt: skip
_BODIES = frozenset({
    "ConfigMap", "DeleteOptions", "Eviction", "Namespace", "PodDisruptionBudget", "Secret", "Service", "ServiceAccount",
})  # fmt: skip


def read_protobuf(body: bytes) -> Object:
    """The JSON form of a body. Raises 415 for a kind that isn't known here, 400 for bytes that aren't protobuf."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not Kubernetes protobuf: its first bytes are wrong")
    try:
        envelope = _message(body[len(_MAGIC) :], "Unknown")
        kind = envelope.get("typeMeta", {}).get("kind", "")
        if kind not in _BODIES:
            raise unsupported_media_type(f"{MEDIA_TYPE} of {kind or 'unknown kind'}", ("application/json",))
        return {**envelope["typeMeta"], **_message(envelope.get("raw", b""), kind)}
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise bad_request(f"couldn't read the request's body as protobuf: {error}") from None


def _message(data: bytes, name: str) -> Object:
    fields = _MESSAGES[name]
    found: Object = {}
    for number, value in _fields(data):
        if number not in fields:
            continue
        key, kind = fields[number]
        if kind.startswith("["):
            found.setdefault(key, []).append(_value(value, kind[1:-1]))
        elif kind.startswith("{"):
            entry = dict(_fields(_bytes(value)))
            found.setdefault(key, {})[_bytes(entry.get(1, b"")).decode()] = _value(entry.get(2, b""), kind[1:-1])
        else:
            decoded = _value(value, kind)
            # Go writes the zero of every plain field; only a string or message that says something was set.
            if decoded not in ("", {}):
                found[key] = decoded
    return found


def _value(value: int | bytes, kind: str) -> Any:
    match kind:
        case "int":
            number = _number(value)
            return number if number < 1 << 63 else number - (1 << 64)
        case "bool":
            return bool(_number(value))
        case "str":
            return _bytes(value).decode()
        case "bytes":
            return base64.b64encode(_bytes(value)).decode()
        case "raw":
            return _bytes(value)
        case "IntOrString":
            read = _message(_bytes(value), kind)
            return read.get("text", "") if read.get("type") else read.get("number", 0)
    return _message(_bytes(value), kind)


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes where a number belongs")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                number, at = _varint(data, at)
                yield tag >> 3, number
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise ValueError("a field is longer than its message")
                yield tag >> 3, data[at : at + size]
                at += size
            case 1 | 5 as width:
                at += 8 if width == 1 else 4
            case wire:
                raise ValueError(f"unknown wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
