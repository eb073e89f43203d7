"""One Service per traffic class and one for the pool itself (docs/design.md §6.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenflow_contract import labels
from evenflow_contract.environment import ENGINE_PORT, ENGINE_PORT_NAME
from evenflow_contract.names import DEFAULT_CLASS
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.core.decisions import decision
from evenflow_operator.core.plan import Command, Decision, DeleteService, PutService
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import ServicePort, ServiceView

PORTS = (ServicePort(ENGINE_PORT_NAME, ENGINE_PORT, ENGINE_PORT),)


@dataclass(frozen=True, slots=True)
class ServicePlan:
    commands: tuple[Command, ...]
    decisions: tuple[Decision, ...]
    conflicts: tuple[str, ...]
    """Names that the pool needs and that belong to somebody else."""


def services(situation: Situation) -> ServicePlan:
    snapshot = situation.snapshot
    wanted = {
        labels.service_name(snapshot.name, name): name
        for name in (DEFAULT_CLASS, *(entry.name for entry in situation.spec.traffic_classes))
    }
    existing = {view.name: view for view in snapshot.services}
    commands: list[Command] = []
    decisions: list[Decision] = []
    conflicts: list[str] = []
    for name, traffic_class in wanted.items():
        view = existing.get(name)
        if view is None:
            commands.append(PutService(_manifest(situation, name, traffic_class)))
            message = f"create Service {name} for class {traffic_class}"
            decisions.append(
                decision(DecisionType.CREATE_SERVICE, DecisionReason.SERVICE_MISSING, message, service=name)
            )
        elif view.owner_uid != snapshot.uid:
            conflicts.append(name)
        elif _drifted(situation, view, traffic_class):
            manifest = _manifest(situation, name, traffic_class)
            commands.append(PutService(manifest, view.uid, view.resource_version))
            message = f"restore selector and ports of Service {name}"
            decisions.append(
                decision(DecisionType.UPDATE_SERVICE, DecisionReason.SERVICE_DRIFTED, message, service=name)
            )
    for view in snapshot.services:
        if view.owner_uid == snapshot.uid and view.name not in wanted:
            commands.append(DeleteService(view.name, view.uid))
            message = f"delete Service {view.name}: class {view.traffic_class} is gone"
            decisions.append(
                decision(DecisionType.DELETE_SERVICE, DecisionReason.CLASS_REMOVED, message, service=view.name)
            )
    return ServicePlan(tuple(commands), tuple(decisions), tuple(conflicts))


def _drifted(situation: Situation, view: ServiceView, traffic_class: str) -> bool:
    selector = labels.service_selector(situation.snapshot.name, traffic_class)
    return dict(view.selector) != selector or view.ports != PORTS


def _manifest(situation: Situation, name: str, traffic_class: str) -> Mapping[str, Any]:
    snapshot = situation.snapshot
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": snapshot.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "evenflow",
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
