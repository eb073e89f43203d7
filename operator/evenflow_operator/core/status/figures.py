"""Measured figures as the status shows them: two digits, so that noise writes nothing."""

import math

from evenflow_operator.api.names import MAX_MICRO, MICRO
from evenflow_operator.api.status import MAX_PERCENT


def two_digits(value: float | None) -> float | None:
    """The value rounded to two significant digits; None when it is unknown or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.2g}")


def whole(value: float | None) -> int | None:
    rounded = two_digits(value)
    return None if rounded is None else round(rounded)


def micro(value: float | None) -> int | None:
    rounded = two_digits(value)
    return None if rounded is None else min(MAX_MICRO, round(rounded * MICRO))


def decimal(millionths: int | None) -> str | None:
    """`0.013` for 13,000 millionths."""
    if millionths is None:
        return None
    whole_part, rest = divmod(millionths, MICRO)
    return f"{whole_part}.{rest:06d}".rstrip("0").rstrip(".")


def exact_micro(value: float | None) -> int | None:
    return None if value is None else min(MAX_MICRO, round(value * MICRO))


def percent(share: float | None) -> int | None:
    shown = whole(None if share is None else 100 * share)
    return None if shown is None else min(shown, MAX_PERCENT)
