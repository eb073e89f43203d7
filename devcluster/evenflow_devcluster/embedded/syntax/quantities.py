"""Quantities (`500m`, `16Gi`): their value, and the canonical form in which Kubernetes stores them."""

import re
from collections.abc import MutableMapping
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Any

from evenflow_devcluster.embedded.errors import bad_request

_DECIMAL = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_FORM = re.compile(r"(?P<number>[+-]?(\d+\.?\d*|\.\d+))(?P<suffix>[EPTGMK]i|[numkMGTPE]|[eE][+-]?\d+)?")
_DIGITS = 60
RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def _parsed(text: object) -> tuple[Decimal, str]:
    found = _FORM.fullmatch(str(text))
    if found is None or isinstance(text, bool):
        raise ValueError(f"{text!r}: {RULE}")
    number, suffix = Decimal(found["number"]), found["suffix"] or ""
    if suffix in _BINARY:
        return number * _BINARY[suffix], suffix
    if suffix in _DECIMAL:
        return number * _DECIMAL[suffix], suffix
    return number.scaleb(int(suffix[1:])), suffix


def quantity(text: object) -> float:
    """The value of a quantity. Raises ValueError for anything else."""
    return float(_parsed(text)[0])


def canonical(text: object) -> str:
    """The same quantity with no fraction and the largest suffix that allows it. Raises ValueError."""
    with localcontext(prec=_DIGITS):
        return _canonical(text)


def canonize(amounts: MutableMapping[str, Any], kind: str) -> None:
    """Bring a resource list into canonical form, in place. Raises 400 naming the resource and the value."""
    for name, amount in amounts.items():
        try:
            amounts[name] = canonical(amount)
        except ValueError as error:
            raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {name}: {error}') from None


def _canonical(text: object) -> str:
    value, suffix = _parsed(text)
    if suffix[:1] in ("e", "E") and suffix not in _DECIMAL and suffix not in _BINARY:
        return str(text)
    if suffix in _BINARY and abs(value) >= 1:
        value = value.to_integral_value(ROUND_CEILING)
        steps = {"": Decimal(1), **{name: Decimal(step) for name, step in _BINARY.items()}}
    else:
        value = value.quantize(_DECIMAL["n"], ROUND_CEILING)
        steps = _DECIMAL
    if not value:
        return "0"
    name, step = next((name, step) for name, step in reversed(steps.items()) if not value % step)
    return f"{int(value / step)}{name}"
