from dataclasses import replace
from typing import Any

import pytest
from core_toy_cluster import CHAT, ToyCluster, ready_cluster

from evenflow_operator.core.plan import DeleteService, Plan, PutService
from evenflow_operator.core.snapshot import ServicePort


def put(plan: Plan) -> list[str]:
    return [c.manifest["metadata"]["name"] for c in plan.commands if isinstance(c, PutService)]


def condition(cluster: ToyCluster, kind: str) -> dict[str, str]:
    return next(entry for entry in cluster.status["conditions"] if entry["type"] == kind)


def test_one_service_for_the_pool_and_one_per_class() -> None:
    cluster = ready_cluster()
    assert sorted(cluster.services) == ["llama", "llama-chat", "llama-code"]
    assert cluster.services["llama"].selector == {"evenflow.dev/pool": "llama", "evenflow.dev/serving": "true"}
    assert cluster.services["llama-chat"].selector == {
        "evenflow.dev/pool": "llama",
        "evenflow.dev/serving": "true",
        "class.evenflow.dev/chat": "true",
    }
    assert cluster.services["llama"].ports == (ServicePort("http", 8000, 8000, "TCP"),)


def test_the_service_of_a_removed_class_goes() -> None:
    cluster = ready_cluster()
    cluster.change(trafficClasses=[CHAT])
    plan = cluster.decide()
    assert [c.name for c in plan.commands if isinstance(c, DeleteService)] == ["llama-code"]


def test_a_changed_selector_is_brought_back() -> None:
    cluster = ready_cluster()
    view = cluster.services["llama-chat"]
    cluster.services["llama-chat"] = replace(view, selector={"app": "other"})
    plan = cluster.decide()
    (command,) = [c for c in plan.commands if isinstance(c, PutService)]
    assert (command.uid, command.resource_version) == (view.uid, view.resource_version)


@pytest.mark.parametrize(
    "change", [{"name": "web"}, {"port": 80}, {"target": 9000}, {"target": "admin"}, {"protocol": "UDP"}]
)
def test_changed_ports_are_brought_back(change: dict[str, Any]) -> None:
    cluster = ready_cluster()
    view = cluster.services["llama-chat"]
    cluster.services["llama-chat"] = replace(view, ports=(view.ports[0]._replace(**change),))
    assert put(cluster.decide()) == ["llama-chat"]
    assert cluster.services["llama-chat"].ports == view.ports
    assert put(cluster.decide()) == []


def test_a_service_of_somebody_else_is_reported_and_the_others_are_served() -> None:
    cluster = ready_cluster(replicas=1)
    view = cluster.services.pop("llama-code")
    foreign = replace(view, owner_uid="somebody", selector={"app": "other"})
    cluster.services["llama-code"] = foreign
    assert put(cluster.decide()) == []
    assert condition(cluster, "SpecValid")["reason"] == "NameConflict"
    assert "llama-code" in condition(cluster, "SpecValid")["message"]
    assert cluster.services["llama-code"] == foreign
    assert condition(cluster, "Ready")["status"] == "True"
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ServiceConflict")
    assert degraded["message"].endswith("Service llama-code")
    del cluster.services["llama-code"]
    assert put(cluster.decide()) == ["llama-code"]
    cluster.decide()
    assert condition(cluster, "SpecValid")["status"] == "True"
    assert condition(cluster, "Degraded")["status"] == "False"


def test_a_foreign_service_that_the_pool_does_not_need_is_left_alone() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.services["other"] = replace(cluster.services["llama"], name="other", owner_uid="somebody")
    assert cluster.decide().commands == ()
