"""Field validation and dry-run."""

import pytest
from suite_behaviours import behaviour
from suite_client import APPLY, JSON_PATCH, MERGE, Client, Object, url
from suite_objects import Gadgets, config_map, pod


@pytest.mark.parametrize("custom", [False, True])
@behaviour(
    "field-validation-strict", "fieldValidation=Strict answers 400 naming every unknown field, and stores nothing."
)
async def test_strict(api: Client, ns: str, gadgets: Gadgets, custom: bool) -> None:
    resource = gadgets.resource if custom else "pods"
    body = gadgets.make("one", {"bogus": 1}) if custom else pod("one", bogus=1)
    status = await api.refused(400, "POST", url(resource, ns), body, fieldValidation="Strict")
    assert status["reason"] == "BadRequest"
    assert 'unknown field "spec.bogus"' in status["message"]
    assert not await api.exists(resource, ns, "one")


@pytest.mark.parametrize("custom", [False, True])
@behaviour(
    "field-validation-warn", "Without fieldValidation, or with Warn, unknown fields are dropped with a Warning header."
)
async def test_warn(api: Client, ns: str, gadgets: Gadgets, custom: bool) -> None:
    resource = gadgets.resource if custom else "pods"
    for name, params in (("one", {}), ("two", {"fieldValidation": "Warn"})):
        body = gadgets.make(name, {"bogus": 1}) if custom else pod(name, bogus=1, schedulerName="nobody")
        answer = await api.send("POST", url(resource, ns), body, **params)
        assert answer.status == 201
        assert answer.warnings == ['299 - "unknown field \\"spec.bogus\\""']
        assert "bogus" not in answer.body["spec"]


@behaviour("field-validation-ignore", "fieldValidation=Ignore drops unknown fields silently.")
async def test_ignore(api: Client, ns: str, gadgets: Gadgets) -> None:
    answer = await api.send(
        "POST", url(gadgets.resource, ns), gadgets.make("one", {"bogus": 1}), fieldValidation="Ignore"
    )
    assert (answer.status, answer.warnings) == (201, [])
    assert "bogus" not in answer.body["spec"]


@pytest.mark.parametrize("custom", [False, True])
@behaviour("field-validation-everywhere", "Strict answers 400 for a PUT as well, and 422 for what a patch leaves.")
async def test_strict_everywhere(api: Client, ns: str, gadgets: Gadgets, custom: bool) -> None:
    resource = gadgets.resource if custom else "pods"
    body = gadgets.make("one") if custom else pod("one", schedulerName="nobody")
    created = await api.create(resource, ns, body)
    path = url(resource, ns, "one")
    bad = {**created, "spec": {**created["spec"], "bogus": 1}}
    status = await api.refused(400, "PUT", path, bad, fieldValidation="Strict")
    assert 'strict decoding error: unknown field "spec.bogus"' in status["message"]
    operation = [{"op": "add", "path": "/spec/bogus", "value": 1}]
    for patch, kind in (({"spec": {"bogus": 1}}, MERGE), (operation, JSON_PATCH)):
        status = await api.refused(422, "PATCH", path, patch, content_type=kind, fieldValidation="Strict")
        assert 'strict decoding error: unknown field "spec.bogus"' in status["message"]
        assert [cause["field"] for cause in status["details"]["causes"]] == ["patch"]


@pytest.mark.parametrize("validation", ["Strict", "Warn", "Ignore"])
@behaviour(
    "apply-undeclared-500",
    "Server-side apply of an unknown field, a wrong type or a doubled key is 500, whatever fieldValidation says.",
)
async def test_apply_undeclared(api: Client, ns: str, gadgets: Gadgets, validation: str) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("old"))
    params = {"fieldManager": "anna", "fieldValidation": validation}
    for name in ("old", "new"):
        for spec, path in (
            ({"bogus": 1}, ".spec.bogus"),
            ({"size": "x"}, ".spec.size"),
            ({"parts": [{"name": "a"}, {"name": "a"}]}, ".spec.parts"),
        ):
            body = gadgets.make(name, spec)
            answer = await api.send("PATCH", url(gadgets.resource, ns, name), body, content_type=APPLY, **params)
            assert answer.status == 500
            assert f"failed to create typed patch object (/{name}; " in answer.body["message"]
            assert f"{path}: " in answer.body["message"]
    answer = await api.send(
        "PATCH", url("configmaps", ns, "one"), {**config_map("one"), "bogus": 1}, content_type=APPLY, **params
    )
    assert answer.status == 500


@behaviour("option-values-checked", "An unknown value of fieldValidation or dryRun is refused naming the option.")
async def test_option_values(api: Client, ns: str) -> None:
    for option in ("fieldValidation", "dryRun"):
        answer = await api.send("POST", url("configmaps", ns), config_map("one"), **{option: "Sometimes"})
        assert answer.status in (400, 422)
        assert option in answer.body["message"]


