"""Options about trace files that several commands take."""

from collections.abc import Sequence
from pathlib import Path

from evenflow_model.traces import TIME_UNITS, TimeUnit


def trace_file(text: str) -> tuple[str | None, Path]:
    """The class and the file of `[CLASS=]FILE`; the class is None where none is given."""
    name, given, path = text.partition("=")
    if given and not Path(text).exists():
        return name, Path(path)
    return None, Path(text)


def columns_of(texts: Sequence[str]) -> dict[str, str]:
    """Headers by field, of `FIELD=HEADER`s. Raises ValueError."""
    columns = {}
    for text in texts:
        field, given, name = text.partition("=")
        if not given or not name:
            raise ValueError(f"--column: found {text!r}; write FIELD=HEADER, such as output_tokens=generated")
        columns[field] = name
    return columns


def time_unit_of(text: str | None) -> TimeUnit | None:
    """A time unit by its name, None for None. Raises ValueError."""
    if text is not None and text not in TIME_UNITS:
        raise ValueError(f"--time-unit: found {text!r}; choose {', '.join(TIME_UNITS)}")
    return text
