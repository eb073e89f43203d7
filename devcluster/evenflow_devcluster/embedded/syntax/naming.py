"""Names, labels and annotations: what Kubernetes accepts."""

import random
import re
from collections.abc import Iterator
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object

MAX_ANNOTATIONS_BYTES = 256 * 1024
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com')"
)
_LABEL_1123_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name')"
)


def generated_name(prefix: str, rng: random.Random) -> str:
    return prefix[:58] + "".join(rng.choices(_SUFFIX_LETTERS, k=5))


def name_errors(name: str, rule: str, path: str = "metadata.name") -> Iterator[FieldError]:
    """`rule` is subdomain, label, or segment: whatever can stand between two slashes of a path."""
    if rule == "segment":
        if name in (".", "..") or "/" in name or "%" in name:
            yield FieldError(path, "may not be '.' or '..', and may not contain '/' or '%'", "Invalid", name)
        return
    pattern, text, longest = {
        "subdomain": (_SUBDOMAIN, _SUBDOMAIN_RULE, 253),
        "label": (_LABEL_1123, _LABEL_1123_RULE, 63),
    }[rule]
    if len(name) > longest:
        yield FieldError(path, f"must be no more than {longest} characters", "Invalid", name)
    if not pattern.fullmatch(name):
        yield FieldError(path, text, "Invalid", name)


def metadata_errors(metadata: Object) -> Iterator[FieldError]:
    for key, value in (metadata.get("labels") or {}).items():
        yield from _key_errors(key, "metadata.labels")
        if value != "" and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
            rule = "a valid label must be an empty string or at most 63 alphanumeric characters, '-', '_' or '.'"
            yield FieldError("metadata.labels", rule, "Invalid", value)
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        yield from _key_errors(key.lower(), "metadata.annotations")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        yield FieldError("metadata.annotations", f"may not be more than {MAX_ANNOTATIONS_BYTES} bytes", "TooLong")
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        yield from _key_errors(finalizer, f"metadata.finalizers[{index}]")
    yield from _owner_errors(metadata.get("ownerReferences") or ())


def _owner_errors(owners: Any) -> Iterator[FieldError]:
    controllers = 0
    for index, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                message = "must not be empty"
                yield FieldError(f"metadata.ownerReferences[{index}].{key}", message, "Invalid", owner.get(key, ""))
        controllers += owner.get("controller") is True
    if controllers > 1:
        message = "Only one reference can have Controller set to true"
        yield FieldError("metadata.ownerReferences", message, "Invalid", controllers)


def _key_errors(key: str, path: str) -> Iterator[FieldError]:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        yield FieldError(path, f"prefix part {_SUBDOMAIN_RULE}", "Invalid", key)
    if not name or len(name) > 63 or not _QUALIFIED.fullmatch(name):
        rule = "name part must consist of alphanumeric characters, '-', '_' or '.', at most 63 of them"
        yield FieldError(path, rule, "Invalid", key)