@behaviour(
    "dry-run-create", "A dry-run create answers the whole object, defaults and uid included, and stores nothing."
)
async def test_dry_run_create(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one"), dryRun="All")
    assert created["metadata"]["uid"]
    assert created["spec"]["size"] == 1
    assert not await api.exists(gadgets.resource, ns, "one")
    await api.refused(422, "POST", url(gadgets.resource, ns), gadgets.make("one", {"size": -1}), dryRun="All")


@behaviour(
    "dry-run-create-pod",
    "A dry-run create of a pod is named, admitted, defaulted and validated as a create is, has no resourceVersion, and "
    "stores nothing.",
)
async def test_dry_run_create_pod(api: Client, ns: str) -> None:
    answers = [await api.create("pods", ns, pod("", metadata={"generateName": "one-"}), dryRun="All") for _ in range(2)]
    for answer in answers:
        metadata, spec = answer["metadata"], answer["spec"]
        assert (answer["kind"], metadata["namespace"], answer["status"]["phase"]) == ("Pod", ns, "Pending")
        assert len(metadata["name"]) > len("one-")
        assert metadata["name"].startswith("one-")
        assert metadata["uid"]
        assert metadata["creationTimestamp"]
        assert not metadata.get("resourceVersion")
        assert (spec["restartPolicy"], spec["serviceAccountName"]) == ("Always", "default")
        assert {one["key"] for one in spec["tolerations"]} >= {"node.kubernetes.io/unreachable"}
        assert "nodeName" not in spec
    assert len({answer["metadata"]["name"] for answer in answers}) == 2
    bad = pod("two", tolerations=[{"operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}])
    refused = await api.refused(422, "POST", url("pods", ns), bad, dryRun="All")
    assert refused["details"]["causes"][0]["field"].startswith("spec.tolerations[0]")
    assert await api.items("pods", ns) == []
    await api.create("pods", ns, pod("three", schedulerName="nobody"))
    taken = await api.refused(409, "POST", url("pods", ns), pod("three"), dryRun="All")
    assert taken["reason"] == "AlreadyExists"


@behaviour("dry-run-change", "A dry-run PUT, patch, apply or scale answers the result and changes nothing.")
async def test_dry_run_change(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one", {"size": 1, "replicas": 1}))
    path = url(gadgets.resource, ns, "one")
    put = await api.ok("PUT", path, {**created, "spec": {"size": 2}}, dryRun="All")
    patched = await api.ok("PATCH", path, {"spec": {"size": 3}}, content_type=MERGE, dryRun="All")
    body = gadgets.make("one", {"code": "abc"})
    applied = await api.ok("PATCH", path, body, content_type=APPLY, fieldManager="anna", dryRun="All")
    assert (put["spec"]["size"], patched["spec"]["size"], applied["spec"]["code"]) == (2, 3, "abc")
    scale = {"spec": {"replicas": 9}}
    scaled = await api.ok("PATCH", f"{path}/scale", scale, content_type=MERGE, dryRun="All")
    assert scaled["spec"]["replicas"] == 9
    assert await api.get(gadgets.resource, ns, "one") == created


@behaviour("dry-run-delete", "A dry-run delete, of one object or of a collection, removes nothing.")
async def test_dry_run_delete(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one"))
    await api.delete("configmaps", ns, "one", dryRun="All")
    await api.ok("DELETE", url("configmaps", ns), dryRun="All")
    assert await api.get("configmaps", ns, "one") == created


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"limits": {"example.com/gpu": "0.5"}}, "spec.containers[0].resources.limits[example.com/gpu]", "an integer"),
        ({"requests": {"example.com/gpu": "1"}}, "spec.containers[0].resources.limits", "Limit must be set"),
        (
            {"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "2"}},
            "spec.containers[0].resources.requests",
            "must be equal to example.com/gpu limit of 1",
        ),
        (
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "spec.containers[0].resources.requests",
            "must be less than or equal to cpu limit of 1",
        ),
    ],
)
@behaviour(
    "pod-resources-checked",
    "Extended resources are whole, limited, and requested exactly as limited; others at most as limited: else 422.",
)
async def test_pod_resources(api: Client, ns: str, spec: Object, field: str, says: str) -> None:
    status = await api.refused(422, "POST", url("pods", ns), pod("one", container={"resources": spec}))
    causes = {cause["field"]: cause["message"] for cause in status["details"]["causes"]}
    assert says in causes[field]


@behaviour("pod-tolerations-checked", "tolerationSeconds is for the effect NoExecute only: else 422.")
async def test_pod_tolerations(api: Client, ns: str) -> None:
    toleration = {"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}
    status = await api.refused(422, "POST", url("pods", ns), pod("one", tolerations=[toleration]))
    assert status["details"]["causes"][0]["field"] == "spec.tolerations[0].effect"


@behaviour("pod-address-checked", "What a pod's status gives as its address must be one: else 422.")
async def test_pod_address(api: Client, ns: str) -> None:
    await api.create("pods", ns, pod("one", schedulerName="nobody"))
    status = {"status": {"podIP": "x", "podIPs": [{"ip": "x"}]}}
    refused = await api.refused(422, "PATCH", url("pods", ns, "one", "status"), status, content_type=MERGE)
    assert "status.podIPs[0]" in [cause["field"] for cause in refused["details"]["causes"]]


@behaviour(
    "lease-checked", "A Lease's times have six decimals (else 400), its duration is positive, its count not negative."
)
async def test_lease(api: Client, ns: str) -> None:
    path = url("leases.coordination.k8s.io", ns)
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-11-30T03:00:00.000000Z"}

    def lease(**changed: object) -> Object:
        return {"metadata": {"name": "one"}, "spec": {**spec, **changed}}

    await api.refused(400, "POST", path, lease(renewTime="2026-11-30T03:00:00Z"))
    for changed in ({"leaseDurationSeconds": 0}, {"leaseTransitions": -1}):
        status = await api.refused(422, "POST", path, lease(**changed))
        assert [cause["field"] for cause in status["details"]["causes"]] == [f"spec.{next(iter(changed))}"]
    await api.ok("POST", path, lease())
