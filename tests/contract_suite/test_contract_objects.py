"""Creating, reading and replacing objects: metadata rules, concurrency, subresources."""

import asyncio

import pytest
from suite_behaviours import behaviour
from suite_client import JSON_PATCH, MERGE, Client, Object, url
from suite_objects import Gadgets, config_map, unique


@behaviour(
    "create-stamps-metadata", "Create answers 201 and stamps uid, resourceVersion, creationTimestamp, generation 1."
)
async def test_create(api: Client, ns: str, gadgets: Gadgets) -> None:
    forged = {"uid": "00000000-0000-0000-0000-000000000001", "creationTimestamp": "2001-01-01T00:00:00Z"}
    body = gadgets.make("one", {"size": 3}, metadata={**forged, "generation": 7})
    answer = await api.send("POST", url(gadgets.resource, ns), body)
    assert answer.status == 201
    metadata = answer.body["metadata"]
    assert metadata["uid"] != forged["uid"]
    assert metadata["creationTimestamp"] > forged["creationTimestamp"]
    assert metadata["generation"] == 1
    assert metadata["namespace"] == ns
    assert int(metadata["resourceVersion"]) > 0
    assert await api.get(gadgets.resource, ns, "one") == answer.body


@behaviour("create-with-version-refused", "Create refuses an object that carries a resourceVersion.")
async def test_create_with_version(api: Client, ns: str) -> None:
    answer = await api.send("POST", url("configmaps", ns), config_map("one", resourceVersion="1"))
    assert answer.status >= 400
    assert "resourceVersion should not be set" in answer.body["message"]


@behaviour("generate-name", "generateName makes a new name of the prefix and five characters each time.")
async def test_generate_name(api: Client, ns: str) -> None:
    body = {"metadata": {"generateName": "made-"}}
    names = {(await api.create("configmaps", ns, body))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("made-") and len(name) == len("made-") + 5 for name in names)


@behaviour("already-exists-409", "A second create of a name is answered 409, reason AlreadyExists, naming the object.")
async def test_already_exists(api: Client, ns: str) -> None:
    await api.create("configmaps", ns, config_map("one"))
    status = await api.refused(409, "POST", url("configmaps", ns), config_map("one"))
    assert status["reason"] == "AlreadyExists"
    assert status["details"] == {"name": "one", "kind": "configmaps"}


@behaviour(
    "not-found-404", "Reading, replacing, patching or deleting an object that isn't there is answered 404 NotFound."
)
async def test_not_found(api: Client, ns: str) -> None:
    path = url("configmaps", ns, "none")
    for method, body in (("GET", None), ("PATCH", {}), ("DELETE", None)):
        status = await api.refused(
            404, method, path, body, content_type=MERGE if method == "PATCH" else "application/json"
        )
        assert (status["reason"], status["details"]["name"]) == ("NotFound", "none")
    assert (await api.refused(404, "GET", url("leases.coordination.k8s.io", ns, "none")))["details"]["group"] == (
        "coordination.k8s.io"
    )


@behaviour(
    "namespace-must-exist", "An object can't be made in a namespace that doesn't exist: 404 naming the namespace."
)
async def test_namespace_missing(api: Client) -> None:
    missing = unique("missing")
    status = await api.refused(404, "POST", url("configmaps", missing), config_map("one"))
    assert (status["details"]["kind"], status["details"]["name"]) == ("namespaces", missing)


@behaviour("bad-names-422", "Names and labels against the rules are answered 422 with the field in the causes.")
async def test_bad_names(api: Client, ns: str) -> None:
    bad_name = await api.refused(422, "POST", url("configmaps", ns), config_map("Not_Valid"))
    assert bad_name["reason"] == "Invalid"
    assert bad_name["details"]["causes"][0]["field"] == "metadata.name"
    bad_label = await api.refused(422, "POST", url("configmaps", ns), config_map("one", labels={"a": "not valid!"}))
    assert bad_label["details"]["causes"][0]["field"] == "metadata.labels"
    no_name = await api.refused(422, "POST", url("configmaps", ns), {"metadata": {}})
    assert "name or generateName is required" in no_name["message"]


