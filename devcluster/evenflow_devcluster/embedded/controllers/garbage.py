"""Deletes what belonged to a deleted owner: background, foreground and orphan propagation."""

from typing import Any

from evenflow_devcluster.embedded.controller_api import ControllerApi, StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"

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

    def touched(self, event: StoreEvent) -> list[Key]:
        metadata = event.object["metadata"]
        place = (event.resource, metadata.get("namespace", ""), metadata["name"])
        owners = frozenset(owner["uid"] for owner in metadata.get("ownerReferences") or [])
        self._index(place, frozenset() if event.type == "DELETED" else owners)
        if event.type == "DELETED":
            self._places.pop(metadata["uid"], None)
            orphaned: list[Key] = [("collect", *place) for place in self._dependents.get(metadata["uid"], ())]
            held: list[Key] = [("finalize", *self._places[owner]) for owner in owners if owner in self._places]
            return orphaned + held
        self._places[metadata["uid"]] = place
        if metadata.get("deletionTimestamp") and {ORPHAN, FOREGROUND} & set(metadata.get("finalizers") or []):
            return [("finalize", *place)]
        if event.type == "ADDED" and not owners <= self._places.keys():
            return [("collect", *place)]
        return []

    def initial(self) -> list[Key]:
        return []

    def _index(self, place: Place, owners: frozenset[str]) -> None:
        before = self._owners.pop(place, frozenset())
        for uid in before - owners:
            self._dependents.get(uid, set()).discard(place)
        for uid in owners:
            self._dependents.setdefault(uid, set()).add(place)
        if owners:
            self._owners[place] = owners

    def reconcile(self, key: Key) -> None:
        what, resource, namespace, name = key
        found = self.api.get(resource, namespace or None, name)
        if found is None:
            return
        if what == "finalize":
            self._finalize(resource, namespace, found)
        elif not found["metadata"].get("deletionTimestamp"):
            self._collect(resource, namespace, found)

    def _collect(self, resource: str, namespace: str, found: dict[str, Any]) -> None:
        references = found["metadata"].get("ownerReferences") or []
        living = [owner for owner in references if owner["uid"] in self._places]
        if not references or len(living) == len(references):
            return
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        if living:
            patch = {"metadata": {"uid": uid, "ownerReferences": living}}
            self.api.merge_patch(resource, namespace or None, name, patch)
        else:
            self.api.delete(resource, namespace or None, name, uid=uid, propagation="Background")

    def _finalize(self, resource: str, namespace: str, owner: dict[str, Any]) -> None:
        metadata = owner["metadata"]
        finalizers = list(metadata.get("finalizers") or [])
        dependents = [
            (place, found)
            for place in list(self._dependents.get(metadata["uid"], ()))
            if (found := self.api.get(place[0], place[1] or None, place[2])) is not None
        ]
        if ORPHAN in finalizers:
            for (kind, where, name), found in dependents:
                others = [o for o in found["metadata"]["ownerReferences"] if o["uid"] != metadata["uid"]]
                self.api.merge_patch(kind, where or None, name, {"metadata": {"ownerReferences": others or None}})
            done = ORPHAN
        elif FOREGROUND in finalizers and metadata.get("deletionTimestamp"):
            blocking = False
            for (kind, where, name), found in dependents:
                reference = next(o for o in found["metadata"]["ownerReferences"] if o["uid"] == metadata["uid"])
                blocking = blocking or bool(reference.get("blockOwnerDeletion"))
                if not found["metadata"].get("deletionTimestamp"):
                    uid = found["metadata"]["uid"]
                    self.api.delete(kind, where or None, name, uid=uid, propagation="Foreground")
            # Objects that vanish at once are no longer blocking; those that stay bring us back when they go.
            if blocking and any(self.api.get(p[0], p[1] or None, p[2]) is not None for p, _ in dependents):
                return
            done = FOREGROUND
        else:
            return
        current = self.api.get(resource, namespace or None, metadata["name"])
        if current is None:
            return
        left = [finalizer for finalizer in current["metadata"].get("finalizers") or [] if finalizer != done]
        self.api.merge_patch(resource, namespace or None, metadata["name"], {"metadata": {"finalizers": left or None}})
