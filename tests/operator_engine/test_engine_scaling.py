"""Writing replicas: through /scale, only as decided on, told once; who else writes them; the autoscaler's metrics."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Stage, eventually, pools, running, stage
from engine_kit import NAMESPACE, DictCluster, ManualClock, pool_object, pool_record

from evenflow_operator.adapters import views
from evenflow_operator.adapters.cluster import KubeCluster
from evenflow_operator.adapters.kube import MERGE_PATCH
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.core.decisions import recorded
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.plan import Decision, Plan, ScalePool, ScalingFigures
from evenflow_operator.core.snapshot import ReplicaWriter
from evenflow_operator.engine.act import Actor
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.push import Pusher
from evenflow_operator.engine.settle import settle_plan
from evenflow_operator.ports import ApiError
from evenflow_operator.telemetry import Telemetry

KEY = (NAMESPACE, "llama")
UP = ScalePool(5, Decision("Scale", "LoadAboveTarget", "replicas 2 -> 5", {"replicas": "5"}))


class NoPushes(Pusher):
    def __init__(self) -> None:
        pass


def actor(cluster: DictCluster, **record: Any) -> tuple[Actor, Any]:
    expectations = Expectations(ManualClock())
    cache = Cache(expectations, lambda key: None)
    known = pool_record()
    cache.put(known)
    cluster.pools[KEY] = replace(known, **record)
    return Actor(cluster, cache, expectations, NoPushes()), known


async def test_replicas_are_written_to_the_pool_that_was_decided_on() -> None:
    cluster = DictCluster()
    act, record = actor(cluster)
    outcome = await act.act(record, [UP])
    assert (cluster.scaled, outcome.failures) == ([5], [])


async def test_a_pool_that_changed_meanwhile_is_decided_about_again() -> None:
    cluster = DictCluster()
    act, record = actor(cluster, resource_version="2")
    outcome = await act.act(record, [UP])
    assert cluster.scaled == []
    assert outcome.stale


async def test_a_refusal_is_a_failure_with_its_reason() -> None:
    cluster = DictCluster()
    act, record = actor(cluster)
    cluster.fail_before = lambda verb, name: ApiError(403, "Forbidden", "no patch of llmservingpools/scale")
    outcome = await act.act(record, [UP])
    assert [failure.refused for failure in outcome.failures] == [True]
    assert "scale to 5: 403" in outcome.failures[0].problem


def test_what_was_not_written_is_neither_remembered_nor_told() -> None:
    memory = PoolMemory(decisions=recorded((), [UP.decision], 1000.0))
    plan = Plan((UP,), (UP.decision,), {"decisions": list(memory.decisions)}, memory, None)
    kept, status, decisions = settle_plan(plan, PoolMemory(), [UP])
    assert (kept.decisions, decisions) == ((), ())
    assert status is not None
    assert status["decisions"] == []


def test_owners_of_replicas_are_read_from_managed_fields() -> None:
    entries: list[Any] = [
        {
            "manager": "kubectl",
            "operation": "Update",
            "subresource": "scale",
            "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        },
        {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": {"f:model": {"f:name": {}}}}},
        {"manager": "broken", "fieldsV1": None},
        "nonsense",
        {"manager": "timeless", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    obj = pool_object()
    obj["metadata"]["managedFields"] = entries
    record = views.pool_record(obj)
    assert record is not None
    assert record.replica_writers == (
        ReplicaWriter("kubectl", "Update", "scale", 1767225600.0),
        ReplicaWriter("timeless", "Apply", "", None),
    )
    obj["metadata"]["managedFields"] = {"not": "a list"}
    record = views.pool_record(obj)
    assert record is not None
    assert record.replica_writers == ()


def test_metrics_show_what_the_autoscaler_sees_and_nothing_once_it_sees_nothing() -> None:
    telemetry = Telemetry()
    telemetry.scaling(KEY, ScalingFigures({"kv": 0.5, "stepBudget": 0.7, "sequences": 0.1}, 3, math.inf))
    telemetry.scaling(("other", "llama"), ScalingFigures({"kv": 0.1}, 1, 0.0))
    page = telemetry.render().decode()
    pool = 'namespace="serving",pool="llama"'
    assert f'evenflow_operator_autoscaling_load_ratio{{{pool},resource="stepBudget"}} 0.7' in page
    assert f"evenflow_operator_autoscaling_replicas_called_for{{{pool}}} 3.0" in page
    assert f"evenflow_operator_autoscaling_queue_drain_seconds{{{pool}}} +Inf" in page
    telemetry.scaling(KEY, None)
    telemetry.scaling(KEY, None)
    page = telemetry.render().decode()
    assert pool not in page
    assert 'namespace="other",pool="llama"' in page


async def scale_by_hand(s: Stage, replicas: int, manager: str = "kubectl") -> None:
    await s.request(
        "PATCH",
        f"{pools('default')}/llama/scale",
        query=[("fieldManager", manager)],
        body={"spec": {"replicas": replicas}},
        content_type=MERGE_PATCH,
    )


async def test_the_adapter_writes_scale_under_its_own_name_and_refuses_what_is_outdated(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        version = (await s.apply_pool(autoscaling={}))["metadata"]["resourceVersion"]
        cluster = KubeCluster(s.client)
        await cluster.scale_pool("default", "llama", 5, version)
        live = await cluster.get_pool("default", "llama")
        assert live is not None
        assert live[0].pool is not None
        assert live[0].pool.spec.replicas == 5
        assert [(one.manager, one.subresource) for one in live[0].replica_writers] == [("evenflow-autoscaler", "scale")]
        with pytest.raises(ApiError) as caught:
            await cluster.scale_pool("default", "llama", 6, version)
        assert caught.value.conflict
        await scale_by_hand(s, 4)
        live = await cluster.get_pool("default", "llama")
        assert live is not None
        assert [(one.manager, one.subresource) for one in live[0].replica_writers] == [("kubectl", "scale")]


async def test_bounds_are_written_through_scale_and_a_rival_is_left_alone(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        bounds = {"minReplicas": 3, "maxReplicas": 6}
        await s.apply_pool(replicas=1, autoscaling=bounds, rollout={"drainTimeoutSeconds": 1})
        await eventually(lambda: len(s.names()) == 3, "three pods, as minReplicas asks")
        pool = await s.pool()
        assert pool["spec"]["replicas"] == 3
        owners = {
            entry["manager"]: entry.get("subresource")
            for entry in pool["metadata"]["managedFields"]
            if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
        }
        assert owners == {"evenflow-autoscaler": "scale"}
        await eventually(
            lambda: s.condition("ScalingLimited").get("reason") == "MetricsUnavailable", "nothing answers the scrapes"
        )
        await scale_by_hand(s, 1, "kube-controller-manager")
        await eventually(lambda: s.condition("ScalingLimited").get("reason") == "OtherWriter", "the rival is reported")
        assert "kube-controller-manager" in s.condition("ScalingLimited")["message"]

        async def told() -> bool:
            events = (await s.request("GET", "/api/v1/namespaces/default/events"))["items"]
            return {"OutOfBounds", "OtherWriter"} <= {event["reason"] for event in events}

        await eventually(told, "both are told as Events")
        await eventually(lambda: len(s.names()) == 1, "the rival's number is obeyed")
        assert (await s.pool())["spec"]["replicas"] == 1


async def test_a_rival_is_left_alone_where_managed_fields_name_nobody(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        spec = {
            "model": {"name": "m"},
            "engine": {"type": "Simulated"},
            "autoscaling": {"minReplicas": 2, "maxReplicas": 6},
            "metrics": {"intervalSeconds": 1, "staleAfterSeconds": 10},
        }
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "llama"}, "spec": spec}
        await s.request(
            "PATCH",
            f"{pools('default')}/llama",
            body=body,
            content_type="application/apply-patch+yaml",
            query=[("fieldManager", "kubectl")],
        )
        await eventually(lambda: len(s.names()) == 2, "two pods, as minReplicas asks")
        await eventually(lambda: s.condition("ScalingLimited").get("reason") == "MetricsUnavailable", "no rival yet")
        entries = (await s.pool())["metadata"]["managedFields"]
        assert not any("f:replicas" in entry["fieldsV1"].get("f:spec", {}) for entry in entries)
        await scale_by_hand(s, 3, "kube-controller-manager")
        await eventually(lambda: s.condition("ScalingLimited").get("reason") == "OtherWriter", "somebody is reported")
        await eventually(lambda: len(s.names()) == 3, "the rival's number is obeyed")
