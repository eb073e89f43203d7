"""What kubectl get prints."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenflow_devcluster.embedded.http.tables import BUILTIN, json_path, table
from evenflow_devcluster.embedded.kinds.columns import age, duration
from evenflow_devcluster.embedded.kinds.resources import Column, Resource, builtin_resources
from evenflow_devcluster.embedded.schema.structural import ANY

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CREATED = "2026-01-01T11:59:30Z"
RESOURCES = {resource.qualified: resource for resource in builtin_resources()}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (601, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 120, "3h2m"),
        (9 * 3600, "9h"),
        (49 * 3600, "2d1h"),
        (9 * 86400, "9d"),
        (800 * 86400, "2y70d"),
        (-5, "<invalid>"),
    ],
)
def test_durations_as_kubectl_words_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_missing_time_is_unknown_and_not_zero() -> None:
    assert age(None, NOW) == "<unknown>"


def row(qualified: str, obj: dict[str, Any]) -> dict[str, Any]:
    obj = {**obj, "metadata": {"name": "x", "creationTimestamp": CREATED, **obj.get("metadata", {})}}
    made = table(RESOURCES[qualified], [obj], {}, "None", NOW)
    names = [column["name"] for column in made["columnDefinitions"]]
    return dict(zip(names, made["rows"][0]["cells"], strict=True))


def test_every_builtin_kind_has_columns_and_prints_an_empty_object() -> None:
    assert set(BUILTIN) == set(RESOURCES)
    for qualified in BUILTIN:
        assert row(qualified, {})["Name"] == "x"


def test_pods() -> None:
    state = {"ready": True, "restartCount": 2, "state": {"running": {}}}
    pod: dict[str, Any] = {
        "spec": {"containers": [{}, {}], "nodeName": "n1"},
        "status": {"phase": "Running", "podIP": "127.77.0.1", "containerStatuses": [state, {"ready": False}]},
    }
    cells = row("pods", pod)
    assert (cells["Ready"], cells["Status"], cells["Restarts"], cells["Age"]) == ("1/2", "Running", "2", "30s")
    assert (cells["IP"], cells["Node"]) == ("127.77.0.1", "n1")
    pod["status"]["containerStatuses"][1]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert row("pods", pod)["Status"] == "CrashLoopBackOff"
    pod["metadata"] = {"deletionTimestamp": CREATED}
    assert row("pods", pod)["Status"] == "Terminating"


def test_pods_whose_init_container_runs() -> None:
    pod = {
        "spec": {"containers": [{}], "initContainers": [{}, {}]},
        "status": {"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]},
    }
    assert row("pods", pod)["Status"] == "Init:0/2"


def test_nodes_and_services() -> None:
    node = {"spec": {"unschedulable": True}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert row("nodes", node)["Status"] == "Ready,SchedulingDisabled"
    assert row("nodes", {})["Status"] == "Unknown"
    service = {
        "spec": {"type": "ClusterIP", "clusterIP": "127.78.0.9", "ports": [{"port": 8000}], "selector": {"a": "b"}}
    }
    cells = row("services", service)
    assert (cells["Cluster-IP"], cells["Port(s)"], cells["Selector"]) == ("127.78.0.9", "8000/TCP", "a=b")


def test_custom_columns_follow_their_json_paths() -> None:
    columns = (
        Column("Desired", "integer", ".spec.replicas"),
        Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        Column("First", "string", ".spec.items[0].name"),
        Column("All", "string", ".spec.items[*].name"),
        Column("Age", "date", ".metadata.creationTimestamp"),
        Column("Gone", "string", ".spec.missing"),
    )
    resource = Resource("e.com", "v1", "things", "thing", "Thing", True, ANY, custom=True, columns=columns)
    obj = {
        "metadata": {"name": "t", "creationTimestamp": CREATED},
        "spec": {"replicas": 3, "items": [{"name": "a"}, {"name": "b"}]},
        "status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
    }
    made = table(resource, [obj], {}, "Object", NOW + timedelta(seconds=1))
    assert made["rows"][0]["cells"] == ["t", 3, "True", "a", "a,b", "31s", None]
    assert made["rows"][0]["object"] is obj


def test_json_path_reads_escaped_keys() -> None:
    obj = {"metadata": {"labels": {"a.b/c": "v"}}}
    assert json_path(obj, r".metadata.labels.a\.b/c") == ["v"]
    assert json_path(obj, ".metadata.labels['a.b/c']") == ["v"]
