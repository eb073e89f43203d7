"""One Service per traffic class and one for the pool itself (docs/design.md §6.1)."""

from dataclasses import dataclass
from typing import Any

from evenflow_contract import labels
from evenflow_contract.environment import ENGINE_PORT, ENGINE_PORT_NAME
from evenflow_contract.names import DEFAULT_CLASS
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.core.decisions import ADVICE, decision
from evenflow_operator.core.plan import Command, Decision, DeleteService, PutService
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import ServicePort, ServiceView
from evenflow_operator.core.times import CLOCK_SKEW_SECONDS, parse_time, rfc3339

PORTS = (ServicePort(ENGINE_PORT_NAME, ENGINE_PORT, ENGINE_PORT),)
RESTORES = 6
RESTORES_SECONDS = 60.0
"""After so many restorations within so many seconds the pool's Services stay as they are for the rest of the time:
whoever changes them back each time is not raced with."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    commands: tuple[Command, ...]
    decisions: tuple[Decision, ...]
    conflicts: tuple[str, ...]
    """Names that the pool needs and that belong to somebody else."""
    due: float | None
    """Seconds until the Service of a removed class goes, or until changed ones may be restored again."""


_Step = tuple[Command, Decision]


def services(situation: Situation) -> ServicePlan:
    snapshot = situation.snapshot
    wanted = {
        labels.service_name(snapshot.name, name): name
        for name in (DEFAULT_CLASS, *(entry.name for entry in situation.spec.traffic_classes))
    }
    existing = {view.name: view for view in snapshot.services}
    conflicts = tuple(
        name for name, purpose in wanted.items() if name in existing and not _ours(situation, existing[name], purpose)
    )
    own = [view for view in snapshot.services if view.owner_uid == snapshot.uid and not view.deleting]
    surplus = [view for view in own if view.name not in wanted]
    steps = [
        _kept(situation, name, traffic_class, existing.get(name))
        for name, traffic_class in wanted.items()
        if name not in conflicts
    ]
    steps += [_removed(situation, view) for view in surplus]
    taken = [step for step in steps if step is not None]
    due = [_left(situation, view) for view in surplus]
    pause = _pause(situation)
    due += [pause] if pause > 0 else []
    return ServicePlan(
        commands=tuple(command for command, _ in taken),
        decisions=tuple(why for _, why in taken),
        conflicts=conflicts,
        due=min(due, default=None),
    )


def _kept(situation: Situation, name: str, traffic_class: str, view: ServiceView | None) -> _Step | None:
    manifest = _manifest(situation, name, traffic_class)
    if view is None:
        message = f"create Service {name} for class {traffic_class}"
        why = decision(DecisionType.CREATE_SERVICE, DecisionReason.SERVICE_MISSING, message, service=name)
        return PutService(manifest), why
    if view.deleting:
        return None
    put = PutService(manifest, view.uid, view.resource_version)
    if view.class_removed is not None:
        if not _served(situation, traffic_class):
            return None
        message = f"class {traffic_class} is back: Service {name} leads to its pods again"
        return put, decision(DecisionType.UPDATE_SERVICE, DecisionReason.CLASSES_CHANGED, message, service=name)
    if view.orphan:
        message = f"adopt Service {name}: it has no owner and is this pool's by its labels"
        return put, decision(DecisionType.UPDATE_SERVICE, DecisionReason.ORPHAN_ADOPTED, message, service=name)
    return _restored(situation, view, put)


def _ours(situation: Situation, view: ServiceView, traffic_class: str) -> bool:
    snapshot = situation.snapshot
    orphan = view.orphan and (view.pool, view.traffic_class) == (snapshot.name, traffic_class)
    return orphan or view.owner_uid == snapshot.uid


def _removed(situation: Situation, view: ServiceView) -> _Step | None:
    """Its clients are not cut off at once: a class may go by mistake, and they need time to go elsewhere."""
    name, traffic_class, left = view.name, view.traffic_class or "", _left(situation, view)
    grace = situation.spec.rollout.drain_timeout_seconds
    if left <= 0:
        message = f"delete Service {name}: class {traffic_class} has been gone for {grace} s"
        why = decision(DecisionType.DELETE_SERVICE, DecisionReason.CLASS_REMOVED, message, service=name)
        return DeleteService(view.name, view.uid), why
    noted = _noted(situation, view)
    manifest = _manifest(situation, name, DEFAULT_CLASS)
    manifest["metadata"]["labels"][labels.TRAFFIC_CLASS] = traffic_class
    manifest["metadata"]["annotations"] = {labels.CLASS_REMOVED: rfc3339(noted or situation.now)}
    put = PutService(manifest, view.uid, view.resource_version)
    if noted is None:
        message = (
            f"class {traffic_class} is gone from spec.trafficClasses: Service {name} leads to every pod for {grace} s, "
            "then it is deleted; put the class back to keep it"
        )
        return put, decision(DecisionType.UPDATE_SERVICE, DecisionReason.CLASS_REMOVED, message, service=name)
    return _restored(situation, view, put)


def _noted(situation: Situation, view: ServiceView) -> float | None:
    """Since when the Service's class is gone."""
    since = view.class_removed
    return since if since is not None and since <= situation.now + CLOCK_SKEW_SECONDS else None


def _left(situation: Situation, view: ServiceView) -> float:
    """Seconds that the Service of a removed class still has."""
    since = _noted(situation, view) or situation.now
    return since + situation.spec.rollout.drain_timeout_seconds - situation.now


def _served(situation: Situation, traffic_class: str) -> bool:
    """Whether the class's own selector finds a pod; a class that comes back has none before its label is set."""
    available = [pod for pod in situation.filling.values() if situation.available(pod)]
    return traffic_class == DEFAULT_CLASS or not available or any(traffic_class in pod.classes for pod in available)


def _restored(situation: Situation, view: ServiceView, put: PutService) -> _Step | None:
    """Selector and ports brought back, if somebody changed them."""
    if dict(view.selector) == put.manifest["spec"]["selector"] and view.ports == PORTS:
        return None
    if _pause(situation) > 0:
        return None
    message = f"restore selector and ports of Service {view.name}"
    return put, decision(DecisionType.UPDATE_SERVICE, DecisionReason.SERVICE_DRIFTED, message, service=view.name)


def _pause(situation: Situation) -> float:
    """Seconds until Services may be restored again, by the record of decisions; 0 or less: now."""
    drifted = (DecisionType.UPDATE_SERVICE.value, DecisionReason.SERVICE_DRIFTED.value)
    times = sorted(
        time
        for record in situation.snapshot.memory.decisions
        if (record["type"], record["reason"]) == drifted
        and not str(record.get("message", "")).startswith(ADVICE)
        and (time := parse_time(record["time"])) is not None
        and time <= situation.now + CLOCK_SKEW_SECONDS
    )
    return times[-RESTORES] + RESTORES_SECONDS - situation.now if len(times) >= RESTORES else 0.0


def _manifest(situation: Situation, name: str, traffic_class: str) -> dict[str, Any]:
    snapshot = situation.snapshot
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": snapshot.namespace,
            "labels": {
                labels.MANAGED_BY: labels.MANAGER,
                labels.POOL: snapshot.name,
                labels.TRAFFIC_CLASS: traffic_class,
            },
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": snapshot.name,
                    "uid": snapshot.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "selector": labels.service_selector(snapshot.name, traffic_class),
            "ports": [
                {"name": name, "port": port, "targetPort": target, "protocol": protocol}
                for name, port, target, protocol in PORTS
            ],
        },
    }
