"""The embedded API server through HTTPS: what the black-box contract suite can't see or doesn't cover."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from embedded_fixture import MERGE, PODS, Http, embedded, pod

from evenflow_devcluster.embedded.cluster import EmbeddedCluster
from evenflow_devcluster.embedded.errors import FieldError
from evenflow_devcluster.embedded.faults import Fault
from evenflow_devcluster.embedded.http import streams
from evenflow_devcluster.embedded.http.tls import make_certificates, server_context

NODE = {"metadata": {"name": "n1"}}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Http]:
    async with embedded(tmp_path) as client:
        yield client


def definition(rules: list[Any] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "type": "object",
        "properties": {"low": {"type": "integer", "default": 1}, "high": {"type": "integer"}},
    }
    if rules is not None:
        spec["x-kubernetes-validations"] = rules
    scale = {"specReplicasPath": ".spec.low", "statusReplicasPath": ".status.n"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": scale},
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": spec, "status": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            }
        },
    }
    names = {"plural": "ranges", "kind": "Range", "shortNames": ["rg"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "ranges.e.com"},
        "spec": {"group": "e.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RANGES = "/apis/e.com/v1/namespaces/default/ranges"


def a_range(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "e.com/v1", "kind": "Range", "metadata": {"name": name}, "spec": spec}


# --- access, start and stop -----------------------------------------------------------------------------------


async def test_only_the_token_opens_anything_but_health_and_version(http: Http) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/version"):
        async with http.session.get(http.cluster.url + path, headers={"Authorization": ""}) as response:
            assert response.status == 200, path
    token = http.cluster.token
    for path, header in (
        ("/api", ""),
        (PODS, "Bearer wrong"),
        ("/_faults", f"Basic {token}"),
        (PODS, f"Bearer {token}x"),
    ):
        async with http.session.get(http.cluster.url + path, headers={"Authorization": header}) as response:
            assert response.status == 401, path
            assert (await response.json())["reason"] == "Unauthorized"


async def test_the_kubeconfig_is_private_and_stop_leaves_nothing(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with embedded(tmp_path, controllers=True) as http:
        mode = stat.S_IMODE(http.cluster.kubeconfig.stat().st_mode)
        assert mode == 0o600
        assert [path.name for path in tmp_path.iterdir()] == ["kubeconfig"]
        async with http.watch(PODS) as events:
            stopping = asyncio.create_task(http.cluster.stop())
            assert (await events.next())[0] == "END"
            await stopping
    assert list(tmp_path.iterdir()) == []
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    port = int(http.cluster.url.rsplit(":", 1)[1])
    again = await EmbeddedCluster.start(tmp_path, port=port, controllers=False)
    await again.stop()


async def test_a_taken_port_is_an_error_and_leaves_nothing(http: Http, tmp_path: Path) -> None:
    port = int(http.cluster.url.rsplit(":", 1)[1])
    with pytest.raises(OSError):
        await EmbeddedCluster.start(tmp_path / "second", port=port)
    assert list((tmp_path / "second").iterdir()) == []


async def test_a_seed_repeats_uids_and_names(tmp_path: Path) -> None:
    seen = []
    for turn in range(2):
        async with embedded(tmp_path / str(turn), seed=7) as http:
            body = {**pod("x"), "metadata": {"generateName": "p-"}}
            metadata = (await http.good("POST", PODS, body))["metadata"]
            seen.append((metadata["name"], metadata["uid"]))
    assert seen[0] == seen[1]


# --- what isn't there says so -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/apis/apps/v1/statefulsets", 501),
        ("GET", "/apis/networking.k8s.io/v1/ingresses", 501),
        ("GET", "/apis/batch/v1/jobs", 501),
        ("GET", "/api/v1/persistentvolumes", 501),
        ("POST", f"{PODS}/x/exec", 501),
        ("GET", "/apis/nobody.example.com/v1/things", 404),
        ("GET", "/api/v1/nonsense", 404),
        ("GET", "/nonsense", 404),
        ("POST", f"{PODS}/x", 405),
        ("PUT", PODS, 405),
        ("POST", "/api/v1/pods", 405),
        ("GET", f"{PODS}?labelSelector=a%20b", 400),
        ("GET", f"{PODS}?fieldSelector=spec.x%3D1", 400),
        ("GET", f"{PODS}?limit=x", 400),
        ("GET", f"{PODS}?continue=x", 400),
    ],
)
async def test_unsupported_and_unknown_requests(http: Http, method: str, path: str, code: int) -> None:
    status, answer = await http.send(method, path, {} if method in ("POST", "PUT") else None)
    assert (status, answer["kind"], answer["code"]) == (code, "Status", code)
    if code == 501:
        assert "not supported by the embedded API server" in answer["message"]


async def test_bodies_that_cannot_be_read(http: Http) -> None:
    for data, kind, code in (
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"a: [", "application/yaml", 400),
        (b"x", "application/cbor", 415),
        (b"x" * (4 << 20), "application/json", 413),
    ):
        options = {"data": data, "headers": {"Content-Type": kind}}
        async with http.session.post(http.cluster.url + PODS, **options) as response:
            assert response.status == code, (kind, code)
            assert (await response.json())["status"] == "Failure"


async def test_node_port_services_are_501(http: Http) -> None:
    body = {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 1}]}}
    status, answer = await http.send("POST", "/api/v1/namespaces/default/services", body)
    assert status == 501
    assert "NodePort" in answer["message"]


# --- lists and watches ------------------------------------------------------------------------------------------


async def test_pages_show_one_version_of_the_world(http: Http) -> None:
    for name in "abcde":
        await http.good("POST", PODS, pod(name))
    first = await http.good("GET", f"{PODS}?limit=2")
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await http.good("DELETE", f"{PODS}/c")
    await http.good("POST", PODS, pod("bb"))
    second = await http.good("GET", f"{PODS}?limit=5&continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d", "e"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]
    http.cluster.faults.forget_history()
    status, answer = await http.send("GET", f"{PODS}?continue={first['metadata']['continue']}")
    assert (status, answer["reason"]) == (410, "Expired")


async def test_lists_at_a_version(http: Http) -> None:
    made = await http.good("POST", PODS, pod("a"))
    version = made["metadata"]["resourceVersion"]
    await http.good("POST", PODS, pod("b"))
    exact = await http.good("GET", f"{PODS}?resourceVersion={version}&resourceVersionMatch=Exact")
    assert [item["metadata"]["name"] for item in exact["items"]] == ["a"]
    status, answer = await http.send("GET", f"{PODS}?resourceVersion={int(version) + 999}")
    assert (status, answer["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")
    status, _ = await http.send("GET", f"{PODS}?resourceVersionMatch=Exact")
    assert status == 400


async def test_a_watch_with_a_selector_sees_objects_come_and_go(http: Http) -> None:
    version = (await http.good("GET", PODS))["metadata"]["resourceVersion"]
    async with http.watch(PODS, resourceVersion=version, labelSelector="on=yes") as events:
        await http.good("POST", PODS, pod("a"))
        for value in ("yes", "yes", "no"):
            await http.good("PATCH", f"{PODS}/a", {"metadata": {"labels": {"on": value}}}, headers=dict(MERGE))
            await http.good("PATCH", f"{PODS}/a", {"metadata": {"labels": {"n": value}}}, headers=dict(MERGE))
        await http.good("DELETE", f"{PODS}/a")
        assert await events.names(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        await http.good("POST", PODS, {**pod("b"), "metadata": {"name": "b", "labels": {"on": "yes"}}})
        assert await events.names(1) == [("ADDED", "b")]


async def test_initial_events_end_with_a_marked_bookmark(http: Http) -> None:
    await http.good("POST", PODS, pod("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with http.watch(PODS, **query) as events:
        assert await events.names(1) == [("ADDED", "a")]
        kind, bookmark = await events.next()
        assert kind == "BOOKMARK"
        assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert bookmark["kind"] == "Pod"
    status, _ = await http.send("GET", f"{PODS}?watch=1&sendInitialEvents=true")
    assert status == 422


async def test_a_watch_from_a_forgotten_version_is_told_410(http: Http) -> None:
    version = (await http.good("POST", PODS, pod("a")))["metadata"]["resourceVersion"]
    await http.good("POST", PODS, pod("b"))
    http.cluster.faults.forget_history("pods")
    async with http.watch(PODS, resourceVersion=version) as events:
        kind, status = await events.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert (await events.next())[0] == "END"


async def test_a_watch_ends_after_its_time_with_a_last_bookmark(http: Http) -> None:
    async with http.watch(PODS, timeoutSeconds=1, allowWatchBookmarks="true") as events:
        kind, bookmark = await events.next()
        assert kind == "BOOKMARK"
        assert bookmark["metadata"]["resourceVersion"] == (await http.good("GET", PODS))["metadata"]["resourceVersion"]
        assert (await events.next())[0] == "END"


async def test_deleting_a_definition_ends_its_watches_and_its_api(http: Http) -> None:
    await http.good("POST", CRDS, definition())
    await http.good("POST", RANGES, a_range("a"))
    async with http.watch(RANGES) as events:
        assert await events.names(1) == [("ADDED", "a")]
        await http.good("DELETE", f"{CRDS}/ranges.e.com")
        assert await events.names(1) == [("DELETED", "a")]
        assert (await events.next())[0] == "END"
    assert (await http.send("GET", RANGES))[0] == 404
    await http.good("POST", CRDS, definition())
    assert (await http.good("GET", RANGES))["items"] == []


# --- definitions ------------------------------------------------------------------------------------------------


async def test_cel_without_a_twin_is_501_and_with_one_it_rules(tmp_path: Path) -> None:
    rules = [{"rule": "self.low <= self.high"}]

    def twin(new: dict[str, Any], old: dict[str, Any] | None) -> list[FieldError]:
        spec = new["spec"]
        found = (
            [FieldError("spec", "low must not exceed high", value=spec)] if spec["low"] > spec.get("high", 99) else []
        )
        if old is not None and old["spec"]["low"] > spec["low"]:
            found.append(FieldError("spec.low", "may only grow", value=spec["low"]))
        return found

    async with embedded(tmp_path / "without") as http:
        status, answer = await http.send("POST", CRDS, definition(rules))
        assert status == 501
        assert "ranges.e.com" in answer["message"]
        assert (await http.send("GET", f"{CRDS}/ranges.e.com"))[0] == 404
    async with embedded(tmp_path / "with", cel_twins={"ranges.e.com": twin}) as http:
        await http.good("POST", CRDS, definition(rules))
        status, answer = await http.send("POST", RANGES, a_range("a", low=5, high=2))
        assert status == 422
        assert "low must not exceed high" in answer["message"]
        await http.good("POST", RANGES, a_range("a", low=5, high=9))
        status, answer = await http.send("PATCH", f"{RANGES}/a", {"spec": {"low": 4}}, headers=dict(MERGE))
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.low")


async def test_a_new_schema_defaults_what_is_stored(http: Http) -> None:
    crd = await http.good("POST", CRDS, definition())
    await http.good("POST", RANGES, a_range("a"))
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["step"] = {"type": "integer", "default": 2}
    await http.good("PUT", f"{CRDS}/ranges.e.com", crd)
    assert (await http.good("GET", f"{RANGES}/a"))["spec"] == {"low": 1, "step": 2}


async def test_scale_writes_are_owned_by_the_scaler(http: Http) -> None:
    await http.good("POST", CRDS, definition())
    await http.good("POST", RANGES, a_range("a", low=1))
    scale = await http.good("GET", f"{RANGES}/a/scale")
    assert (scale["kind"], scale["spec"], scale["status"]) == ("Scale", {"replicas": 1}, {"replicas": 0})
    scale["spec"]["replicas"] = 4
    await http.good("PUT", f"{RANGES}/a/scale?fieldManager=hpa", scale)
    stored = await http.good("GET", f"{RANGES}/a")
    assert (stored["spec"]["low"], stored["metadata"]["generation"]) == (4, 2)
    owners = {
        entry["manager"]: entry
        for entry in stored["metadata"]["managedFields"]
        if "f:low" in entry["fieldsV1"].get("f:spec", {})
    }
    assert list(owners) == ["hpa"]
    assert owners["hpa"]["subresource"] == "scale"
    status, _ = await http.send("PUT", f"{RANGES}/a/scale", scale)
    assert status == 409


# --- services, nodes, pods --------------------------------------------------------------------------------------


async def test_services_get_an_address_of_their_own_and_keep_it(http: Http) -> None:
    path = "/api/v1/namespaces/default/services"
    body: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}
    first = await http.good("POST", path, body)
    second = await http.good("POST", path, {**body, "metadata": {"name": "b"}})
    address = first["spec"]["clusterIP"]
    assert address.startswith("127.78.")
    assert address != second["spec"]["clusterIP"]
    first["spec"]["clusterIP"] = "127.78.9.9" if address != "127.78.9.9" else "127.78.9.10"
    assert (await http.send("PUT", f"{path}/a", first))[0] == 422
    status, _ = await http.send(
        "POST", path, {**body, "metadata": {"name": "c"}, "spec": {**body["spec"], "clusterIP": address}}
    )
    assert status == 422
    await http.good("DELETE", f"{path}/a")
    again = await http.good(
        "POST", path, {**body, "metadata": {"name": "c"}, "spec": {**body["spec"], "clusterIP": address}}
    )
    assert again["spec"]["clusterIP"] == address
    headless = await http.good("POST", path, {**body, "metadata": {"name": "h"}, "spec": {"clusterIP": "None"}})
    assert headless["spec"]["clusterIP"] == "None"


async def test_a_bound_pod_stays_until_its_node_confirms(http: Http) -> None:
    await http.good("POST", "/api/v1/nodes", NODE)
    await http.good("POST", PODS, pod("a", terminationGracePeriodSeconds=60))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": "n1"},
    }
    await http.good("POST", f"{PODS}/a/binding", binding)
    assert (await http.send("POST", f"{PODS}/a/binding", binding))[0] == 409
    deleted = await http.good("DELETE", f"{PODS}/a")
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 60
    uid = deleted["metadata"]["uid"]
    wrong = {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}}
    assert (await http.send("DELETE", f"{PODS}/a", wrong))[0] == 409
    ignored = {"preconditions": {"uid": uid}}
    still = await http.good("DELETE", f"{PODS}/a?gracePeriodSeconds=0", ignored)
    assert still["metadata"]["deletionGracePeriodSeconds"] == 60
    await http.good("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
    assert (await http.send("GET", f"{PODS}/a"))[0] == 404


async def test_pod_specs_are_frozen_but_for_images_and_tolerations(http: Http) -> None:
    await http.good("POST", PODS, pod("a"))
    good = [{"op": "replace", "path": "/spec/containers/0/image", "value": "i:2"}]
    patch_type = {"Content-Type": "application/json-patch+json"}
    await http.good("PATCH", f"{PODS}/a", good, headers=dict(patch_type))
    bad = [{"op": "add", "path": "/spec/nodeName", "value": "n1"}]
    status, answer = await http.send("PATCH", f"{PODS}/a", bad, headers=dict(patch_type))
    assert status == 422
    assert "pod updates may not change fields" in answer["message"]


async def test_eviction_spends_the_budget(http: Http) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    body = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}
    await http.good("POST", budgets, body)
    for name in ("a", "b"):
        await http.good("POST", PODS, {**pod(name), "metadata": {"name": name, "labels": {"app": "a"}}})
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await http.good("PATCH", f"{PODS}/{name}/status", status, headers=dict(MERGE))
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    status, answer = await http.send("POST", f"{PODS}/a/eviction", evict)
    assert (status, answer["details"]["retryAfterSeconds"]) == (429, 10)
    allowed = {"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1}}
    await http.good("PATCH", f"{budgets}/b/status", allowed, headers=dict(MERGE))
    await http.good("POST", f"{PODS}/a/eviction", evict)
    assert (await http.send("GET", f"{PODS}/a"))[0] == 404
    assert (await http.good("GET", f"{budgets}/b"))["status"]["disruptionsAllowed"] == 0
    status, answer = await http.send("POST", f"{PODS}/b/eviction", evict | {"metadata": {"name": "b"}})
    assert (status, answer["details"]["causes"][0]["reason"]) == (429, "DisruptionBudget")


async def test_logs_come_from_the_node(http: Http, tmp_path: Path) -> None:
    asked = []

    async def container_log(request: web.Request) -> web.Response:
        asked.append((request.path, dict(request.query)))
        return web.Response(text="hello\n")

    app = web.Application()
    app.router.add_get("/{path:.*}", container_log)
    runner = web.AppRunner(app)
    await runner.setup()
    context = server_context(make_certificates("127.0.0.1"), tmp_path)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    try:
        await http.good("POST", "/api/v1/nodes", NODE)
        await http.good("POST", PODS, pod("a"))
        assert (await http.send("GET", f"{PODS}/a/log"))[0] == 400
        binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
        await http.good("POST", f"{PODS}/a/binding", binding)
        status, answer = await http.send("GET", f"{PODS}/a/log")
        assert status == 501
        assert "node n1 publishes no log endpoint" in answer["message"]
        published = {
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }
        }
        await http.good("PATCH", "/api/v1/nodes/n1/status", published, headers=dict(MERGE))
        async with http.session.get(f"{http.cluster.url}{PODS}/a/log?tailLines=5&follow=true") as response:
            assert (response.status, await response.text()) == (200, "hello\n")
        assert asked == [("/containerLogs/default/a/c", {"tailLines": "5", "follow": "true"})]
        assert (await http.send("GET", f"{PODS}/a/log?container=zz"))[0] == 400
    finally:
        await runner.cleanup()


# --- namespaces ---------------------------------------------------------------------------------------------------


async def test_a_namespace_goes_with_its_content_once_the_nodes_have_let_go(http: Http) -> None:
    await http.good("POST", "/api/v1/nodes", NODE)
    await http.good("POST", "/api/v1/namespaces", {"metadata": {"name": "t"}})
    pods = "/api/v1/namespaces/t/pods"
    await http.good("POST", pods, pod("a"))
    await http.good("POST", f"{pods}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n1"}})
    await http.good("POST", "/api/v1/namespaces/t/configmaps", {"metadata": {"name": "c"}})
    gone = await http.good("DELETE", "/api/v1/namespaces/t")
    assert gone["status"]["phase"] == "Terminating"
    assert (await http.send("GET", "/api/v1/namespaces/t/configmaps/c"))[0] == 404
    status, answer = await http.send("POST", pods, pod("b"))
    assert (status, answer["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    await http.good("DELETE", f"{pods}/a", {"gracePeriodSeconds": 0})
    assert (await http.send("GET", "/api/v1/namespaces/t"))[0] == 404
    assert (await http.send("POST", pods, pod("b")))[0] == 404
    assert (await http.send("DELETE", "/api/v1/namespaces/default"))[0] == 403


# --- faults -------------------------------------------------------------------------------------------------------


async def test_faults_by_verb_resource_and_count(http: Http) -> None:
    http.cluster.faults.add(Fault(verbs=("create",), resources=("pods",), status=429, retry_after=7, count=2))
    for _ in range(2):
        options: dict[str, Any] = {"json": pod("a")}
        async with http.session.post(http.cluster.url + PODS, **options) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "7"
            assert (await response.json())["reason"] == "TooManyRequests"
    assert (await http.send("GET", PODS))[0] == 200
    await http.good("POST", PODS, pod("a"))


async def test_faults_over_http(http: Http) -> None:
    rules = {"rules": [{"verbs": ["patch"], "resources": ["pods/status"], "status": 409}]}
    await http.good("PUT", "/_faults", rules)
    await http.good("POST", PODS, pod("a"))
    assert (await http.send("PATCH", f"{PODS}/a/status", {}, headers=dict(MERGE)))[0] == 409
    assert (await http.send("PATCH", f"{PODS}/a", {}, headers=dict(MERGE)))[0] == 200
    assert (await http.good("GET", "/_faults"))["acted"] == 1
    await http.good("DELETE", "/_faults")
    assert (await http.send("PATCH", f"{PODS}/a/status", {}, headers=dict(MERGE)))[0] == 200
    for bad in (
        {"rule": []},
        {"rules": [{"verb": "x"}]},
        {"rules": [{"status": 299}]},
        {"rules": [{"probability": 2}]},
    ):
        assert (await http.send("PUT", "/_faults", bad))[0] == 400, bad


async def test_dropped_and_stalled_watches(http: Http) -> None:
    async with http.watch(PODS) as events:
        http.cluster.faults.stall_watches()
        await http.good("POST", PODS, pod("a"))
        reading = asyncio.create_task(events.next())
        await http.good("GET", PODS)
        assert not reading.done()
        http.cluster.faults.resume_watches()
        assert (await reading)[0] == "ADDED"
        http.cluster.faults.drop_watches("pods")
        assert (await events.next())[0] == "END"


async def test_a_probability_is_seeded(tmp_path: Path) -> None:
    outcomes = []
    for turn in range(2):
        async with embedded(tmp_path / str(turn), seed=3) as http:
            http.cluster.faults.add(Fault(verbs=("list",), status=503, probability=0.5))
            outcomes.append([(await http.send("GET", PODS))[0] for _ in range(20)])
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0]) == {200, 503}


async def test_a_client_that_leaves_ends_its_watch(http: Http) -> None:
    store = http.cluster._api.store
    async with http.watch(PODS):
        await http.good("GET", PODS)
        assert len(store.bucket("pods").listeners) == 1
    for _ in range(100):
        if not store.bucket("pods").listeners:
            break
        await asyncio.sleep(0.01)
    assert not store.bucket("pods").listeners


async def test_a_client_that_reads_nothing_is_cut_off(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.05)
    maps = "/api/v1/namespaces/default/configmaps"
    listeners = http.cluster._api.store.bucket("configmaps").listeners
    async with http.watch(maps):
        for number in range(24):
            await http.good("POST", maps, {"metadata": {"name": f"m{number}"}, "data": {"k": "x" * 900_000}})
        for _ in range(200):
            if not listeners:
                break
            await asyncio.sleep(0.02)
        assert not listeners
