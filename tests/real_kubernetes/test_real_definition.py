"""The pool's definition on a real API server: its CEL rules, its defaults, and that both agree with our own forms."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from suite_client import APPLY, MERGE, Client, eventually
from test_api_rules import BROKEN, SOUND
from test_api_schema_agreement import SCHEMAS, broken, valid

from evenflow_operator.api.rules import RULES, cel_twin
from evenflow_operator.api.spec import LLMServingPoolSpec

ROOT = Path(__file__).parents[2]
DEFINITION = ROOT / "crds" / "serving.evenflow.dev_llmservingpools.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POOLS = "/apis/serving.evenflow.dev/v1alpha1/namespaces/default/llmservingpools"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def document(value: Any, name: str = "agreed") -> dict[str, Any]:
    return {
        "apiVersion": "serving.evenflow.dev/v1alpha1",
        "kind": "LLMServingPool",
        "metadata": {"name": name},
        "spec": value,
    }


def rule_fields(remedy: str) -> set[str]:
    """Where the API server shows a fault of the rule with this remedy: list indexes apart."""
    return {f"{rule.path}.{rule.field}".strip(".") for rule in RULES if rule.remedy == remedy}


def without_indexes(path: str) -> str:
    return "".join("[]" if part.isdigit() else part for part in path.replace("[", "\0").replace("]", "\0").split("\0"))


@pytest.fixture(autouse=True)
async def definition(api: Client) -> None:
    """Applied as a user applies it, server-side; without warnings, and its rules within the cost budget."""
    path = f"{CRDS}/llmservingpools.serving.evenflow.dev"
    body = DEFINITION.read_text()
    answer = await api.send(
        "PATCH", path, body, content_type=APPLY, fieldManager="test", force=True, fieldValidation="Strict"
    )
    assert answer.status in (200, 201), answer.body
    assert answer.warnings == []

    for _ in range(600):
        status = (await api.ok("GET", path)).get("status") or {}
        conditions = {one["type"]: one for one in status.get("conditions") or ()}
        if conditions.get("Established", {}).get("status") == "True" and (await api.send("GET", POOLS)).status == 200:
            break
        await asyncio.sleep(0.05)
    assert conditions.get("NonStructuralSchema") is None


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
async def test_examples_are_accepted_without_warnings(api: Client, example: Path) -> None:
    for manifest in yaml.safe_load_all(example.read_text()):
        answer = await api.send("POST", POOLS, manifest, dryRun="All", fieldValidation="Strict")
        assert (answer.status, answer.warnings) == (201, []), answer.body


@pytest.mark.parametrize(("broken_pool", "path", "found"), BROKEN)
async def test_a_broken_rule_is_refused_at_the_field_that_its_twin_names(
    api: Client, broken_pool: dict[str, Any], path: str, found: str
) -> None:
    body = document(broken_pool["spec"], broken_pool["metadata"]["name"])
    status = await api.refused(422, "POST", POOLS, body, dryRun="All")
    remedies = {fault.message.split("; ", 1)[1] for fault in cel_twin(broken_pool)}
    causes = [cause for cause in status["details"]["causes"] if any(remedy in cause["message"] for remedy in remedies)]
    assert causes, status
    for cause in causes:
        field = cause["field"].removeprefix("<nil>")
        # A rule about a list stands on what holds the list; the twin names the item as well.
        assert path.startswith(field), cause
        assert without_indexes(field) in set().union(*map(rule_fields, remedies)), cause


@pytest.mark.parametrize("sound", SOUND)
async def test_sound_pools_are_accepted(api: Client, sound: dict[str, Any]) -> None:
    answer = await api.send("POST", POOLS, document(sound["spec"], sound["metadata"]["name"]), dryRun="All")
    assert answer.status == 201, answer.body


async def test_an_update_that_leaves_a_faulty_part_alone_passes(api: Client) -> None:
    """What the twins take for granted about ratcheting; the faulty object stands from before a rule was added."""
    path = f"{CRDS}/llmservingpools.serving.evenflow.dev"
    stored = await api.ok("GET", path)
    lenient = copy.deepcopy(stored)
    for version in lenient["spec"]["versions"]:
        strip_rules(version["schema"]["openAPIV3Schema"])
    classes = [
        {"name": "default", "promptTokens": 1, "outputTokens": 1},
        {"name": "chat", "promptTokens": 100, "outputTokens": 20},
    ]
    pool = document({"model": {"name": "m"}, "trafficClasses": classes}, "ratcheted")
    await api.ok("PUT", path, lenient)
    try:

        async def created() -> bool:
            answer = await api.send("POST", POOLS, pool)
            return answer.status in (201, 409)

        await eventually(created, "the definition without rules is in force")
    finally:
        now = await api.ok("GET", path)
        await api.ok("PUT", path, {**now, "spec": stored["spec"]})

    async def enforced() -> bool:
        return (await api.send("POST", POOLS, document(pool["spec"], "other"), dryRun="All")).status == 422

    await eventually(enforced, "the rules are in force again")
    try:
        turned = document({**pool["spec"], "trafficClasses": classes[::-1]}, "ratcheted")
        await api.ok("PATCH", f"{POOLS}/ratcheted", {"spec": turned["spec"]}, content_type=MERGE)
        renamed = [{**classes[1], "name": "code"}, classes[0]]
        assert cel_twin(document({**pool["spec"], "trafficClasses": renamed}), turned) == []
        await api.ok("PATCH", f"{POOLS}/ratcheted", {"spec": {"trafficClasses": renamed}}, content_type=MERGE)
    finally:
        await api.ok("DELETE", f"{POOLS}/ratcheted")


def strip_rules(node: Any) -> None:
    if isinstance(node, dict):
        node.pop("x-kubernetes-validations", None)
        for child in node.values():
            strip_rules(child)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_the_server_accepts_exactly_what_our_forms_accept(api: Client, data: st.DataObject) -> None:
    schema = SCHEMAS[LLMServingPoolSpec]
    value = data.draw(valid(schema.structural))
    for _ in range(data.draw(st.integers(0, 2))):
        value = data.draw(broken(schema.structural, value))
        if not isinstance(value, dict):
            return
    expected = schema.accepts(value) and not cel_twin(document(value))
    answer = await api.send("POST", POOLS, document(value), dryRun="All")
    assert answer.status == (201 if expected else 422), (value, answer.body)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_the_server_defaults_as_our_model_does(api: Client, data: st.DataObject) -> None:
    schema = SCHEMAS[LLMServingPoolSpec]
    value = data.draw(valid(schema.structural).filter(lambda one: schema.accepts(one) and not cel_twin(document(one))))
    # A free-form float comes back as Go writes it.
    value.pop("podTemplate", None)
    answer = await api.ok("POST", POOLS, document(value), dryRun="All")
    model = LLMServingPoolSpec.model_validate(value, by_alias=True, by_name=False)
    assert LLMServingPoolSpec.model_validate(answer["spec"], by_alias=True, by_name=False) == model
