"""The converter keeps every constraint, and refuses what a structural schema can't say."""

from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field, create_model

from evenflow_operator.api.base import ApiModel, Items, UniqueItems
from evenflow_operator.api.schema import SchemaError, convert, structural_schema


def field_schema(annotation: Any, default: Any = ...) -> dict[str, Any]:
    model = create_model("Model", __base__=ApiModel, value=(annotation, default))
    return structural_schema(model)["properties"]["value"]


class Inner(ApiModel):
    """Inner."""

    depth: int = Field(3, ge=0, le=9)
    """How deep."""


class Needs(ApiModel):
    must: bool


class Tree(ApiModel):
    name: Annotated[str, Field(max_length=5)] = ""
    children: Annotated[tuple["Tree", ...], Field(max_length=2)] = ()


def test_an_exclusive_minimum_survives_inside_an_optional_number() -> None:
    assert field_schema(Optional[Annotated[float, Field(gt=0.5)]], None) == {  # noqa: UP045 the form that once lost it
        "type": "number",
        "minimum": 0.5,
        "exclusiveMinimum": True,
    }


def test_a_null_branch_and_a_null_default_are_dropped() -> None:
    converted = field_schema(Annotated[str, Field(max_length=3)] | None, None)
    assert converted == {"type": "string", "maxLength": 3}


def test_references_are_inlined_and_an_absent_parent_gets_its_childrens_defaults() -> None:
    converted = field_schema(Inner, Field(default_factory=Inner, description="Outer  words\nwin."))
    assert converted == {
        "type": "object",
        "description": "Outer words win.",
        "default": {},
        "properties": {
            "depth": {
                "type": "integer",
                "format": "int32",
                "minimum": 0,
                "maximum": 9,
                "default": 3,
                "description": "How deep.",
            }
        },
    }


def test_an_optional_object_has_no_default() -> None:
    assert "default" not in field_schema(Inner | None, None)


def test_const_becomes_enum() -> None:
    assert field_schema(Literal["only"])["enum"] == ["only"]


def test_free_objects_preserve_unknown_fields() -> None:
    assert field_schema(dict[str, Any]) == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def test_large_integers_are_int64() -> None:
    assert field_schema(Annotated[int, Field(ge=0, le=2**31)])["format"] == "int64"


def test_sets_and_list_maps_carry_their_keys() -> None:
    class Named(ApiModel):
        name: Annotated[str, Field(max_length=3)]

    by_name = field_schema(Annotated[Items[Named], Field(max_length=2), UniqueItems("name")])
    assert (by_name["x-kubernetes-list-type"], by_name["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    as_set = field_schema(Annotated[Items[Annotated[str, Field(max_length=3)]], Field(max_length=2), UniqueItems()])
    assert as_set["x-kubernetes-list-type"] == "set"
    assert "x-kubernetes-list-map-keys" not in as_set


@pytest.mark.parametrize(
    ("annotation", "default", "complaint"),
    [
        (Annotated[int, Field(ge=0, le=9)] | bool, ..., "union"),
        (Annotated[int, Field(ge=0, le=9)] | bool | None, None, "union"),
        (Annotated[str, Field(max_length=3)] | Inner, ..., "union"),
        (str, ..., "without maxLength"),
        (int, ..., "without minimum"),
        (Annotated[int, Field(ge=0)], ..., "without minimum or maximum"),
        (tuple[bool, ...], ..., "without maxItems"),
        (dict[str, bool], ..., "without maxProperties"),
        (Annotated[int, Field(ge=0, le=9, multiple_of=3)], ..., "multipleOf"),
        (Annotated[float, Field(ge=0, gt=1)], ..., "together"),
        (tuple[bool, bool], ..., "prefixItems"),
        (Any, ..., "exactly one type"),
        (bytes, ..., "format"),
        (Tree, ..., "contains itself"),
        (Needs, Field(default_factory=lambda: Needs(must=True)), "has no default"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(annotation: Any, default: Any, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint) as refusal:
        field_schema(annotation, default)
    assert str(refusal.value).startswith("value")


def test_a_fault_deep_inside_names_its_path() -> None:
    class Middle(ApiModel):
        entries: Annotated[tuple[Needs, ...], Field(max_length=1)] = ()
        names: Annotated[tuple[str, ...], Field(max_length=1)] = ()

    with pytest.raises(SchemaError, match=r"^value\.names\[\]: a string without maxLength"):
        field_schema(Middle)


@pytest.mark.parametrize(
    ("node", "complaint"),
    [
        ({"$ref": "#/$defs/Nowhere"}, "leads nowhere"),
        ({"type": "object", "properties": {}, "additionalProperties": {"type": "boolean"}}, "additionalProperties"),
        ({"type": "object"}, "without fields"),
        ({"type": ["string", "integer"]}, "exactly one type"),
        ({"const": "a", "enum": ["a"], "type": "string"}, "const and enum"),
        ({"type": "boolean", "not": {}}, "'not'"),
    ],
)
def test_foreign_schemas_are_refused(node: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        convert(node, definitions={})


def test_additional_properties_false_is_dropped() -> None:
    class Closed(BaseModel, extra="forbid"):
        flag: bool

    assert structural_schema(Closed) == {
        "type": "object",
        "required": ["flag"],
        "properties": {"flag": {"type": "boolean"}},
    }
