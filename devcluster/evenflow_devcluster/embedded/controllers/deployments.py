"""Rolls a Deployment's template out over ReplicaSets, within maxSurge and maxUnavailable."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evenflow_devcluster.embedded.controller_api import ControllerApi, StoreEvent
from evenflow_devcluster.embedded.controllers.loop import ControlLoop
from evenflow_devcluster.embedded.jsonvalues import Clock, Object, copied, timestamp
from evenflow_devcluster.embedded.kinds.workloads import DEPLOYMENTS, REPLICA_SETS, controller_of

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# As Kubernetes has it: no vowels, and nothing that looks like another letter.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

View = Mapping[str, Any]
Place = tuple[str, str]


class DeploymentController(ControlLoop[Place]):
    """Key: namespace and name of a Deployment."""

    watched = (DEPLOYMENTS, REPLICA_SETS)

    def __init__(self, api: ControllerApi, clock: Clock) -> None:
        super().__init__(api)
        self._clock = clock

    def touched(self, event: StoreEvent, before: View | None) -> list[Place]:
        metadata = event.object["metadata"]
        if event.resource == DEPLOYMENTS:
            return [(metadata["namespace"], metadata["name"])]
        owner = controller_of(event.object) if event.resource == REPLICA_SETS else None
        return [(metadata["namespace"], owner["name"])] if owner and owner["kind"] == "Deployment" else []

    def initial(self) -> list[Place]:
        return [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in self.mirror.values(DEPLOYMENTS)]

    def reconcile(self, key: Place) -> None:
        found = self.mirror.get(DEPLOYMENTS, *key)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        newest, older = self._sets(found)
        if newest is None:
            newest = self.api.create(REPLICA_SETS, key[0], _replica_set(found, older))
        elif _revision(newest) <= max(map(_revision, older), default=0):
            self._annotate(REPLICA_SETS, newest, max(map(_revision, older)) + 1)
        self._roll(found, newest, older)
        newest, older = self._sets(found)
        if newest is not None:
            if found["metadata"].get("annotations", {}).get(REVISION) != str(_revision(newest)):
                self._annotate(DEPLOYMENTS, found, _revision(newest))
            self._forget(found, older)
            self._write_status(found, newest, older)

    def _sets(self, found: View) -> tuple[View | None, list[View]]:
        """The ReplicaSet of the template as it is now, and the others, oldest first."""
        metadata = found["metadata"]
        owned = [
            one
            for one in self.mirror.values(REPLICA_SETS, metadata["namespace"])
            if (controller_of(one) or {}).get("uid") == metadata["uid"]
        ]
        owned.sort(key=_revision)
        wanted = found["spec"]["template"]
        newest = next((one for one in owned if _without_hash(one["spec"]["template"]) == wanted), None)
        return newest, [one for one in owned if one is not newest]

    def _annotate(self, resource: str, found: View, revision: int) -> None:
        metadata = found["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {REVISION: str(revision)}}}
        self.api.merge_patch(resource, metadata["namespace"], metadata["name"], patch)

    def _roll(self, found: View, newest: View, older: Sequence[View]) -> None:
        wanted = found["spec"]["replicas"]
        surge, unavailable = _bounds(found)
        total = _replicas(newest) + sum(map(_replicas, older))
        if _replicas(newest) != wanted:
            room = max(0, wanted + surge - total)
            self._scale(newest, min(wanted, _replicas(newest) + room))
            if room and _replicas(newest) < wanted:
                return
        # What isn't available serves nobody: it goes first, and costs nothing of what may be unavailable.
        spare = total - (wanted - unavailable) - (_replicas(newest) - _available(newest))
        for dead_first in (True, False):
            for one in older:
                has = _replicas(self.mirror.get(REPLICA_SETS, *_place(one)) or one)
                can_go = has - _available(one) if dead_first else has
                cut = min(can_go, spare)
                if cut > 0:
                    self._scale(one, has - cut)
                    spare -= cut

    def _scale(self, found: View, replicas: int) -> None:
        patch = {"metadata": {"uid": found["metadata"]["uid"]}, "spec": {"replicas": replicas}}
        self.api.merge_patch(REPLICA_SETS, *_place(found), patch)

    def _forget(self, found: View, older: Sequence[View]) -> None:
        gone = [one for one in older if not _replicas(one) and not (one.get("status") or {}).get("replicas")]
        for one in gone[: max(0, len(gone) - found["spec"]["revisionHistoryLimit"])]:
            self.api.delete(REPLICA_SETS, *_place(one), uid=one["metadata"]["uid"])

    def _write_status(self, found: View, newest: View, older: Sequence[View]) -> None:
        metadata, wanted = found["metadata"], found["spec"]["replicas"]
        every = [newest, *older]
        replicas = sum(_counted(one, "replicas") for one in every)
        available = sum(map(_available, every))
        updated = _counted(newest, "replicas")
        old = found.get("status") or {}
        enough = available >= wanted - _bounds(found)[1]
        complete = updated == wanted == available == replicas
        name = newest["metadata"]["name"]
        conditions = [
            ("Available", enough, f"MinimumReplicas{'Available' if enough else 'Unavailable'}",
             f"Deployment {'has' if enough else 'does not have'} minimum availability."),
            ("Progressing", True, "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
             f'ReplicaSet "{name}" {"has successfully progressed" if complete else "is progressing"}.'),
        ]  # fmt: skip
        status: Object = {
            "observedGeneration": metadata["generation"],
            "replicas": replicas or None,
            "updatedReplicas": updated or None,
            "readyReplicas": sum(_counted(one, "readyReplicas") for one in every) or None,
            "availableReplicas": available or None,
            "unavailableReplicas": max(0, max(wanted, replicas) - available) or None,
            "conditions": [self._condition(old, *one) for one in conditions],
        }
        if any(old.get(field) != value for field, value in status.items()):
            patch = {"metadata": {"uid": metadata["uid"]}, "status": status}
            self.api.merge_patch(DEPLOYMENTS, *_place(found), patch, subresource="status")

    def _condition(self, old: View, kind: str, holds: bool, reason: str, message: str) -> Object:
        status = "True" if holds else "False"
        before: View = next((one for one in old.get("conditions") or () if one["type"] == kind), {})
        now = timestamp(self._clock())
        new: Object = {"type": kind, "status": status, "reason": reason, "message": message}
        changed = any(before.get(field) != value for field, value in new.items())
        new["lastUpdateTime"] = now if changed else before["lastUpdateTime"]
        new["lastTransitionTime"] = before["lastTransitionTime"] if before.get("status") == status else now
        return new


def _replica_set(found: View, older: Sequence[View]) -> Object:
    metadata, spec = found["metadata"], found["spec"]
    digest = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).digest()
    label = "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:10])
    template, selector = copied(spec["template"]), copied(spec["selector"])
    template["metadata"].setdefault("labels", {})[HASH] = label
    selector.setdefault("matchLabels", {})[HASH] = label
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != _LAST_APPLIED}
    annotations[REVISION] = str(max(map(_revision, older), default=0) + 1)
    reference = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-{label}",
            "labels": copied(template["metadata"]["labels"]),
            "annotations": annotations,
            "ownerReferences": [reference],
        },
        # Scaled up afterwards, within what the strategy allows.
        "spec": {"replicas": 0, "selector": selector, "template": template},
    }


def _without_hash(template: View) -> Object:
    plain = copied(dict(template))
    plain["metadata"]["labels"].pop(HASH, None)
    return plain


def _place(found: View) -> Place:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def _revision(found: View) -> int:
    return int((found["metadata"].get("annotations") or {}).get(REVISION, 0))


def _replicas(found: View) -> int:
    return int(found["spec"]["replicas"])


def _counted(found: View, field: str) -> int:
    return int((found.get("status") or {}).get(field) or 0)


def _available(found: View) -> int:
    return _counted(found, "availableReplicas")


def _bounds(found: View) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods; not both zero, or nothing could move."""
    rolling, wanted = found["spec"]["strategy"]["rollingUpdate"], found["spec"]["replicas"]
    surge, unavailable = rolling["maxSurge"], rolling["maxUnavailable"]
    if isinstance(surge, str):
        surge = math.ceil(int(surge.rstrip("%")) * wanted / 100)
    if isinstance(unavailable, str):
        unavailable = math.floor(int(unavailable.rstrip("%")) * wanted / 100)
    return (surge, unavailable) if surge or unavailable else (0, 1)
