import json
from typing import Any

import pytest
from engine_kit import pool_object
from hypothesis import given
from hypothesis import strategies as st

from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_operator.adapters import views

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "metadata", "spec", "status", "labels", "annotations", "ownerReferences", "conditions", "containerStatuses",
    "endpoints", "taints", "selector", "ports", "uid", "name", "namespace", "creationTimestamp", "restartCount",
    "state", "evenflow.dev/pool", "evenflow.dev/slot", "evenflow.dev/worker-config", "evenflow.dev/drain-started",
)  # fmt: skip
OBJECTS = st.recursive(
    JSON,
    lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6) | st.lists(inner, max_size=2),
    max_leaves=12,
)


def pod(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "llama-3-abc",
            "namespace": "serving",
            "uid": "u1",
            "resourceVersion": "17",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "evenflow.dev/pool": "llama",
                "evenflow.dev/slot": "3",
                "evenflow.dev/revision": "r1",
                "evenflow.dev/attempt": "2",
                "evenflow.dev/serving": "true",
                "class.evenflow.dev/chat": "true",
                "class.evenflow.dev/code": "false",
            },
            "ownerReferences": [{"uid": "not-it"}, {"uid": "pool-1", "controller": True}],
            **metadata,
        },
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": "127.77.0.3",
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"},
                {"type": "PodScheduled", "status": "True"},
            ],
            "containerStatuses": [{"restartCount": 2, "state": {"running": {}}}],
        },
    }


def test_a_pod_is_read() -> None:
    record = views.pod_record(pod())
    assert record is not None
    view = record.view
    assert (record.namespace, record.pool, view.slot, view.attempt, view.owner_uid) == (
        "serving",
        "llama",
        3,
        2,
        "pool-1",
    )
    assert (view.ready, view.serving, view.classes, view.node) == (True, True, {"chat"}, "n1")
    assert view.created_at == 1767225600.0
    assert view.ready_since == 1767225660.0
    assert view.restarts == 2
    assert not view.deleting


def test_the_worker_config_is_read_or_its_problem_is_told() -> None:
    config = WorkerConfig(generation=4, admission=Admission("Limited", "Volume", 0.98))
    good = views.pod_view(pod(annotations={"evenflow.dev/worker-config": config.to_json()}))
    assert good is not None
    assert good.worker_config == config
    document = json.loads(config.to_json())
    del document["admission"]["perIteration"]
    bad = views.pod_view(pod(annotations={"evenflow.dev/worker-config": json.dumps(document)}))
    assert bad is not None
    assert bad.worker_config is None
    assert bad.config_problem is not None
    assert bad.config_problem.startswith("admission.perIteration")


def test_slots_that_are_no_plain_numbers_are_none() -> None:
    for label in ("", "-1", "03", "1.0", "x", "٣", "99999999999", None, 3):
        labels = {"evenflow.dev/pool": "llama", "evenflow.dev/slot": label}
        view = views.pod_view(pod(labels=labels))
        assert view is not None
        assert view.slot is None, label


def test_a_pod_that_cannot_be_placed_or_started_says_why() -> None:
    obj = pod()
    obj["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}],
        "initContainerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
    }
    view = views.pod_view(obj)
    assert view is not None
    assert view.unschedulable == "Insufficient nvidia.com/gpu"
    assert view.waiting_reason == "ImagePullBackOff"
    assert view.ip is None


def test_an_init_container_that_keeps_crashing_is_not_hidden_by_the_engine_that_awaits_it() -> None:
    obj = pod()
    obj["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}],
        "initContainerStatuses": [{"restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
    }
    view = views.pod_view(obj)
    assert view is not None
    assert (view.waiting_reason, view.restarts) == ("CrashLoopBackOff", 4)


WAITING = {"waiting": {"reason": "ErrImagePull", "message": 'image "x:typo": not found'}}
LOOPING = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container"}}
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("container", "trouble", "idle"),
    [
        ({"name": "engine", "state": WAITING}, 'image "x:typo": not found', True),
        ({"name": "engine", "state": LOOPING, "lastState": KILLED}, "OOMKilled, exit code 137", True),
        ({"name": "engine", "state": {"running": {}}, "lastState": KILLED}, "OOMKilled, exit code 137", False),
        ({"name": "proxy", "state": LOOPING, "lastState": KILLED}, "OOMKilled, exit code 137", False),
        ({"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}, None, True),
        ({"name": "engine", "state": {"running": {}}}, None, False),
    ],
)
def test_what_is_known_of_a_container_that_does_not_run(
    container: dict[str, Any], trouble: str | None, idle: bool
) -> None:
    obj = pod()
    obj["status"] = {"phase": "Pending", "containerStatuses": [container]}
    view = views.pod_view(obj)
    assert view is not None
    assert (view.trouble, view.engine_waiting) == (trouble, idle)


def test_endpoints_count_when_they_are_ready_or_say_nothing() -> None:
    endpoints = [
        {"conditions": {"ready": True}, "targetRef": {"uid": "a"}},
        {"conditions": {"ready": False}, "targetRef": {"uid": "b"}},
        {"targetRef": {"uid": "c"}},
        {"conditions": {"ready": True}},
        "garbage",
    ]
    metadata = {"name": "s", "namespace": "serving", "uid": "u", "labels": {"evenflow.dev/pool": "llama"}}
    record = views.slice_record({"metadata": metadata, "endpoints": endpoints})
    assert record is not None
    assert record.ready == {"a", "c"}


def test_nodes_are_lost_when_silent_or_tainted() -> None:
    def lost(status: str, *taints: str) -> bool:
        record = views.node_record(
            {
                "metadata": {"name": "n", "uid": "u"},
                "spec": {"taints": [{"key": key} for key in taints]},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            }
        )
        assert record is not None
        return record.lost

    assert not lost("True")
    assert not lost("False"), "a node that says it is not ready still answers"
    assert lost("Unknown")
    assert lost("True", "node.kubernetes.io/unreachable")


def test_a_bad_spec_becomes_a_problem_with_the_field() -> None:
    record = views.pool_record(pool_object(replicas="many"))
    assert record is not None
    assert record.pool is None
    assert record.problem is not None
    assert "spec.replicas" in record.problem


def test_an_unreadable_status_does_not_matter() -> None:
    obj = {**pool_object(), "status": {"replicas": "nonsense", "slots": 7}}
    record = views.pool_record(obj)
    assert record is not None
    assert record.pool is not None


@given(OBJECTS)
def test_nothing_raises_whatever_it_is_given(obj: Any) -> None:
    for read in (
        views.pool_record,
        views.pod_record,
        views.pod_view,
        views.service_record,
        views.service_view,
        views.slice_record,
        views.node_record,
        views.identity,
    ):
        read(obj)


@given(OBJECTS, st.sampled_from(["labels", "annotations", "ownerReferences", "creationTimestamp", "deletionTimestamp"]))
def test_garbage_inside_a_pod_costs_only_its_field(garbage: Any, field: str) -> None:
    view = views.pod_view(pod(**{field: garbage}))
    assert view is not None
    assert view.uid == "u1"


@given(OBJECTS)
def test_a_garbage_spec_never_becomes_a_pool_by_accident(spec: Any) -> None:
    record = views.pool_record({**pool_object(), "spec": spec})
    assert record is not None
    assert (record.pool is None) == (record.problem is not None)
