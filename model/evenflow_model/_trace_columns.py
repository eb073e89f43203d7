"""Which column of a trace is what, and in which unit its times are: by known names only, or as declared."""

import datetime
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from evenflow_model._trace_files import Row, Table, TraceError

TimeUnit = Literal["s", "ms", "us", "ns", "iso"]
TIME_UNITS: Final[tuple[TimeUnit, ...]] = get_args(TimeUnit)

MAX_TOKENS: Final = 10_000_000

ARRIVAL, PROMPT, OUTPUT, CLASS, HASHES = "arrival_s", "prompt_tokens", "output_tokens", "class", "hash_ids"
FIELDS: Final = (ARRIVAL, PROMPT, OUTPUT, CLASS, HASHES)

_SECONDS: Final[dict[TimeUnit, float]] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SUFFIXES: Final[dict[str, TimeUnit]] = {
    **dict.fromkeys(("s", "sec", "secs", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanoseconds"), "ns"),
}
_TIMES: Final = (
    "arrival", "arrivals", "arrivaltime", "arrivaltimestamp", "arrivedat", "timestamp", "time", "ts",
    "requesttime", "requesttimestamp", "sendtime", "starttime", "reqtime",
)  # fmt: skip
_NAMES: Final[dict[str, frozenset[str]]] = {
    ARRIVAL: frozenset({*_TIMES, *(base + suffix for base in _TIMES for suffix in _SUFFIXES)}),
    PROMPT: frozenset((
        "prompttokens", "promptlength", "promptlen", "numprompttokens", "inputtokens", "inputlength", "inputlen",
        "numinputtokens", "isl", "contexttokens", "contextlength", "requesttokens", "prefilltokens",
        "numprefilltokens",
    )),
    OUTPUT: frozenset((
        "outputtokens", "outputlength", "outputlen", "numoutputtokens", "osl", "generatedtokens", "generationtokens",
        "completiontokens", "completionlength", "responsetokens", "responselength", "decodetokens", "numdecodetokens",
    )),
    CLASS: frozenset({"class", "trafficclass", "xtrafficclass"}),
    HASHES: frozenset({"hashids"}),
}  # fmt: skip
_KNOWN_FORMATS: Final[tuple[tuple[frozenset[str], TimeUnit, str], ...]] = (
    (frozenset({"timestamp", "inputlength", "outputlength", "hashids"}), "ms", "Mooncake's format"),
    (frozenset({"arrivedat", "numprefilltokens", "numdecodetokens"}), "s", "Vidur's format"),
    (frozenset({"timestamp", "requesttokens", "responsetokens"}), "s", "BurstGPT's format"),
)
_EPOCH: Final = (9e8, 5e9)
"""Seconds since 1970 that a trace may come from: 1998 to 2128."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Header names by field; `notes` say what was concluded from what."""

    names: Mapping[str, str]
    notes: tuple[str, ...]


def find_columns(table: Table, declared: Mapping[str, str], required: tuple[str, ...]) -> Columns:
    """The columns of a table. Raises TraceError where one is missing, unknown or not unmistakable."""
    where = f"{table.name}:1"
    for field, name in declared.items():
        if field not in FIELDS:
            raise TraceError(f"{where}: {field!r} is no field; columns can be declared for {', '.join(FIELDS)}")
        if name not in table.header:
            raise TraceError(f"{where}: column {name!r} is missing; the header has {_listed(table.header)}")
    names: dict[str, str] = dict(declared)
    notes = []
    for field in FIELDS:
        if field in names or field in table.header:
            names.setdefault(field, field)
            continue
        found = [name for name in table.header if _plain(name) in _NAMES[field] and name not in names.values()]
        if len(found) > 1:
            raise TraceError(f"{where}: {field} may be {' or '.join(map(repr, found))}; declare which column it is")
        if found:
            names[field] = found[0]
            notes.append(f"{field} is column {found[0]!r}")
        elif field in required:
            raise TraceError(
                f"{where}: column {field!r} is missing; needed are {', '.join(required)}; "
                f"the header has {_listed(table.header)}: rename a column or declare which it is"
            )
    return Columns(names, tuple(notes))


def seconds_reader(
    table: Table, column: str, declared: TimeUnit | None, first: Any, last: Any
) -> tuple[Callable[[Row], float], bool, str]:
    """How to read the arrival column as seconds; whether they count from an epoch, and what was concluded.

    `first` and `last` are values of the column, by which times since 1970 are recognised. Raises TraceError where
    the unit is neither declared nor unmistakable.
    """
    unit = declared
    note = ""
    if unit is None:
        unit, note = _unit_of(table, column, first, last)
    if unit == "iso":
        return lambda row: _iso_seconds(row.fields.get(column), column, row.where), True, note
    factor = _SECONDS[unit]
    epoch = _is_epoch(first, factor) and _is_epoch(last, factor)
    return lambda row: factor * _time_number(row.fields.get(column), column, row.where), epoch, note


def tokens(value: Any, column: str, where: str, minimum: int) -> int:
    """A count of tokens from text or JSON: 374, "374" or 374.0. Raises TraceError for anything else."""
    number = _number(value)
    if number is None or not number.is_integer() or not minimum <= number <= MAX_TOKENS:
        raise TraceError(
            f"{where}: {column} is {_shown(value)}; it must be a whole number from {minimum} to {MAX_TOKENS}"
        )
    return int(number)


def is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def hash_ids(value: Any, column: str, where: str) -> tuple[int, ...]:
    """Block ids from a JSON list, or from text with blanks or commas between them. Raises TraceError."""
    parts = re.findall(r"[^\s,\[\]]+", value) if isinstance(value, str) else value
    if is_blank(value):
        return ()
    try:
        if not isinstance(parts, list) or any(isinstance(part, bool | float) for part in parts):
            raise ValueError
        return tuple([int(part) for part in parts])
    except (TypeError, ValueError):
        raise TraceError(f"{where}: {column} is {_shown(value)}; it must be a list of whole numbers") from None


def _unit_of(table: Table, column: str, first: Any, last: Any) -> tuple[TimeUnit, str]:
    where = f"{table.name}:1"
    if column == ARRIVAL:
        return "s", ""
    *_, last_word = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column) or [""]
    if _plain(column) != last_word.lower() in _SUFFIXES:
        unit = _SUFFIXES[last_word.lower()]
        return unit, f"{column!r} is in {unit}, by its name"
    if _number(first) is None:
        if not isinstance(first, str) or _parsed_iso(first) is None:
            raise TraceError(f"{where}: {column} is {_shown(first)} in the first row; no number and no ISO time")
        return "iso", f"{column!r} has ISO times; without a zone they count as UTC"
    header = {_plain(name) for name in table.header}
    for needed, unit, name in _KNOWN_FORMATS:
        if needed <= header:
            return unit, f"{column!r} is in {unit}, as in {name}"
    for unit, factor in _SECONDS.items():
        if _is_epoch(first, factor) and _is_epoch(last, factor):
            return unit, f"{column!r} has {unit} since 1970"
    raise TraceError(f"{where}: {column!r} has numbers without a unit; declare the time unit: s, ms, us or ns")


def _is_epoch(value: Any, factor: float) -> bool:
    number = _number(value)
    return number is not None and _EPOCH[0] <= number * factor <= _EPOCH[1]


def _time_number(value: Any, column: str, where: str) -> float:
    number = _number(value)
    if number is None or number < 0:
        raise TraceError(f"{where}: {column} is {_shown(value)}; it must be a number from 0 up")
    return number


def _iso_seconds(value: Any, column: str, where: str) -> float:
    moment = _parsed_iso(value) if isinstance(value, str) else None
    if moment is None:
        raise TraceError(f"{where}: {column} is {_shown(value)}; it must be an ISO time like 2023-11-16 18:15:46.68")
    return moment.timestamp()


def _parsed_iso(text: str) -> datetime.datetime | None:
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(header: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in header[:20]) or "no columns"
