"""Whatever a client sends, the API answers: a stored object that satisfies its schema, or an error of its own."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.http.bodies import checked_body
from evenflow_devcluster.embedded.http.tables import table
from evenflow_devcluster.embedded.jsonvalues import encoded, utc_now
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.deletion import options_from
from evenflow_devcluster.embedded.operations.pod_actions import bind, evict
from evenflow_devcluster.embedded.patching.media_types import APPLY, JSON_PATCH, MERGE, STRATEGIC
from evenflow_devcluster.embedded.schema.validation import validate
from evenflow_devcluster.embedded.store.memory import Store

CALLER = Caller("fuzz")
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 70000), st.floats(-2, 2), st.text("a/:.$k", max_size=4)),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "f:x", "$patch", "k:{", "kind", "port", "key"]), inner, max_size=2)
    ),
    max_leaves=5,
)

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "x",
        "labels": {"a": "b"},
        "finalizers": ["a/b"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
        "managedFields": [{"manager": "m", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "ports": [{"containerPort": 80}],
                "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "readinessProbe": {"httpGet": {"port": 80}},
                "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
                "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": "1"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "volumes": [
            {"name": "v", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}}
        ],
        "tolerations": [{"key": "k", "operator": "Exists"}],
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"},
}
OBJECTS: dict[str, dict[str, Any]] = {
    "pods": POD,
    "services": {
        "metadata": {"name": "x"},
        "spec": {"ports": [{"port": 80, "name": "a"}], "selector": {"a": "b"}, "clusterIP": "None"},
    },
    "nodes": {"metadata": {"name": "x"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    "secrets": {"metadata": {"name": "x"}, "data": {"a": "YQ=="}, "stringData": {"b": "c"}},
    "configmaps": {"metadata": {"name": "x"}, "data": {"a": "b"}, "immutable": False},
    "events": {"metadata": {"name": "x"}, "involvedObject": {"namespace": "default", "kind": "Pod"}, "count": 1},
    "leases.coordination.k8s.io": {"metadata": {"name": "x"}, "spec": {"leaseDurationSeconds": 3}},
    "endpointslices.discovery.k8s.io": {
        "metadata": {"name": "x"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["1.2.3.4"], "conditions": {"ready": True}}],
        "ports": [{"port": 1}],
    },
    "poddisruptionbudgets.policy": {
        "metadata": {"name": "x"},
        "spec": {
            "minAvailable": 1,
            "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
        },
    },
    "namespaces": {"metadata": {"name": "x"}},
    "widgets.e.com": {
        "apiVersion": "e.com/v1",
        "kind": "Widget",
        "metadata": {"name": "x"},
        "spec": {"n": 1, "parts": [{"name": "a", "n": 2}], "tags": ["t"], "free": {"x": [1]}},
        "status": {"n": 1},
    },
}
WIDGETS: dict[str, Any] = {
    "metadata": {"name": "widgets.e.com"},
    "spec": {
        "group": "e.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "n": {"type": "integer", "default": 3, "minimum": 0},
                                    "parts": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
                                        },
                                    },
                                    "tags": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "set",
                                        "items": {"type": "string"},
                                    },
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            },
                            "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}
OBJECTS["customresourcedefinitions.apiextensions.k8s.io"] = {
    **copy.deepcopy(WIDGETS),
    "metadata": {"name": "gears.e.com"},
}
OBJECTS["customresourcedefinitions.apiextensions.k8s.io"]["spec"]["names"] = {"plural": "gears", "kind": "Gear"}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        found += places(item, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    made = copy.deepcopy(value)
    node = made
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = new
    return made


@st.composite
def mutated(draw: st.DrawFn, original: Any) -> Any:
    value = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 2))):
        options = places(value)
        value = replaced(value, draw(st.sampled_from(options)), draw(junk)) if options else value
    return value


def fresh() -> Api:
    api = Api(Store(), utc_now, random.Random(0), {})
    definitions = api.registry.named("customresourcedefinitions.apiextensions.k8s.io")
    assert definitions is not None
    api.create(definitions, "", WIDGETS, CALLER)
    return api


@contextmanager
def answered() -> Iterator[None]:
    """Only an error of the API's own may come out, and it can be sent."""
    try:
        yield
    except StatusError as error:
        encoded(error.body())


def check_stored(api: Api, qualified: str, obj: dict[str, Any]) -> None:
    resource = api.registry.named(qualified)
    assert resource is not None
    assert validate(obj, resource.schema) == []
    encoded(table(resource, [obj], {}, "Metadata", utc_now()))


@pytest.mark.parametrize("qualified", list(OBJECTS))
@given(data=st.data())
@settings(max_examples=40)
def test_create_and_update(qualified: str, data: st.DataObject) -> None:
    api = fresh()
    resource = api.registry.named(qualified)
    assert resource is not None
    namespace = "default" if resource.namespaced else ""
    body = data.draw(mutated(OBJECTS[qualified]))
    with answered():
        check_stored(api, qualified, api.create(resource, namespace, body, CALLER))
    api = fresh()
    live = api.create(resource, namespace, OBJECTS[qualified], CALLER)
    key = (namespace, live["metadata"]["name"])
    subresource = data.draw(st.sampled_from(["", "status"] if resource.status else [""]))
    body = data.draw(mutated(live))
    with answered():
        check_stored(api, qualified, api.update(resource, key, body, CALLER, subresource=subresource))


@pytest.mark.parametrize("qualified", ["pods", "services", "widgets.e.com", "namespaces"])
@given(data=st.data())
@settings(max_examples=60)
def test_patches(qualified: str, data: st.DataObject) -> None:
    api = fresh()
    resource = api.registry.named(qualified)
    assert resource is not None
    namespace = "default" if resource.namespaced else ""
    api.create(resource, namespace, OBJECTS[qualified], CALLER)
    for _ in range(2):
        kind = data.draw(st.sampled_from([MERGE, STRATEGIC, APPLY, JSON_PATCH]))
        patch: Any = data.draw(mutated(OBJECTS[qualified]) | junk)
        if kind == JSON_PATCH:
            path = data.draw(st.sampled_from(["", "/spec", "/metadata/labels", "/spec/n", "/metadata", "/kind", "x"]))
            patch = [
                {"op": data.draw(st.sampled_from(["add", "replace", "test", "remove"])), "path": path, "value": patch}
            ]
        with answered():
            check_stored(api, qualified, api.patch(resource, (namespace, "x"), kind, patch, CALLER)[0])


@given(mutated({"kind": "DeleteOptions", "gracePeriodSeconds": 1, "preconditions": {"uid": "u"}, "dryRun": ["All"]}))
def test_delete_options(body: Any) -> None:
    with answered():
        options_from(body)


@given(data=st.data())
def test_bindings_and_evictions(data: st.DataObject) -> None:
    api = fresh()
    pods = api.registry.named("pods")
    assert pods is not None
    api.create(pods, "default", POD, CALLER)
    binding = {"metadata": {"name": "x", "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "n"}}
    for kind, act, good in (
        ("Binding", bind, binding),
        ("Eviction", evict, {"deleteOptions": {"gracePeriodSeconds": 0}}),
    ):
        body = data.draw(mutated(good))
        with answered():
            act(api, ("default", "x"), checked_body(body, kind), CALLER)
