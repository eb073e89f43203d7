"""Field validation and dry-run."""

import pytest
from suite_behaviours import behaviour
from suite_client import APPLY, MERGE, Client, url
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


@behaviour("field-validation-everywhere", "Strict holds for PUT, patch and server-side apply as well.")
async def test_strict_everywhere(api: Client, ns: str, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, ns, gadgets.make("one"))
    path = url(gadgets.resource, ns, "one")
    bad = {**created, "spec": {"bogus": 1}}
    for method, body, kind in (
        ("PUT", bad, "application/json"),
        ("PATCH", {"spec": {"bogus": 1}}, MERGE),
        ("PATCH", gadgets.make("one", {"bogus": 1}), APPLY),
    ):
        params = {"fieldValidation": "Strict"} | ({"fieldManager": "anna"} if kind == APPLY else {})
        status = await api.refused(400, method, path, body, content_type=kind, **params)
        assert "bogus" in status["message"]


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
