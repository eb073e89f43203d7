"""Argument checks that name the argument, what was found and the remedy."""

import math
from numbers import Integral, Real


def check_int(name: str, value: object, minimum: int, maximum: int | None = None) -> int:
    """Return value as int; ValueError unless it is an integer within the bounds."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer, found {value!r}: round it, or use the function for predictions")
    found = int(value)
    if found < minimum:
        raise ValueError(f"{name} must be at least {minimum}, found {found}: pass a larger value")
    if maximum is not None and found > maximum:
        raise ValueError(f"{name} must be at most {maximum}, found {found}: pass a smaller value")
    return found


def check_real(
    name: str, value: object, minimum: float, maximum: float = math.inf, *, exclusive: bool = False
) -> float:
    """Return value as float; ValueError unless finite, at least (exclusive: above) minimum and at most maximum."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, found {value!r}: pass an int or a float")
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{name} must be finite, found {found}: hold the last good value instead")
    if found < minimum or (exclusive and found == minimum):
        bound = "above" if exclusive else "at least"
        raise ValueError(f"{name} must be {bound} {minimum:g}, found {found:g}: pass a larger value")
    if found > maximum:
        raise ValueError(f"{name} must be at most {maximum:g}, found {found:g}: check its unit")
    return found
