"""Validation, defaulting and pruning against structural schemas, and definitions themselves."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.embedded.schema.pruning import apply_defaults, prune
from evenflow_devcluster.embedded.schema.structural import Schema, builtin
from evenflow_devcluster.embedded.schema.structural_rules import has_cel_rules
from evenflow_devcluster.embedded.schema.validation import validate

SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "string", "enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
        "port": {"x-kubernetes-int-or-string": True},
        "nested": {"type": "object", "default": {}, "properties": {"deep": {"type": "boolean", "default": True}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
        "parts": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "n": {"type": "number", "default": 1}},
            },
        },
        "maybe": {"type": "string", "nullable": True, "default": "d"},
    },
}
ROOT = Schema({"type": "object", "properties": {"spec": SPEC}})


def messages(spec: Any) -> list[str]:
    return [str(error) for error in validate({"spec": spec}, ROOT)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "spec.size: Required value"),
        ({"size": "huge"}, 'spec.size: Unsupported value: "huge": supported values: "small", "large"'),
        ({"size": 1}, 'spec.size: Invalid value: "integer": spec.size in body must be of type string: "integer"'),
        ({"size": "small", "count": 0}, "spec.count: Invalid value: 0: spec.count in body should be greater than or "),
        ({"size": "small", "count": True}, 'spec.count: Invalid value: "boolean"'),
        ({"size": "small", "count": 1.5}, 'spec.count: Invalid value: "number"'),
        ({"size": "small", "name": "Abc"}, "should match '^[a-z]+$'"),
        ({"size": "small", "name": "abc\n"}, "should match '^[a-z]+$'"),
        ({"size": "small", "name": "abcdef"}, "spec.name: Too long: may not be more than 5"),
        ({"size": "small", "port": []}, "must be of type integer,string"),
        ({"size": "small", "labels": {"a": "1", "b": "2", "c": "3"}}, "spec.labels: Too many"),
        ({"size": "small", "labels": {"a": 1}}, "spec.labels.a"),
        ({"size": "small", "parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]: Duplicate value"),
        ({"size": "small", "parts": [{"name": 1}]}, "spec.parts[0].name"),
        ({"size": None}, "must be of type string"),
    ],
)
def test_each_error_names_its_field(spec: Any, expected: str) -> None:
    found = messages(spec)
    assert any(expected in message for message in found), found


def test_a_good_object_has_no_errors() -> None:
    spec = {"size": "small", "count": 3.0, "port": "http", "maybe": None, "parts": [{"name": "a"}], "free": {"x": [1]}}
    assert messages(spec) == []


def test_defaults_reach_nested_objects_and_list_items() -> None:
    obj: dict[str, Any] = {"spec": {"size": "small", "parts": [{"name": "a"}], "count": None, "maybe": None}}
    apply_defaults(obj, ROOT)
    assert obj["spec"] == {
        "size": "small",
        "parts": [{"name": "a", "n": 1}],
        "count": 3,
        "maybe": None,
        "nested": {"deep": True},
    }


def test_defaults_are_copies() -> None:
    first: dict[str, Any] = {"spec": {"size": "small"}}
    apply_defaults(first, ROOT)
    first["spec"]["nested"]["deep"] = False
    second: dict[str, Any] = {"spec": {"size": "small"}}
    apply_defaults(second, ROOT)
    assert second["spec"]["nested"]["deep"] is True


def test_unknown_fields_are_removed_and_reported() -> None:
    obj: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "W",
        "metadata": {"name": "n", "nonsense": 1, "labels": {"free": "key"}},
        "spec": {
            "size": "small",
            "oops": 1,
            "free": {"kept": 1},
            "parts": [{"name": "a", "bad": 2}],
            "labels": {"k": "v"},
        },
        "extra": {},
    }
    reported: list[str] = []
    prune(obj, ROOT, reported.append)
    assert sorted(reported) == ["extra", "metadata.nonsense", "spec.oops", "spec.parts[0].bad"]
    assert obj["spec"] == {"size": "small", "free": {"kept": 1}, "parts": [{"name": "a"}], "labels": {"k": "v"}}
    assert obj["metadata"] == {"name": "n", "labels": {"free": "key"}}


def test_builtin_schemas_know_pods() -> None:
    pod = builtin("io.k8s.api.core.v1.Pod")
    unknown: list[str] = []
    container = {
        "name": "a",
        "imagee": "x",
        "ports": [{"containerPort": 1, "extra": 1}],
        "resources": {"limits": {"gpu": 1}},
    }
    obj: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"managedFields": [{"fieldsV1": {"f:x": {}}}]},
        "spec": {"containers": [container]},
    }
    prune(obj, pod, unknown.append)
    assert sorted(unknown) == ["spec.containers[0].imagee", "spec.containers[0].ports[0].extra"]
    assert validate(obj, pod) == []
    bad = {"spec": {"containers": [{"name": 1}], "hostNetwork": "yes"}}
    assert {error.path for error in validate(bad, pod)} == {"spec.containers[0].name", "spec.hostNetwork"}


@pytest.mark.parametrize("rules", [[], [{"rule": "self.a < self.b"}]])
def test_cel_rules_are_found_anywhere(rules: list[Any]) -> None:
    deep = {"properties": {"a": {"items": {"x-kubernetes-validations": rules}}}}
    assert has_cel_rules(deep)
    assert not has_cel_rules(SPEC)


leaf = st.one_of(st.integers(-2, 12), st.sampled_from(["small", "a", "abcdef", "A"]), st.booleans(), st.floats(0, 3))
specs = st.fixed_dictionaries(
    {},
    optional={
        "size": leaf,
        "count": leaf,
        "name": leaf,
        "labels": st.dictionaries(st.sampled_from("abc"), leaf, max_size=3),
    },
)


@given(specs)
def test_validation_agrees_with_json_schema(spec: Any) -> None:
    keys = ("size", "count", "name", "labels")
    plain = {**SPEC, "properties": {key: SPEC["properties"][key] for key in keys}}
    validator = jsonschema.Draft7Validator(plain)
    assert (validate(spec, Schema(plain)) == []) is validator.is_valid(spec)
