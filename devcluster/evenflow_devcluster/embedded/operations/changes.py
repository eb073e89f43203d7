"""Comparing an object with what it was: what a write means for its generation, its owners and its life."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds.resources import Resource

_GENERATION_BLIND = frozenset({"apiVersion", "kind", "metadata", "status"})


def releasable(obj: Object) -> bool:
    """Marked for deletion, and nothing holds it any longer."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if obj["kind"] == "Namespace" and (obj.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def unwritten(resource: Resource, obj: Mapping[str, Any], subresource: str) -> tuple[str, ...]:
    """The root fields that this endpoint doesn't write."""
    if subresource == "status":
        return tuple(key for key in obj if key not in ("metadata", "status"))
    return ("status",) if resource.status else ()


def specified(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in _GENERATION_BLIND}


def same_object(new: Object, live: Object) -> bool:
    """Whether nothing changed but, perhaps, who owns what."""
    one, other = _without_owners(new), _without_owners(live)
    # Python holds true for 1; JSON doesn't.
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _without_owners(obj: Object) -> Object:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "managedFields"}}


def same_owners(entries: list[Object], before: Any) -> bool:
    def timeless(items: list[Object]) -> list[Object]:
        return [{key: value for key, value in item.items() if key != "time"} for item in items]

    return timeless(entries) == timeless(before or [])


def finalizer_errors(new: Object, live: Object) -> Iterator[FieldError]:
    if "deletionTimestamp" in live["metadata"]:
        before = live["metadata"].get("finalizers") or []
        added = [name for name in new["metadata"].get("finalizers") or [] if name not in before]
        if added:
            message = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
            yield FieldError("metadata.finalizers", message, "Forbidden")
