"""Request traces: reading the shipped files and cutting what a replay needs out of them."""

import csv
import gzip
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
_MAX_TOKENS = 10_000_000
_MAX_ROWS = 10_000_000


class TraceError(ValueError):
    """A trace file that can't be used; the message names file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: when it arrives (s from the start of its trace), and its lengths in tokens."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    traffic_class: str = "default"

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """Read a `.csv` or `.csv.gz` with at least arrival_s, prompt_tokens and output_tokens, sorted by arrival.

    Rows of equal arrival keep their order. Raises TraceError, and OSError when the file can't be read.
    """
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            return tuple(sorted(_rows(path, csv.reader(file)), key=lambda request: request.arrival_s))
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path.name}: not a readable CSV file: {error}") from error


def _rows(path: Path, reader: Iterator[list[str]]) -> Iterator[TraceRequest]:
    header = next(reader, [])
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise TraceError(f"{path.name}:1: column {missing[0]!r} is missing; needed are {', '.join(_COLUMNS)}")
    places = [header.index(name) for name in _COLUMNS]
    for number, row in enumerate(reader, start=2):
        if not row:
            continue
        if number > _MAX_ROWS:
            raise TraceError(f"{path.name}:{number}: more than {_MAX_ROWS} rows; cut the file")
        where = f"{path.name}:{number}"
        try:
            arrival, prompt, output = (row[place] for place in places)
        except IndexError:
            raise TraceError(f"{where}: {len(row)} fields, the header has {len(header)}") from None
        yield TraceRequest(
            _seconds(arrival, where), _tokens(prompt, "prompt_tokens", where), _tokens(output, "output_tokens", where)
        )


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(f"{where}: arrival_s is {text!r}; it must be a number of seconds from 0 up")
    return value


def _tokens(text: str, column: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= _MAX_TOKENS:
        raise TraceError(f"{where}: {column} is {text!r}; it must be a whole number from 1 to {_MAX_TOKENS}")
    return int(text)


def take_slice(
    requests: Iterable[TraceRequest], *, seconds: float | None = None, max_total_tokens: int | None = None
) -> tuple[TraceRequest, ...]:
    """Those that arrive in the first `seconds` of the trace and have at most `max_total_tokens`, prompt and output."""
    return tuple(
        request
        for request in requests
        if (seconds is None or request.arrival_s < seconds)
        and (max_total_tokens is None or request.total_tokens <= max_total_tokens)
    )


def scale_rate(requests: Iterable[TraceRequest], factor: float) -> tuple[TraceRequest, ...]:
    """The same requests, arriving `factor` times as fast."""
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"factor is {factor}; it must be a positive number")
    return tuple(replace(request, arrival_s=request.arrival_s / factor) for request in requests)


def merge_traces(*traces: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Several traces, each sorted by arrival, as one; at equal arrivals the earlier argument comes first."""
    return tuple(heapq.merge(*traces, key=lambda request: request.arrival_s))
