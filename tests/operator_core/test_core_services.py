from dataclasses import replace
from typing import Any

import pytest
from core_toy_cluster import CHAT, CODE, ToyCluster, ready_cluster

from evenflow_operator.core import services
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


def test_the_service_of_a_removed_class_leads_to_every_pod_for_a_while_and_then_goes() -> None:
    cluster = ready_cluster(rollout={"drainTimeoutSeconds": 300})
    cluster.change(trafficClasses=[CHAT])
    removed_at = cluster.now
    plan = cluster.decide()
    assert put(plan) == ["llama-code"]
    assert [(one.type, one.reason) for one in plan.decisions if "llama-code" in one.message] == [
        ("UpdateService", "ClassRemoved")
    ]
    view = cluster.services["llama-code"]
    assert view.selector == cluster.services["llama"].selector
    assert view.traffic_class == "code"
    cluster.tick(299)
    assert put(cluster.decide()) == []
    assert "llama-code" in cluster.services
    pause = cluster.decide().requeue_after
    assert pause is not None
    assert pause <= removed_at + 300 - cluster.now
    cluster.tick(1)
    plan = cluster.decide()
    assert [c.name for c in plan.commands if isinstance(c, DeleteService)] == ["llama-code"]
    assert sorted(cluster.services) == ["llama", "llama-chat"]


def test_a_service_that_waits_for_a_finalizer_is_neither_deleted_again_nor_written() -> None:
    cluster = ready_cluster(rollout={"drainTimeoutSeconds": 0})
    cluster.change(trafficClasses=[CHAT])
    for name in ("llama-chat", "llama-code"):
        cluster.services[name] = replace(cluster.services[name], deleting=True, selector={})
    plan = cluster.decide()
    assert put(plan) == []
    assert not [c for c in plan.commands if isinstance(c, DeleteService)]
    del cluster.services["llama-chat"]
    assert put(cluster.decide()) == ["llama-chat"]


def test_a_class_that_comes_back_in_time_gets_its_service_once_a_pod_serves_it() -> None:
    cluster = ready_cluster()
    before = cluster.services["llama-code"]
    cluster.change(trafficClasses=[])
    assert sorted(put(cluster.decide())) == ["llama-chat", "llama-code"]
    cluster.run(3)
    assert not any(pod.classes for pod in cluster.pods.values())
    cluster.change(trafficClasses=[CHAT, CODE])
    for _ in range(10):
        found = [pod for pod in cluster.pods.values() if "code" in pod.classes]
        selector = cluster.services["llama-code"].selector
        assert found or selector == cluster.services["llama"].selector, "the Service always finds a pod"
        cluster.decide()
        cluster.tick()
    assert cluster.services["llama-code"].selector == before.selector
    assert cluster.services["llama-code"].class_removed is None


def test_without_a_drain_timeout_the_service_of_a_removed_class_goes_at_once() -> None:
    cluster = ready_cluster(rollout={"drainTimeoutSeconds": 0})
    cluster.change(trafficClasses=[CHAT])
    assert [c.name for c in cluster.decide().commands if isinstance(c, DeleteService)] == ["llama-code"]


def test_a_removal_noted_in_the_future_begins_now_and_a_changed_selector_is_brought_back() -> None:
    cluster = ready_cluster()
    cluster.change(trafficClasses=[CHAT])
    cluster.decide()
    view = cluster.services["llama-code"]
    cluster.services["llama-code"] = replace(view, class_removed=cluster.now + 86_400)
    cluster.decide()
    assert cluster.services["llama-code"].class_removed == pytest.approx(cluster.now, abs=1)
    cluster.services["llama-code"] = replace(view, selector={"app": "other"})
    cluster.decide()
    assert cluster.services["llama-code"].selector == view.selector
    assert cluster.services["llama-code"].class_removed == view.class_removed


def test_advice_to_remove_a_class_is_given_once_and_touches_no_service() -> None:
    cluster = ready_cluster(mode="Active")
    before = dict(cluster.services)
    cluster.change(mode="Advisory", trafficClasses=[])
    reasons = []
    for _ in range(5):
        reasons += [one.message for one in cluster.decide().decisions if one.reason == "ClassRemoved"]
        cluster.tick()
    assert len(reasons) == 2
    assert all(text.startswith("would: ") for text in reasons)
    assert cluster.services == before


def test_a_changed_selector_is_brought_back() -> None:
    cluster = ready_cluster()
    view = cluster.services["llama-chat"]
    cluster.services["llama-chat"] = replace(view, selector={"app": "other"})
    plan = cluster.decide()
    (command,) = [c for c in plan.commands if isinstance(c, PutService)]
    assert (command.uid, command.resource_version) == (view.uid, view.resource_version)


def drift(cluster: ToyCluster) -> None:
    changed = replace(cluster.services["llama-chat"], selector={"app": "theirs"}, resource_version="9")
    cluster.services["llama-chat"] = changed


def test_somebody_who_changes_a_service_back_each_time_is_not_raced_with() -> None:
    cluster = ready_cluster()
    writes = 0
    for _ in range(60):
        drift(cluster)
        plan = cluster.decide()
        writes += put(plan) == ["llama-chat"]
        assert plan.requeue_after is not None
        assert plan.requeue_after <= services.RESTORES_SECONDS
        cluster.tick(1)
    assert writes == services.RESTORES
    drift(cluster)
    assert put(cluster.decide()) == ["llama-chat"], "a minute later"


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


def test_services_that_a_pool_left_behind_are_taken_over_by_the_next_one_of_its_name() -> None:
    cluster = ready_cluster()
    for name, view in cluster.services.items():
        cluster.services[name] = replace(view, owner_uid=None, orphan=True)
    plan = cluster.decide()
    assert sorted(put(plan)) == ["llama", "llama-chat", "llama-code"]
    assert {(one.type, one.reason) for one in plan.decisions} == {("UpdateService", "OrphanAdopted")}
    assert put(cluster.decide()) == []
    assert condition(cluster, "SpecValid")["status"] == "True"


@pytest.mark.parametrize(
    "change", [{"orphan": False}, {"pool": "other"}, {"traffic_class": "code"}, {"traffic_class": None}]
)
def test_a_service_without_an_owner_that_this_pool_did_not_make_is_not_taken_over(change: dict[str, Any]) -> None:
    cluster = ready_cluster()
    fields = {"owner_uid": None, "orphan": True, **change}
    cluster.services["llama-chat"] = replace(cluster.services["llama-chat"], **fields)
    assert put(cluster.decide()) == []
    assert condition(cluster, "SpecValid")["reason"] == "NameConflict"


def test_a_foreign_service_that_the_pool_does_not_need_is_left_alone() -> None:
    cluster = ready_cluster(replicas=1)
    cluster.services["other"] = replace(cluster.services["llama"], name="other", owner_uid="somebody")
    assert cluster.decide().commands == ()
