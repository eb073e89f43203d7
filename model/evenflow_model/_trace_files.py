"""Rows of a trace file with their line numbers: CSV or JSON lines, gzipped or not, whatever wrote them."""

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

MAX_ROWS: Final = 10_000_000
MAX_LINE_CHARACTERS: Final = 4_000_000

_GZIP_MAGIC = b"\x1f\x8b"
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


class TraceError(ValueError):
    """A trace file that can't be used; the message names file, line, what was found and the remedy."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record: its fields by header name, as text (CSV) or JSON values. `where` is `file:line`."""

    where: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Header names in the file's order, and its rows, read as they are iterated over. JSON rows may have more."""

    name: str
    header: tuple[str, ...]
    rows: Iterator[Row]


@contextmanager
def read_table(path: Path) -> Iterator[Table]:
    """The table of a file, which stays open for its rows. Raises TraceError, or OSError when it can't be opened."""
    try:
        with path.open("rb") as raw, _text(raw) as file:
            yield _table(path, file)
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeError, csv.Error) as error:
        raise TraceError(f"{path.name}: not readable as CSV or JSON lines: {error}") from error


def _text(raw: BinaryIO) -> TextIO:
    packed = raw.read(2) == _GZIP_MAGIC
    raw.seek(0)
    data: Any = gzip.GzipFile(fileobj=raw) if packed else raw
    utf16 = data.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    data.seek(0)
    return io.TextIOWrapper(data, encoding="utf-16" if utf16 else "utf-8-sig", newline="")


def _table(path: Path, file: TextIO) -> Table:
    lines = _Lines(path.name, file)
    first = next((line for line in lines if line.strip()), "")
    lines.back(first)
    names = [suffix.lower() for suffix in path.suffixes]
    if any(suffix in _JSON_SUFFIXES for suffix in names) or first.lstrip().startswith("{"):
        return _json_table(path.name, lines)
    return _csv_table(path.name, lines, first)


class _Lines:
    """Lines of bounded length; `number` is that of the last one handed out."""

    def __init__(self, name: str, file: TextIO) -> None:
        self._name = name
        self._file = file
        self._again: str | None = None
        self.number = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line, self._again = self._again, None
        if line is None:
            line = self._file.readline(MAX_LINE_CHARACTERS)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) == MAX_LINE_CHARACTERS:
            raise TraceError(f"{self._name}:{self.number}: longer than {MAX_LINE_CHARACTERS} characters; not a trace?")
        return line

    def back(self, line: str) -> None:
        """The next one will be this line again."""
        if line:
            self._again = line
            self.number -= 1


def _csv_table(name: str, lines: _Lines, first: str) -> Table:
    # Only what a header can't contain by accident decides: no comma, but another separator.
    delimiter = next((mark for mark in ("\t", ";") if mark in first and "," not in first), ",")
    reader = csv.reader(lines, delimiter=delimiter)
    header = tuple(cell.strip() for cell in next(reader, []))
    return Table(name, header, _csv_rows(name, header, reader, lines))


def _csv_rows(name: str, header: tuple[str, ...], reader: Iterator[list[str]], lines: _Lines) -> Iterator[Row]:
    begins = lines.number + 1
    for count, cells in enumerate(reader, start=1):
        where, begins = f"{name}:{begins}", lines.number + 1
        if count > MAX_ROWS:
            raise TraceError(f"{where}: more than {MAX_ROWS} rows; cut the file")
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise TraceError(f"{where}: {len(cells)} fields, the header has {len(header)}")
        yield Row(where, dict(zip(header, cells, strict=True)))


def _json_table(name: str, lines: _Lines) -> Table:
    first = next((_json_row(name, lines.number, line) for line in lines if line.strip()), None)
    header = () if first is None else tuple(first.fields)
    return Table(name, header, _json_rows(name, first, lines))


def _json_rows(name: str, first: Row | None, lines: _Lines) -> Iterator[Row]:
    if first is None:
        return
    yield first
    for count, line in enumerate(lines, start=2):
        if count > MAX_ROWS:
            raise TraceError(f"{name}:{lines.number}: more than {MAX_ROWS} rows; cut the file")
        if line.strip():
            yield _json_row(name, lines.number, line)


def _json_row(name: str, number: int, line: str) -> Row:
    where = f"{name}:{number}"
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not a JSON object on a line of its own: {error}") from None
    if not isinstance(fields, dict):
        raise TraceError(f"{where}: found {line.strip()[:40]!r}; expected one JSON object per line")
    return Row(where, fields)
