"""Deletes what belonged to a deleted owner: background, foreground and orphan propagation."""

from collections.abc import Mapping
from typing import Any

from evenflow_devcluster.embedded.controller_api import ControllerApi, StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.jsonvalues import Object
from evenflow_devcluster.embedded.kinds.finalizers import FOREGROUND, ORPHAN

Place = tuple[str, str, str]
Key = tuple[str, str, str, str]


class GarbageCollector(ControlLoop[Key]):
    """Key: what to do (`collect` a dependent, `finalize` a held owner), resource, namespace, name.

    Dependents are found through an index of owner uids that the events keep: a scan of every object per deletion would
    cost the square of a load test's pods.
    """

    def __init__(self, api: ControllerApi) -> None:
        super().__init__(api)
        self._dependents: dict[str, set[Place]] = {}
        self._owners: dict[Place, frozenset[str]] = {}
        self._places: dict[str, Place] = {}

    def initial(self) -> list[Key]:
        """The loop starts with the server, when only namespaces exist."""
        for namespace in self.api.list("namespaces"):
            self._places[namespace["metadata"]["uid"]] = ("namespaces", "", namespace["metadata"]["name"])
        return []

    def touched(self, event: StoreEvent, before: Mapping[str, Any] | None) -> list[Key]:
        metadata = event.object["metadata"]
        uid = metadata["uid"]
        place = (event.resource, metadata.get("namespace", ""), metadata["name"])
        deleted = event.type == "DELETED"
        owners = frozenset(owner["uid"] for owner in metadata.get("ownerReferences") or [])
        left = self._index(place, frozenset() if deleted else owners)
        keys: list[Key] = [("finalize", *self._places[owner]) for owner in left if owner in self._places]
        if deleted:
            self._places.pop(uid, None)
            return keys + [("collect", *dependent) for dependent in self._dependents.pop(uid, ())]
        self._places[uid] = place
        if metadata.get("deletionTimestamp"):
            if {ORPHAN, FOREGROUND} & set(metadata.get("finalizers") or []):
                keys.append(("finalize", *place))
        elif not owners <= self._places.keys():
            keys.append(("collect", *place))
        return keys

    def _index(self, place: Place, owners: frozenset[str]) -> frozenset[str]:
        """Returns the owners that the object had and no longer has."""
        left = self._owners.pop(place, frozenset()) - owners
        for uid in left:
            self._dependents.get(uid, set()).discard(place)
        for uid in owners:
            self._dependents.setdefault(uid, set()).add(place)
        if owners:
            self._owners[place] = owners
        return left

    def reconcile(self, key: Key) -> None:
        what, resource, namespace, name = key
        found = self.api.get(resource, namespace or None, name)
        if found is None:
            return
        if what == "finalize":
            self._finalize(resource, namespace, found)
        elif not found["metadata"].get("deletionTimestamp"):
            self._collect(resource, namespace, found)

    def _collect(self, resource: str, namespace: str, found: Object) -> None:
        references = found["metadata"].get("ownerReferences") or []
        living = [owner for owner in references if owner["uid"] in self._places]
        if len(living) < len(references):
            self._drop(resource, namespace, found, living, "Background")

    def _drop(self, resource: str, namespace: str, found: Object, remaining: list[Object], propagation: str) -> None:
        """Delete a dependent, or only its references to dead owners while another one lives."""
        metadata = found["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        if remaining:
            self._set_owners(resource, namespace, found, remaining)
            return
        if ORPHAN in (metadata.get("finalizers") or []):
            propagation = "Orphan"
        self.api.delete(resource, namespace or None, name, uid=uid, propagation=propagation)

    def _set_owners(self, resource: str, namespace: str, found: Object, owners: list[Object]) -> None:
        metadata = found["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "ownerReferences": owners or None}}
        self.api.merge_patch(resource, namespace or None, metadata["name"], patch)

    def _finalize(self, resource: str, namespace: str, owner: Object) -> None:
        metadata = owner["metadata"]
        if not metadata.get("deletionTimestamp"):
            return
        finalizers = list(metadata.get("finalizers") or [])
        if ORPHAN in finalizers:
            self._orphan_dependents(metadata["uid"])
            done = ORPHAN
        elif FOREGROUND in finalizers:
            if self._deletes_dependents(metadata["uid"]):
                return
            done = FOREGROUND
        else:
            return
        # Dependents that vanished at once may have brought the owner here before: look again.
        current = self.api.get(resource, namespace or None, metadata["name"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return
        rest = [finalizer for finalizer in current["metadata"].get("finalizers") or [] if finalizer != done]
        patch = {"metadata": {"uid": metadata["uid"], "finalizers": rest or None}}
        self.api.merge_patch(resource, namespace or None, metadata["name"], patch)

    def _living_dependents(self, uid: str) -> list[tuple[Place, Object]]:
        places = sorted(self._dependents.get(uid, ()))
        found = ((place, self.api.get(place[0], place[1] or None, place[2])) for place in places)
        return [(place, obj) for place, obj in found if obj is not None]

    def _orphan_dependents(self, uid: str) -> None:
        for (kind, where, _), found in self._living_dependents(uid):
            others = [owner for owner in found["metadata"].get("ownerReferences") or [] if owner["uid"] != uid]
            self._set_owners(kind, where, found, others)

    def _deletes_dependents(self, uid: str) -> bool:
        """Ask for the deletion of every dependent; returns whether one that blocks the owner is still there."""
        for (kind, where, _), found in self._living_dependents(uid):
            if found["metadata"].get("deletionTimestamp"):
                continue
            references = found["metadata"].get("ownerReferences") or []
            others = [owner for owner in references if owner["uid"] != uid and owner["uid"] in self._places]
            has_dependents = bool(self._dependents.get(found["metadata"]["uid"]))
            self._drop(kind, where, found, others, "Foreground" if has_dependents else "Background")
        return any(
            reference["uid"] == uid and reference.get("blockOwnerDeletion")
            for _, found in self._living_dependents(uid)
            for reference in found["metadata"].get("ownerReferences") or []
        )
