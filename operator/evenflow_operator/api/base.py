"""What every part of the resource shares: reading as the API server reads, and the types of bounded fields.

Types are strict, because the API server refuses `"4"` for 4. As it does too, a null counts as an absent field and
4.0 as the integer 4; a null inside a list is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from evenflow_operator.api.names import MAX_CLASS_NAME, NAME_PATTERN

Item = TypeVar("Item")

PRINTABLE = r"^[!-~]+$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class ApiModel(BaseModel):
    """One object of the resource: frozen, camelCase outside, snake_case inside."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        strict=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_as_the_api_server_does(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: _whole(item) for key, item in value.items() if item is not None}

    def to_dict(self) -> dict[str, Any]:
        """The object as JSON types with every default filled in and absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ApiEnum(StrEnum):
    """A closed set of strings. Read from plain strings although the models are strict."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        return cast(CoreSchema, {**schema, "strict": False})


Items = Annotated[tuple[Item, ...], Strict(False)]
"""A list, kept as a tuple; what stands in it is still read strictly."""


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """A list without duplicates: by the field `key` of its items (a list map) or, without a key, by value (a set)."""

    key: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check(), handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler(schema)
        if self.key is None:
            json_schema["x-kubernetes-list-type"] = "set"
        else:
            json_schema["x-kubernetes-list-type"] = "map"
            json_schema["x-kubernetes-list-map-keys"] = [self.key]
        return json_schema

    def _check(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        def unique(items: Sequence[Any]) -> Sequence[Any]:
            seen = set()
            for index, item in enumerate(items):
                value = item if self.key is None else getattr(item, self.key)
                if value in seen:
                    raise PydanticCustomError(
                        "duplicate",
                        "{value} stands in the list twice",
                        {"index": index, "key": self.key or "", "value": value},
                    )
                seen.add(value)
            return items

        return unique


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else value


ClassName = Annotated[str, Field(min_length=1, max_length=MAX_CLASS_NAME, pattern=NAME_PATTERN)]
Printable = Annotated[str, Field(min_length=1, max_length=512, pattern=PRINTABLE)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
Timestamp = Annotated[
    str,
    Field(
        max_length=40,
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$",
    ),
]
"""A point in time, RFC 3339."""
StringMap = Annotated[dict[str, Annotated[str, Field(max_length=1024)]], BeforeValidator(_without_nulls)]
FreeObject = dict[str, Any]
"""An object whose fields another API defines (parts of a PodTemplateSpec)."""
