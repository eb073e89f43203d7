"""Without the rules across fields, pydantic accepts an object exactly when the generated schema does.

The schema is read as the API server reads a structural schema: nulls of known fields are dropped first, `pattern` is
RE2, an exclusive bound is a flag beside the bound, sets and list maps hold no duplicates.
"""

import copy
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from evenflow_operator.api.schema import structural_schema
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.api.status import LLMServingPoolStatus
from evenflow_operator.api.structural import with_defaults

Json = Any
MODELS = [LLMServingPoolSpec, LLMServingPoolStatus]


def as_json_schema(node: dict[str, Any]) -> dict[str, Any]:
    """The same constraints in JSON Schema 2020-12."""
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return {"type": "object"}
    result = {key: value for key, value in node.items() if key in {"type", "enum", "required"}}
    result |= {key: value for key, value in node.items() if key.startswith(("min", "max"))}
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if node.get(flag):
            result[flag] = result.pop(bound)
    if "pattern" in node:
        result["pattern"] = node["pattern"].replace("$", r"\Z")
    if "properties" in node:
        result["properties"] = {key: as_json_schema(child) for key, child in node["properties"].items()}
    for keyword in ("items", "additionalProperties"):
        if keyword in node:
            result[keyword] = as_json_schema(node[keyword])
    return result


def drop_nulls(node: dict[str, Any], value: Json) -> Json:
    if isinstance(value, list) and "items" in node:
        return [drop_nulls(node["items"], item) for item in value]
    if isinstance(value, dict) and "properties" in node:
        known = node["properties"]
        return {
            key: drop_nulls(known[key], item) if key in known else item
            for key, item in value.items()
            if not (key in known and item is None)
        }
    if isinstance(value, dict) and "additionalProperties" in node:
        return {key: item for key, item in value.items() if item is not None}
    return value


def lists_unique(node: dict[str, Any], value: Json) -> bool:
    if isinstance(value, dict):
        return all(lists_unique(node["properties"][k], v) for k, v in value.items() if k in node.get("properties", {}))
    if not isinstance(value, list) or "items" not in node:
        return True
    keys = value
    if node.get("x-kubernetes-list-type") == "map":
        keys = [item[node["x-kubernetes-list-map-keys"][0]] for item in value]
    elif node.get("x-kubernetes-list-type") != "set":
        keys = []
    return all(keys.index(key) == i for i, key in enumerate(keys)) and all(
        lists_unique(node["items"], item) for item in value
    )


class Schema:
    def __init__(self, model: type[BaseModel]) -> None:
        self.structural = structural_schema(model)
        self._validator = jsonschema.Draft202012Validator(as_json_schema(self.structural))

    def accepts(self, value: Json) -> bool:
        value = drop_nulls(self.structural, value)
        return self._validator.is_valid(value) and lists_unique(self.structural, value)


SCHEMAS = {model: Schema(model) for model in MODELS}


def pydantic_accepts(model: type[BaseModel], value: Json) -> bool:
    try:
        model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, -1, 1.0, 4.0, 0.9, True, "", "4", "80GB", "30s", "Active", "default", "a\n", "é", "x" * 2000])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def valid(draw: st.DrawFn, node: dict[str, Any]) -> Json:
    """A value that the schema mostly accepts."""
    if "enum" in node:
        return draw(st.sampled_from(node["enum"]))
    match node["type"]:
        case "boolean":
            return draw(st.booleans())
        case "integer":
            return draw(st.integers(node["minimum"], node["maximum"]))
        case "string":
            if "pattern" in node:
                return draw(st.from_regex(node["pattern"], fullmatch=True))[: node["maxLength"]]
            return draw(st.text(min_size=node.get("minLength", 0), max_size=min(node["maxLength"], 12)))
        case "array":
            most = min(node["maxItems"], 3)
            return draw(st.lists(valid(node["items"]), min_size=node.get("minItems", 0), max_size=most))
        case "object" if "properties" in node:
            required = node.get("required", [])
            return {
                key: draw(valid(child))
                for key, child in node["properties"].items()
                if key in required or draw(st.integers(0, 2)) == 0
            }
        case "object" if "additionalProperties" in node:
            return draw(st.dictionaries(st.text(max_size=6), valid(node["additionalProperties"]), max_size=3))
        case _:
            return draw(st.dictionaries(st.text(max_size=6), ANY_JSON, max_size=2))


