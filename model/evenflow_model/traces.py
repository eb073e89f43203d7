"""Request traces: reading files as people have them, and cutting what a replay or a simulation needs out of them.

CSV (comma, semicolon or tab) or JSON lines, gzipped or not, columns by name in any order. Column names and time units
are known, declared or refused; what was concluded is said in the trace's notes.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evenflow_model import _trace_columns as columns_of
from evenflow_model._trace_columns import ARRIVAL, CLASS, HASHES, OUTPUT, PROMPT, TIME_UNITS, TimeUnit
from evenflow_model._trace_files import Row, Table, TraceError, read_table

__all__ = [
    "DEFAULT_CLASS",
    "HASH_BLOCK_TOKENS",
    "TIME_UNITS",
    "Lengths",
    "TimeUnit",
    "Trace",
    "TraceError",
    "TraceRequest",
    "merge_traces",
    "read_lengths",
    "read_trace",
    "scale_rate",
    "take_slice",
    "without_known_prefixes",
]

DEFAULT_CLASS = "default"
"""Of requests that name none."""

HASH_BLOCK_TOKENS = 512
"""Prompt tokens per entry of hash_ids, in Mooncake's traces."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: when it arrives (s from the start of its trace), and its lengths in tokens.

    `hash_ids` name the prompt's blocks of 512 tokens; equal ids mean equal content up to and including that block.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    traffic_class: str = DEFAULT_CLASS
    hash_ids: tuple[int, ...] = ()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by arrival; those of equal arrival keep the file's order.

    `notes` say, in one line each, what was concluded or changed: column names, units, empty outputs.
    """

    requests: tuple[TraceRequest, ...]
    has_classes: bool
    has_hashes: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lengths:
    """(prompt, output) lengths in tokens, in the file's order."""

    rows: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def read_trace(path: Path, *, columns: Mapping[str, str] | None = None, time_unit: TimeUnit | None = None) -> Trace:
    """Read a trace: arrival, prompt and output tokens, optionally a class and hash ids.

    `columns` declares which column a field is (arrival_s, prompt_tokens, output_tokens, class, hash_ids), `time_unit`
    how arrivals are written. Times since 1970 and ISO times count from the earliest request. An output of 0 tokens
    becomes 1, since a prefill yields one; a note says how many. Raises TraceError naming the line of the first row
    that can't be used, and OSError when the file can't be read.
    """
    with read_table(path) as table:
        found = columns_of.find_columns(table, columns or {}, (ARRIVAL, PROMPT, OUTPUT))
        return _trace(table, found, time_unit)


def _trace(table: Table, found: columns_of.Columns, time_unit: TimeUnit | None) -> Trace:
    names, notes = found.names, list(found.notes)
    rows = list(table.rows)
    if not rows:
        return Trace((), CLASS in names, HASHES in names, (*notes, "the trace has no requests"))
    column = names[ARRIVAL]
    first, last = rows[0].fields.get(column), rows[-1].fields.get(column)
    seconds, from_epoch, note = columns_of.seconds_reader(table, column, time_unit, first, last)
    notes += [note] if note else []
    requests = [_request(row, names, seconds(row)) for row in rows]
    empty = [row.where for row, request in zip(rows, requests, strict=True) if request.output_tokens == 0]
    if empty:
        notes.append(f"requests without output: {len(empty)}, the first at {empty[0]}; each counts as 1 output token")
        requests = [request if request.output_tokens else replace(request, output_tokens=1) for request in requests]
    start = min(request.arrival_s for request in requests) if from_epoch else 0.0
    if from_epoch:
        requests = [replace(request, arrival_s=request.arrival_s - start) for request in requests]
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    if ordered != requests:
        notes.append("arrivals were not in order; they are sorted now")
    return Trace(tuple(ordered), CLASS in names, HASHES in names, tuple(notes))


def _request(row: Row, names: Mapping[str, str], arrival_s: float) -> TraceRequest:
    prompt = columns_of.tokens(row.fields.get(names[PROMPT]), names[PROMPT], row.where, 1)
    output = columns_of.tokens(row.fields.get(names[OUTPUT]), names[OUTPUT], row.where, 0)
    hashes: tuple[int, ...] = ()
    if HASHES in names:
        hashes = columns_of.hash_ids(row.fields.get(names[HASHES]), names[HASHES], row.where)
        if len(set(hashes)) < len(hashes):
            raise TraceError(f"{row.where}: {names[HASHES]} has an id twice; each must name the prompt up to its block")
        if hashes and len(hashes) not in (prompt // HASH_BLOCK_TOKENS, -(-prompt // HASH_BLOCK_TOKENS)):
            raise TraceError(
                f"{row.where}: {names[HASHES]} has {len(hashes)} ids for a prompt of {prompt} tokens; "
                f"it must have one for every {HASH_BLOCK_TOKENS} tokens"
            )
    return TraceRequest(arrival_s, prompt, output, _class(row, names), hashes)


def _class(row: Row, names: Mapping[str, str]) -> str:
    value: Any = row.fields.get(names[CLASS]) if CLASS in names else None
    if columns_of.is_blank(value):
        return DEFAULT_CLASS
    if not isinstance(value, str) or len(value) > 100:
        raise TraceError(f"{row.where}: {names[CLASS]} is {str(value)[:60]!r}; it must be a name of a traffic class")
    return value.strip()


def read_lengths(path: Path, *, columns: Mapping[str, str] | None = None) -> Lengths:
    """Read prompt and output lengths alone, from a trace or a file without arrivals.

    Rows whose output is blank are left out, those of 0 tokens count as 1, and notes say how many. Raises TraceError
    and OSError as `read_trace` does.
    """
    with read_table(path) as table:
        found = columns_of.find_columns(table, columns or {}, (PROMPT, OUTPUT))
        prompt, output = found.names[PROMPT], found.names[OUTPUT]
        rows, blank, empty = [], 0, 0
        for row in table.rows:
            if columns_of.is_blank(row.fields.get(output)):
                blank += 1
                continue
            length = columns_of.tokens(row.fields.get(output), output, row.where, 0)
            empty += length == 0
            rows.append((columns_of.tokens(row.fields.get(prompt), prompt, row.where, 1), max(length, 1)))
        notes = list(found.notes)
        notes += [f"{blank} rows without an output length are left out"] if blank else []
        notes += [f"{empty} rows without output count as 1 output token"] if empty else []
        return Lengths(tuple(rows), tuple(notes))


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
    """The same requests, arriving `factor` times as fast. Raises ValueError unless the factor is positive."""
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"factor is {factor}; it must be a positive number")
    return tuple(replace(request, arrival_s=request.arrival_s / factor) for request in requests)


def merge_traces(*traces: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Several traces, each sorted by arrival, as one; at equal arrivals the earlier argument comes first."""
    return tuple(heapq.merge(*traces, key=lambda request: request.arrival_s))


def without_known_prefixes(requests: Iterable[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Prompts without the leading blocks that an earlier request had: prefix caching at its most idealised.

    What was seen before, by any engine, costs nothing: no memory, no prefill and no attention. One token stays.
    """
    seen: set[int] = set()
    shortened = []
    for request in requests:
        full = request.hash_ids[: request.prompt_tokens // HASH_BLOCK_TOKENS]
        hits = next((number for number, block in enumerate(full) if block not in seen), len(full))
        seen.update(full)
        own = max(request.prompt_tokens - hits * HASH_BLOCK_TOKENS, 1)
        shortened.append(replace(request, prompt_tokens=own, hash_ids=()))
    return tuple(shortened)
