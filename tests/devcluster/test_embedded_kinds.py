"""What the server does to each built-in kind: defaults, admission, rules, and what may change."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.kinds.services import AddressPool
from evenflow_devcluster.embedded.operations.api import Api
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.deletion import DeleteOptions
from evenflow_devcluster.embedded.patching.media_types import MERGE
from evenflow_devcluster.embedded.store.memory import Store

WARNINGS: list[str] = []
CALLER = Caller("test", warn=WARNINGS.append)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(clock: Clock) -> Iterator[Api]:
    WARNINGS.clear()
    made = Api(Store(), clock, random.Random(1), {})
    yield made
    made.close()


def create(api: Api, qualified: str, body: dict[str, Any]) -> dict[str, Any]:
    resource = api.registry.named(qualified)
    assert resource is not None
    body = {"metadata": {"name": "x"}, **body}
    return api.create(resource, "default" if resource.namespaced else "", body, CALLER)


def patch(api: Api, qualified: str, body: dict[str, Any], subresource: str = "") -> dict[str, Any]:
    resource = api.registry.named(qualified)
    assert resource is not None
    key = ("default" if resource.namespaced else "", "x")
    return api.patch(resource, key, MERGE, body, CALLER, subresource=subresource)[0]


def pod(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "image": "i:1", **container}]}}


def test_pod_defaults_and_admission(api: Api) -> None:
    body = pod(
        ports=[{"containerPort": 80}],
        resources={"limits": {"nvidia.com/gpu": 1}},
        readinessProbe={"httpGet": {"port": 80}},
        env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    )
    body["spec"]["volumes"] = [{"name": "v", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "f"}}]}}]
    body["status"] = {"phase": "Running"}
    made = create(api, "pods", body)
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"], spec["priority"]) == ("Always", 30, 0)
    assert container["ports"][0]["protocol"] == "TCP"
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert container["readinessProbe"]["failureThreshold"] == 3
    assert container["readinessProbe"]["httpGet"]["path"] == "/"
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert spec["volumes"][0]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"] == "v1"
    assert [toleration["tolerationSeconds"] for toleration in spec["tolerations"]] == [300, 300]


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("h:5000/a", "Always"),
        ("h:5000/a:1", "IfNotPresent"),
        ("a@sha256:0", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(api: Api, image: str, policy: str) -> None:
    assert create(api, "pods", pod(image=image))["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}, "Burstable"),
    ],
)
def test_quality_of_service(api: Api, resources: dict[str, Any], qos: str) -> None:
    assert create(api, "pods", pod(resources=resources))["status"]["qosClass"] == qos


@pytest.mark.parametrize(
    ("qualified", "body", "field"),
    [
        ("pods", {"spec": {"containers": []}}, "spec.containers"),
        ("pods", pod(name="Bad_"), "spec.containers[0].name"),
        ("pods", pod(image=""), "spec.containers[0].image"),
        ("pods", pod(ports=[{"containerPort": 70000}]), "spec.containers[0].ports[0].containerPort"),
        ("pods", pod(volumeMounts=[{"name": "v", "mountPath": "/"}]), "spec.containers[0].volumeMounts[0].name"),
        ("pods", {"metadata": {"name": "Upper"}, **pod()}, "metadata.name"),
        ("pods", {"metadata": {"name": "x", "labels": {"a": "-"}}, **pod()}, "metadata.labels"),
        ("pods", {"metadata": {}, **pod()}, "metadata.name"),
        ("services", {"spec": {}}, "spec.ports"),
        ("services", {"spec": {"ports": [{"port": 1}, {"port": 2}]}}, "spec.ports[0].name"),
        ("services", {"metadata": {"name": "1.x"}, "spec": {"ports": [{"port": 1}]}}, "metadata.name"),
        ("services", {"spec": {"ports": [{"port": 1}], "clusterIP": "10.0.0.1"}}, "spec.clusterIPs"),
        ("secrets", {"data": {"a": "not base64!"}}, "data[a]"),
        ("configmaps", {"data": {"a/b": "c"}}, "data[a/b]"),
        ("configmaps", {"data": {"a": "x" * (1 << 20)}, "binaryData": {"b": "YQ=="}}, "data"),
        ("events", {"involvedObject": {"namespace": "other"}}, "involvedObject.namespace"),
        ("leases.coordination.k8s.io", {"spec": {"leaseDurationSeconds": 0}}, "spec.leaseDurationSeconds"),
        ("endpointslices.discovery.k8s.io", {"addressType": "IPv9", "endpoints": []}, "addressType"),
        ("poddisruptionbudgets.policy", {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, "spec"),
    ],
)
def test_what_is_refused_names_its_field(api: Api, qualified: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises(StatusError) as caught:
        create(api, qualified, body)
    assert caught.value.code == 422
    assert field in [cause["field"] for cause in caught.value.body()["details"]["causes"]]


@pytest.mark.parametrize(
    ("qualified", "body", "change"),
    [
        ("secrets", {"type": "a"}, {"type": "b"}),
        ("configmaps", {"data": {"a": "b"}, "immutable": True}, {"data": {"a": "c"}}),
        ("endpointslices.discovery.k8s.io", {"addressType": "IPv4", "endpoints": []}, {"addressType": "IPv6"}),
        ("services", {"spec": {"ports": [{"port": 1}]}}, {"spec": {"clusterIP": "127.78.255.253"}}),
        ("pods", pod(), {"spec": {"nodeName": "n"}}),
    ],
)
def test_what_may_not_change(api: Api, qualified: str, body: dict[str, Any], change: dict[str, Any]) -> None:
    create(api, qualified, body)
    with pytest.raises(StatusError) as caught:
        patch(api, qualified, change)
    assert caught.value.code == 422


def test_a_wrong_type_is_400_as_decoding_would_say(api: Api) -> None:
    with pytest.raises(StatusError, match='Pod in version "v1" cannot be handled as a Pod') as caught:
        create(api, "pods", {"spec": {"containers": {}}})
    assert caught.value.code == 400


def test_unknown_fields_warn_or_refuse(api: Api) -> None:
    create(api, "pods", pod(imagee="x"))
    assert WARNINGS == ['unknown field "spec.containers[0].imagee"']
    pods = api.registry.named("pods")
    assert pods is not None
    strict = Caller("test", validation="Strict")
    with pytest.raises(StatusError, match=r'strict decoding error: unknown field "spec\.containers\[0\]\.imagee"'):
        api.create(pods, "default", {"metadata": {"name": "y"}, **pod(imagee="x")}, strict)


def test_generation_follows_the_spec_alone(api: Api) -> None:
    create(api, "pods", pod())
    assert patch(api, "pods", {"status": {"phase": "Running"}}, "status")["metadata"]["generation"] == 1
    assert patch(api, "pods", {"metadata": {"labels": {"a": "b"}}})["metadata"]["generation"] == 1
    toleration = {"key": "k", "operator": "Exists"}
    before = patch(api, "pods", {})["spec"]["tolerations"]
    assert patch(api, "pods", {"spec": {"tolerations": [*before, toleration]}})["metadata"]["generation"] == 2


def test_a_write_without_a_change_is_no_write(api: Api) -> None:
    create(api, "configmaps", {"data": {"a": "b"}})
    version = api.store.version
    assert patch(api, "configmaps", {"data": {"a": "b"}})["metadata"]["resourceVersion"] == str(version)
    assert api.store.version == version


def test_status_and_spec_have_doors_of_their_own(api: Api) -> None:
    create(api, "pods", pod())
    assert "message" not in patch(api, "pods", {"status": {"message": "m"}})["status"]
    changed = patch(api, "pods", {"status": {"message": "m"}, "spec": {"restartPolicy": "Never"}}, "status")
    assert (changed["status"]["message"], changed["spec"]["restartPolicy"]) == ("m", "Always")


def test_new_nodes_are_not_ready(api: Api) -> None:
    made = create(api, "nodes", {"status": {"capacity": {"cpu": "4"}}})
    assert made["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert made["status"] == {"capacity": {"cpu": "4"}}


def test_secrets_take_plain_text(api: Api) -> None:
    made = create(api, "secrets", {"stringData": {"a": "b"}})
    assert (made["data"], made["type"]) == ({"a": "Yg=="}, "Opaque")
    assert "stringData" not in made


def test_each_namespace_has_a_default_account(api: Api) -> None:
    create(api, "namespaces", {})
    assert api.store.get("serviceaccounts", ("x", "default")) is not None


def test_events_live_for_an_hour(api: Api, clock: Clock) -> None:
    involved = {"involvedObject": {"namespace": "default"}}
    create(api, "events", {"metadata": {"name": "old"}, **involved})
    clock.now += timedelta(minutes=59)
    create(api, "events", {"metadata": {"name": "new"}, **involved})
    assert api.store.get("events", ("default", "old")) is not None
    clock.now += timedelta(minutes=2)
    create(api, "events", {"metadata": {"name": "newer"}, **involved})
    names = sorted(record.object["metadata"]["name"] for record in api.store.records("events"))
    assert names == ["new", "newer"]


def test_finalizers_hold_and_let_go(api: Api) -> None:
    create(api, "configmaps", {"metadata": {"name": "x", "finalizers": ["a/b"]}})
    maps = api.registry.named("configmaps")
    assert maps is not None
    marked, gone = api.delete(maps, ("default", "x"), DeleteOptions())
    assert not gone
    assert "deletionTimestamp" in marked["metadata"]
    with pytest.raises(StatusError, match="no new finalizers can be added"):
        patch(api, "configmaps", {"metadata": {"finalizers": ["a/b", "c/d"]}})
    seen = []
    api.store.subscribe(lambda event: seen.append(event.type))
    patch(api, "configmaps", {"metadata": {"finalizers": None}})
    assert seen == ["DELETED"]
    assert api.store.get("configmaps", ("default", "x")) is None


@pytest.mark.parametrize(
    ("propagation", "finalizers"),
    [("Foreground", ["foregroundDeletion"]), ("Orphan", ["orphan"]), ("Background", None), (None, None)],
)
def test_propagation_leaves_its_finalizer(api: Api, propagation: str | None, finalizers: list[str] | None) -> None:
    create(api, "configmaps", {})
    maps = api.registry.named("configmaps")
    assert maps is not None
    obj, gone = api.delete(maps, ("default", "x"), DeleteOptions(propagation=propagation))
    assert gone is (finalizers is None)
    assert obj["metadata"].get("finalizers") == finalizers


def test_cluster_addresses_are_unique_and_come_back() -> None:
    pool = AddressPool(random.Random(0))
    taken = {pool.take() for _ in range(2000)}
    assert len(taken) == 2000
    assert all(address.startswith("127.78.") for address in taken)
    one = min(taken)
    assert not pool.claim(one)
    pool.release(one)
    assert pool.claim(one)
    assert not pool.claim("10.0.0.1")
    assert not pool.claim("nonsense")


def deployment(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "x"}}, **pod()}
    return {"spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template, **spec}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"paused": True}, "paused"),
        ({"strategy": {"type": "Recreate"}}, "use RollingUpdate"),
        ({"minReadySeconds": 5}, "minReadySeconds"),
    ],
)
def test_what_no_controller_here_does_is_refused(api: Api, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(StatusError, match=words) as caught:
        create(api, "deployments.apps", deployment(**spec))
    assert caught.value.code == 501


def test_names_of_roles_are_segments_of_a_path(api: Api) -> None:
    roles = api.registry.named("clusterroles.rbac.authorization.k8s.io")
    assert roles is not None
    assert api.create(roles, "", {"metadata": {"name": "System:One"}}, CALLER)["metadata"]["name"] == "System:One"
    for name in ("a%b", "..", "."):
        with pytest.raises(StatusError, match="may not"):
            api.create(roles, "", {"metadata": {"name": name}}, CALLER)