def places(
    node: dict[str, Any], value: Json, where: tuple[Any, ...] = ()
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every place in the value that the schema describes, with its schema."""
    found = [(where, node)]
    if isinstance(value, dict):
        for key, item in value.items():
            if key in node.get("properties", {}):
                found += places(node["properties"][key], item, (*where, key))
    elif isinstance(value, list) and "items" in node:
        for index, item in enumerate(value):
            found += places(node["items"], item, (*where, index))
    return found


@st.composite
def broken(draw: st.DrawFn, node: dict[str, Any], value: Json) -> Json:
    """The value, changed at one place: wrong type, out of range, null, missing, unknown, too long, doubled."""
    where, here = draw(st.sampled_from(places(node, value)))
    if not where:
        return draw(st.one_of(st.just(value), ANY_JSON))
    value = copy.deepcopy(value)
    parent = value
    for step in where[:-1]:
        parent = parent[step]
    last, now = where[-1], parent[where[-1]]
    edges: list[Json] = [None, str(now), [now], {"x": now}]
    if "minimum" in here:
        edges += [here["minimum"], here["minimum"] - 1, here["maximum"], here["maximum"] + 1, float(here["minimum"])]
    if "maxLength" in here:
        edges += ["a" * here["maxLength"], "a" * (here["maxLength"] + 1), f"{now}\n", "", f"{now}é"]
    if "enum" in here and isinstance(now, str):
        edges += [now.lower(), now + " "]
    if isinstance(now, list) and "maxItems" in here:
        edges += [now + now, [None], (now or ["a"]) * (here["maxItems"] + 1)]
    if isinstance(now, dict):
        edges += [{**now, "unknownField": 1}, {**now, "snake_case": 1}, {}]
    action = draw(st.sampled_from(["edge", "any", "remove"]))
    event(f"{action} {here.get('type')}")
    if action == "remove":
        del parent[last]
    else:
        parent[last] = draw(st.sampled_from(edges) if action == "edge" else ANY_JSON)
    return value


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_pydantic_accepts_exactly_what_the_schema_accepts(model: type[BaseModel], data: st.DataObject) -> None:
    schema = SCHEMAS[model]
    value = data.draw(valid(schema.structural))
    for _ in range(data.draw(st.integers(0, 2))):
        value = data.draw(broken(schema.structural, value))
        if not isinstance(value, dict):
            break
    verdict = schema.accepts(value)
    event(f"accepted: {verdict}")
    assert pydantic_accepts(model, value) == verdict, value


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_defaults_of_schema_and_model_agree(data: st.DataObject) -> None:
    schema = SCHEMAS[LLMServingPoolSpec]
    value = data.draw(valid(schema.structural).filter(schema.accepts))
    defaulted = with_defaults(schema.structural, value)
    assert schema.accepts(defaulted)
    model = LLMServingPoolSpec.model_validate(value, by_alias=True, by_name=False)
    assert LLMServingPoolSpec.model_validate(defaulted, by_alias=True, by_name=False) == model
    assert with_defaults(schema.structural, model.to_dict()) == model.to_dict()
    assert LLMServingPoolSpec.model_validate(model.to_dict(), by_alias=True, by_name=False) == model


@pytest.mark.parametrize(
    ("path", "value", "accepted"),
    [
        ("replicas", 0, True),
        ("replicas", -1, False),
        ("replicas", 1001, False),
        ("replicas", 3.0, True),
        ("replicas", 3.5, False),
        ("replicas", "3", False),
        ("replicas", True, False),
        ("replicas", None, True),
        ("mode", "active", False),
        ("trafficClasses", None, True),
        ("trafficClasses", [None], False),
        ("trafficClasses", [{"name": "a", "promptTokens": 1, "outputTokens": 1}] * 2, False),
        ("trafficClasses", [{"name": "a\n", "promptTokens": 1, "outputTokens": 1}], False),
        ("trafficClasses", [{"name": "a", "promptTokens": None, "outputTokens": 1}], False),
        ("trafficClasses", [{"name": "a" * 23, "promptTokens": 1, "outputTokens": 1}], False),
        ("placement", {"rebalance": {"enabled": "yes"}}, False),
        ("placement", {"rebalance": None}, True),
        ("rollout", {"restartedAt": "2026-11-30T00:00:00Z"}, True),
        ("rollout", {"restartedAt": "yesterday"}, False),
        ("podTemplate", {"spec": {"hostNetwork": None, "anything": [1, {"x": 2.5}]}}, True),
        ("podTemplate", {"spec": []}, False),
        ("trafficClasses", {}, False),
        ("unknown", {"x": 1}, True),
    ],
)
def test_cases_where_the_two_easily_differ(path: str, value: Json, accepted: bool) -> None:
    document = {"model": {"name": "m"}, path: value}
    assert SCHEMAS[LLMServingPoolSpec].accepts(document) is accepted
    assert pydantic_accepts(LLMServingPoolSpec, document) is accepted
