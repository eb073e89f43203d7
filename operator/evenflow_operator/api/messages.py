"""Faults that pydantic finds, in the user's words: the path, what was found, what to write instead."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from evenflow_operator.api.errors import FieldError

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|[smhd]|%|[A-Za-z]+)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def path_text(location: Iterable[int | str]) -> str:
    """`spec.trafficClasses[0].name` from its parts."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, at most 60 characters."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def field_errors(faults: Iterable[ErrorDetails]) -> list[FieldError]:
    """One FieldError for each fault."""
    return [FieldError(path_text(_location(fault)), _message(fault)) for fault in faults]


def duplicate_message(value: Any) -> str:
    return f"found {shown(value)} a second time; rename or remove one of the two"


def unrelated(errors: Iterable[FieldError], known: Sequence[FieldError]) -> list[FieldError]:
    """The errors whose field isn't already known to be at fault, nor a part of it, nor what it is a part of."""
    return [error for error in errors if not any(_overlap(error.path, other.path) for other in known)]


def _overlap(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    return longer.startswith(shorter) and longer[len(shorter) :][:1] in ("", ".", "[")


def _location(fault: ErrorDetails) -> Sequence[int | str]:
    location: list[int | str] = list(fault["loc"])
    if fault["type"] == "duplicate":
        context = fault.get("ctx", {})
        location.append(context["index"])
        if context["key"]:
            location.append(context["key"])
    return location


def _message(fault: ErrorDetails) -> str:
    kind, found, context = fault["type"], fault["input"], fault.get("ctx", {})
    field = next((part for part in reversed(fault["loc"]) if isinstance(part, str)), "")
    match kind:
        case "missing":
            return "nothing found; the field is required"
        case "enum":
            return f"found {shown(found)}; write one of {context['expected']}"
        case "duplicate":
            return duplicate_message(context["value"])
        case "int_type" | "int_from_float":
            return f"found {shown(found)}; {_integer_remedy(field, found)}"
        case "greater_than_equal":
            return f"found {shown(found)}; must be at least {context['ge']}"
        case "less_than_equal":
            return f"found {shown(found)}; must be at most {context['le']}"
        case "string_type":
            return f"found {shown(found)}; write a string (in YAML: in quotes)"
        case "bool_type":
            return f"found {shown(found)}; write true or false"
        case "string_too_short":
            return "found an empty string; write a value or leave the field out"
        case "string_too_long":
            return f"found {len(found)} characters; at most {context['max_length']} are allowed"
        case "string_pattern_mismatch":
            return f"found {shown(found)}; must match {context['pattern']}"
        case "too_long":
            return f"found {context['actual_length']} entries; at most {context['max_length']} are allowed"
        case "too_short":
            return f"found {context['actual_length']} entries; at least {context['min_length']} are needed"
        case "tuple_type":
            return f"found {shown(found)}; write a list"
        case "model_type" | "dict_type":
            return f"found {shown(found)}; write an object"
        case _:
            return f"found {shown(found)}; {fault['msg']}"


def _integer_remedy(field: str, found: Any) -> str:
    """What to write instead of a value with a unit or a fraction."""
    number = _number(field, found)
    example = "" if number is None else f", for example {number}"
    if field.endswith("Percent"):
        return f"write whole percent{example}"
    if field.endswith("Seconds"):
        return f"write whole seconds without a unit{example}"
    if field.endswith("Micro"):
        return f"write whole millionths{example}"
    if field.endswith("Tokens"):
        bytes_remark = " (bytes aren't tokens: vLLM logs its GPU KV cache size in tokens)"
        return f"write a whole number of tokens{example}{bytes_remark if number is None else ''}"
    return f"write a whole number{example}"


def _number(field: str, found: Any) -> int | None:
    if isinstance(found, float) and found == found and abs(found) < 1e12:
        if field.endswith("Percent") and 0 < found < 1:
            return round(found * 100)
        return max(round(found * 1_000_000) if field.endswith("Micro") else round(found), 1)
    match = _QUANTITY.fullmatch(found.strip()) if isinstance(found, str) and len(found) <= 24 else None
    if match is None:
        return None
    value, unit = float(match[1]), match[2] or ""
    if field.endswith("Seconds"):
        return round(value * _SECONDS[unit]) if unit in _SECONDS else None
    if field.endswith("Percent"):
        return (round(value * 100) if 0 < value < 1 else round(value)) if unit in ("", "%") else None
    return int(value) if unit == "" and value.is_integer() else None
