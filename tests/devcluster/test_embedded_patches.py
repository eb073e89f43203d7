"""Merge, JSON and strategic merge patches."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.patching.json_patches import json_patch, merge_patch
from evenflow_devcluster.embedded.patching.strategic import strategic_merge
from evenflow_devcluster.embedded.schema.structural import builtin

POD = builtin("io.k8s.api.core.v1.Pod")
SERVICE = builtin("io.k8s.api.core.v1.Service")

scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text("ab", max_size=2))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
)
objects = st.dictionaries(st.sampled_from("xyz"), values, max_size=3)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


@given(objects, objects)
def test_merge_patch_changes_nothing_in_place_and_is_idempotent(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert (target, patch) == before
    assert merge_patch(once, patch) == once


@given(objects)
def test_merge_patch_onto_nothing_is_the_patch_without_nulls(patch: Any) -> None:
    assert merge_patch({}, patch) == without_nulls(patch)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_examples_of_the_rfc(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@pytest.mark.parametrize(
    ("target", "operation", "expected"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
        ({"a": 1, "b": 2}, {"op": "remove", "path": "/a"}, {"b": 2}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
        ({"a": 1}, {"op": "replace", "path": "/a", "value": [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/c"}, {"a": {}, "c": 1}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a/b": 1, "m~n": 2}, {"op": "remove", "path": "/a~1b"}, {"m~n": 2}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": 1.0}, {"a": 1}),
        ({"a": {}}, {"op": "test", "path": "/a/b", "value": None}, {"a": {}}),
    ],
)
def test_json_patch_operations(target: Any, operation: Any, expected: Any) -> None:
    before = copy.deepcopy(target)
    assert json_patch(target, [operation]) == expected
    assert target == before


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({"op": "test", "path": "/a", "value": 2}, 422),
        ({"op": "test", "path": "/a", "value": True}, 422),
        ({"op": "remove", "path": "/b"}, 422),
        ({"op": "replace", "path": "/b", "value": 1}, 422),
        ({"op": "add", "path": "/l/7", "value": 1}, 422),
        ({"op": "add", "path": "/l/01", "value": 1}, 422),
        ({"op": "add", "path": "/b"}, 400),
        ({"op": "jump", "path": "/a"}, 400),
        ({"op": "add", "path": "a", "value": 1}, 400),
        ("nonsense", 400),
    ],
)
def test_json_patch_refuses(operation: Any, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        json_patch({"a": 1, "l": [0]}, [operation])
    assert caught.value.code == code


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}], **spec}}


def test_strategic_merge_matches_containers_by_name() -> None:
    patch = {"spec": {"containers": [{"name": "b", "image": "y:2"}, {"name": "c", "image": "z"}]}}
    images = [c["image"] for c in strategic_merge(pod(), patch, POD)["spec"]["containers"]]
    assert images == ["x:1", "y:2", "z"]


def test_strategic_merge_deletes_and_replaces_list_items() -> None:
    gone = strategic_merge(pod(), {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}, POD)
    assert [c["name"] for c in gone["spec"]["containers"]] == ["b"]
    fresh = {"spec": {"containers": [{"$patch": "replace"}, {"name": "z", "image": "i"}]}}
    assert strategic_merge(pod(), fresh, POD)["spec"]["containers"] == [{"name": "z", "image": "i"}]


def test_strategic_merge_replaces_atomic_lists_and_whole_objects() -> None:
    live = pod(tolerations=[{"key": "a"}], nodeSelector={"a": "1"})
    patched = strategic_merge(live, {"spec": {"tolerations": [{"key": "b"}]}}, POD)
    assert patched["spec"]["tolerations"] == [{"key": "b"}]
    replaced = strategic_merge(live, {"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}}}, POD)
    assert replaced["spec"]["nodeSelector"] == {"b": "2"}
    assert "nodeSelector" not in strategic_merge(live, {"spec": {"nodeSelector": {"$patch": "delete"}}}, POD)["spec"]


def test_strategic_merge_of_primitive_lists_and_ports() -> None:
    live = {"metadata": {"finalizers": ["a/x", "b/x"]}, "spec": {"ports": [{"port": 80, "name": "h"}, {"port": 81}]}}
    patch = {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]},
        "spec": {"ports": [{"port": 80, "name": "w"}]},
    }
    patched = strategic_merge(live, patch, SERVICE)
    assert patched["metadata"]["finalizers"] == ["b/x"]
    assert patched["spec"]["ports"] == [{"port": 80, "name": "w"}, {"port": 81}]


def test_strategic_merge_orders_and_retains_keys() -> None:
    live = pod(volumes=[{"name": "v", "emptyDir": {}}])
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
            "volumes": [{"$retainKeys": ["name", "configMap"], "name": "v", "configMap": {"name": "m"}}],
        }
    }
    patched = strategic_merge(live, patch, POD)["spec"]
    assert [c["name"] for c in patched["containers"]] == ["b", "a"]
    assert patched["volumes"] == [{"name": "v", "configMap": {"name": "m"}}]


def test_strategic_merge_refuses_an_item_without_its_key() -> None:
    with pytest.raises(StatusError, match="merge key: name"):
        strategic_merge(pod(), {"spec": {"containers": [{"image": "z"}]}}, POD)