@behaviour("body-must-fit-request", "A body that isn't JSON, of another kind, or named otherwise than the URL is 400.")
async def test_body_must_fit(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.refused(400, "POST", url("configmaps", ns), "{not json")
    await api.refused(
        400, "POST", url("configmaps", ns), {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}
    )
    await api.refused(400, "POST", url(gadgets.resource, ns), {"metadata": {"name": "a"}})
    await api.refused(400, "POST", url("configmaps", ns), config_map("a", namespace="elsewhere"))
    await api.create("configmaps", ns, config_map("one"))
    await api.refused(400, "PUT", url("configmaps", ns, "one"), config_map("two"))


@behaviour("media-type-415", "A body in an unknown media type is answered 415.")
async def test_media_type(api: Client, ns: str) -> None:
    await api.refused(415, "POST", url("configmaps", ns), config_map("one"), content_type="text/csv")


@behaviour("yaml-body", "A body may be YAML.")
async def test_yaml(api: Client, ns: str) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {a: b}\n"
    created = await api.ok("POST", url("configmaps", ns), text, content_type="application/yaml")
    assert created["data"] == {"a": "b"}


@behaviour("put-replaces", "PUT replaces the object and gives it a new resourceVersion; uid and creation time stay.")
async def test_put(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one", {"a": "1", "b": "2"}))
    changed = {**created, "data": {"c": "3"}}
    replaced = await api.ok("PUT", url("configmaps", ns, "one"), changed)
    assert replaced["data"] == {"c": "3"}
    for field in ("uid", "creationTimestamp"):
        assert replaced["metadata"][field] == created["metadata"][field]
    assert replaced["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


@behaviour("put-conflict-409", "PUT with an old resourceVersion is answered 409 Conflict and changes nothing.")
async def test_put_conflict(api: Client, ns: str, gadgets: Gadgets) -> None:
    for resource, body in (("configmaps", config_map("one")), (gadgets.resource, gadgets.make("one"))):
        created = await api.create(resource, ns, body)
        await api.patch(resource, ns, "one", {"metadata": {"labels": {"a": "b"}}})
        status = await api.refused(409, "PUT", url(resource, ns, "one"), {**created})
        assert status["reason"] == "Conflict"
        assert "the object has been modified" in status["message"]
        assert (await api.get(resource, ns, "one"))["metadata"]["labels"] == {"a": "b"}


@behaviour(
    "patch-conflict-409", "A patch that carries an old resourceVersion is answered 409; with the current one it works."
)
async def test_patch_conflict(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one"))
    version = created["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "data": {"a": "1"}}
    await api.patch("configmaps", ns, "one", patch)
    patch["data"] = {"a": "2"}
    status = await api.refused(409, "PATCH", url("configmaps", ns, "one"), patch, content_type=MERGE)
    assert status["reason"] == "Conflict"
    assert (await api.get("configmaps", ns, "one"))["data"] == {"a": "1"}


@behaviour(
    "put-needs-version", "PUT of a custom resource without a resourceVersion is 422; most built-in kinds allow it."
)
async def test_put_needs_version(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    status = await api.refused(422, "PUT", url(gadgets.resource, ns, "one"), gadgets.make("one", {"size": 2}))
    assert status["details"]["causes"][0]["field"] == "metadata.resourceVersion"
    await api.create("configmaps", ns, config_map("one"))
    assert (await api.ok("PUT", url("configmaps", ns, "one"), config_map("one", {"a": "b"})))["data"] == {"a": "b"}


@behaviour("foreign-uid-refused", "With another object's uid a PUT is answered 409, a patch 422 naming metadata.uid.")
async def test_foreign_uid(api: Client, ns: str, gadgets: Gadgets) -> None:
    uid = "00000000-0000-0000-0000-000000000001"
    for resource, body in (("configmaps", config_map("one")), (gadgets.resource, gadgets.make("one"))):
        created = await api.create(resource, ns, body)
        path = url(resource, ns, "one")
        put = {**created, "metadata": {**created["metadata"], "uid": uid}}
        assert (await api.refused(409, "PUT", path, put))["reason"] == "Conflict"
        patch = {"metadata": {"uid": uid, "labels": {"a": "b"}}}
        status = await api.refused(422, "PATCH", path, patch, content_type=MERGE)
        assert status["details"]["causes"][0]["field"] == "metadata.uid"


@behaviour(
    "custom-status-takes-status-only",
    "A patch of a custom resource's /status takes the status and looks at no uid; a JSON patch can test it: 422.",
)
async def test_status_of_another(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one"))
    uid = "00000000-0000-0000-0000-000000000001"
    patch = {"metadata": {"uid": uid, "labels": {"a": "b"}}, "spec": {"size": 3}, "status": {"phase": "Up"}}
    patched = await api.patch(gadgets.resource, ns, "one", patch, sub="status")
    assert (patched["metadata"]["uid"], patched["status"]) == (created["metadata"]["uid"], {"phase": "Up"})
    assert "labels" not in patched["metadata"]
    assert patched["spec"]["size"] == 1
    path = url(gadgets.resource, ns, "one", "status")

    def replacing(of: str) -> list[Object]:
        test = {"op": "test", "path": "/metadata/uid", "value": of}
        return [test, {"op": "add", "path": "/status", "value": {"replicas": 2}}]

    await api.refused(422, "PATCH", path, replacing(uid), content_type=JSON_PATCH)
    replaced = await api.ok("PATCH", path, replacing(created["metadata"]["uid"]), content_type=JSON_PATCH)
    assert replaced["status"] == {"replicas": 2}


@behaviour("no-op-keeps-version", "A PUT or patch that changes nothing keeps the resourceVersion.")
async def test_no_op(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 4}))
    put = await api.ok("PUT", url(gadgets.resource, ns, "one"), created)
    patched = await api.patch(gadgets.resource, ns, "one", {"spec": {"size": 4}})
    assert put["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]
    assert patched["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


@behaviour("generation", "generation grows with the spec only: not with labels, annotations or status.")
async def test_generation(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    labelled = await api.patch(
        gadgets.resource, ns, "one", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
    )
    assert labelled["metadata"]["generation"] == 1
    reported = await api.patch(gadgets.resource, ns, "one", {"status": {"phase": "Up"}}, sub="status")
    assert reported["metadata"]["generation"] == 1
    changed = await api.patch(gadgets.resource, ns, "one", {"spec": {"size": 9}, "metadata": {"generation": 70}})
    assert changed["metadata"]["generation"] == 2


@behaviour("status-not-through-main", "Create, PUT and patch of the object ignore its status where it has a /status.")
async def test_status_not_through_main(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one", status={"phase": "Forged"}))
    assert "status" not in created
    await api.patch(gadgets.resource, ns, "one", {"status": {"phase": "Up"}}, sub="status")
    current = await api.get(gadgets.resource, ns, "one")
    replaced = await api.ok("PUT", url(gadgets.resource, ns, "one"), {**current, "spec": {"size": 2}, "status": {}})
    assert replaced["status"] == {"phase": "Up"}
    patched = await api.patch(gadgets.resource, ns, "one", {"spec": {"size": 3}, "status": {"phase": "Forged"}})
    assert (patched["status"], patched["spec"]["size"]) == ({"phase": "Up"}, 3)


@behaviour("status-changes-status-only", "PUT and patch of /status change the status alone: neither spec nor labels.")
async def test_status_only(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 5}))
    forged = {**created, "spec": {"size": 50}, "status": {"phase": "Up"}}
    forged["metadata"] = {**created["metadata"], "labels": {"a": "b"}}
    await api.ok("PUT", url(gadgets.resource, ns, "one", "status"), forged)
    patch = {"spec": {"size": 60}, "metadata": {"labels": {"c": "d"}}, "status": {"replicas": 2}}
    patched = await api.patch(gadgets.resource, ns, "one", patch, sub="status")
    assert patched["spec"]["size"] == 5
    assert patched["status"] == {"phase": "Up", "replicas": 2}
    assert "labels" not in patched["metadata"]
    assert (await api.ok("GET", url(gadgets.resource, ns, "one", "status"))) == patched


@behaviour("status-conflict-409", "PUT of /status with an old resourceVersion is answered 409.")
async def test_status_conflict(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one"))
    await api.patch(gadgets.resource, ns, "one", {"spec": {"size": 2}})
    await api.refused(409, "PUT", url(gadgets.resource, ns, "one", "status"), {**created, "status": {"phase": "Up"}})


@behaviour("scale-read", "GET /scale shows an autoscaling/v1 Scale with replicas and selector from the declared paths.")
async def test_scale_read(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one", {"replicas": 3}))
    await api.patch(gadgets.resource, ns, "one", {"status": {"replicas": 2, "selector": "app=one"}}, sub="status")
    scale = await api.ok("GET", url(gadgets.resource, ns, "one", "scale"))
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "app=one"}
    assert (scale["metadata"]["name"], scale["metadata"]["uid"]) == ("one", created["metadata"]["uid"])


@behaviour(
    "scale-write", "PUT and patch of /scale write spec.replicas, raise the generation and check the resourceVersion."
)
async def test_scale_write(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"replicas": 1, "size": 7}))
    path = url(gadgets.resource, ns, "one", "scale")
    scale = await api.ok("GET", path)
    put = await api.ok("PUT", path, {**scale, "spec": {"replicas": 4}})
    assert put["spec"]["replicas"] == 4
    await api.refused(409, "PUT", path, {**scale, "spec": {"replicas": 5}})
    patched = await api.ok("PATCH", path, {"spec": {"replicas": 0}}, content_type=MERGE)
    assert patched["spec"] == {"replicas": 0} or patched["spec"] == {}
    stored = await api.get(gadgets.resource, ns, "one")
    assert (stored["spec"]["replicas"], stored["spec"]["size"], stored["metadata"]["generation"]) == (0, 7, 3)


@behaviour("scale-refuses-negative", "A negative number of replicas is answered 422 through /scale.")
async def test_scale_negative(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", {"replicas": 1}))
    path = url(gadgets.resource, ns, "one", "scale")
    await api.refused(422, "PATCH", path, {"spec": {"replicas": -1}}, content_type=MERGE)


@behaviour(
    "scale-needs-replicas", "GET /scale of an object without spec.replicas is answered 500 saying that it is missing."
)
async def test_scale_needs_replicas(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one"))
    status = await api.refused(500, "GET", url(gadgets.resource, ns, "one", "scale"))
    assert 'the spec replicas field ".spec.replicas" does not exist' in status["message"]


@behaviour("secret-string-data", "A Secret's stringData is stored as base64 data and isn't shown again.")
async def test_secret(api: Client, ns: str) -> None:
    body = {"metadata": {"name": "one"}, "stringData": {"token": "hello"}}
    created = await api.create("secrets", ns, body)
    assert created["data"] == {"token": "aGVsbG8="}
    assert created["type"] == "Opaque"
    assert "stringData" not in await api.get("secrets", ns, "one")


@behaviour("immutable-data", "A ConfigMap that is immutable keeps its data: 422.")
async def test_immutable(api: Client, ns: str) -> None:
    await api.create("configmaps", ns, {**config_map("one", {"a": "1"}), "immutable": True})
    await api.refused(422, "PATCH", url("configmaps", ns, "one"), {"data": {"a": "2"}}, content_type=MERGE)


@behaviour(
    "pod-defaults", "A pod gets Kubernetes' defaults: restart policy, grace, tolerations, probes, requests from limits."
)
async def test_pod_defaults(api: Client, ns: str) -> None:
    container = {
        "name": "main",
        "image": "example.com/none:1",
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"port": 8000}},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    body = {"metadata": {"name": "one"}, "spec": {"containers": [container], "schedulerName": "nobody"}}
    spec = (await api.create("pods", ns, body))["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert (spec["dnsPolicy"], spec["serviceAccountName"]) == ("ClusterFirst", "default")
    tolerated = {toleration["key"]: toleration["tolerationSeconds"] for toleration in spec["tolerations"]}
    assert tolerated == {"node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300}
    main = spec["containers"][0]
    assert main["imagePullPolicy"] == "IfNotPresent"
    assert main["resources"]["requests"] == main["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert main["ports"][0]["protocol"] == "TCP"
    probe = main["readinessProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"], probe["httpGet"]["path"]) == (10, 3, "/")
    status = (await api.get("pods", ns, "one"))["status"]
    assert (status["phase"], status["qosClass"]) == ("Pending", "BestEffort")


@behaviour(
    "quantities", "Quantities are taken as numbers or strings and stored in canonical form; what is none is 400."
)
async def test_quantities(api: Client, ns: str) -> None:
    container = {
        "name": "main",
        "image": "example.com/none:1",
        "resources": {"requests": {"cpu": 0.5, "memory": "2048Mi"}},
        "readinessProbe": {"httpGet": {"port": "http"}},
        "livenessProbe": {"httpGet": {"port": 8000}},
    }
    body = {"metadata": {"name": "one"}, "spec": {"containers": [container], "schedulerName": "nobody"}}
    main = (await api.create("pods", ns, body))["spec"]["containers"][0]
    assert main["resources"]["requests"] == {"cpu": "500m", "memory": "2Gi"}
    assert (main["readinessProbe"]["httpGet"]["port"], main["livenessProbe"]["httpGet"]["port"]) == ("http", 8000)
    container["resources"] = {"requests": {"memory": "1 Zi"}}
    status = await api.refused(400, "POST", url("pods", ns), {**body, "metadata": {"name": "two"}})
    assert "quantities must match the regular expression" in status["message"]


@behaviour("pod-spec-frozen", "Of a pod's spec only a few fields may change (the image may): anything else is 422.")
async def test_pod_frozen(api: Client, ns: str) -> None:
    container = {"name": "main", "image": "example.com/none:1", "env": [{"name": "A", "value": "1"}]}
    body = {"metadata": {"name": "one"}, "spec": {"containers": [container], "schedulerName": "nobody"}}
    await api.create("pods", ns, body)
    path = url("pods", ns, "one")
    env = [{"op": "replace", "path": "/spec/containers/0/env/0/value", "value": "2"}]
    status = await api.refused(422, "PATCH", path, env, content_type="application/json-patch+json")
    assert "pod updates may not change fields other than" in status["message"]
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/none:2"}]
    changed = await api.ok("PATCH", path, image, content_type="application/json-patch+json")
    assert changed["spec"]["containers"][0]["image"] == "example.com/none:2"


@pytest.mark.parametrize("writers", [8])
@behaviour("concurrent-writers", "Of many writers with the same resourceVersion exactly one wins, the rest get 409.")
async def test_concurrent_writers(api: Client, ns: str, writers: int) -> None:
    created = await api.create("configmaps", ns, config_map("one"))
    bodies = [{**created, "data": {"winner": str(index)}} for index in range(writers)]
    answers = await asyncio.gather(*(api.send("PUT", url("configmaps", ns, "one"), body) for body in bodies))
    assert sorted(answer.status for answer in answers) == [200] + [409] * (writers - 1)
