"""One pool out of a manifest file, for the commands that work on a pool without a cluster."""

from collections.abc import Mapping
from pathlib import Path

from evenflow_cli.lint import Unreadable, documents_of, lint_pool, read_text
from evenflow_operator.api.names import KIND
from evenflow_operator.api.pool import LLMServingPool


class PoolFileError(ValueError):
    """A file without one usable pool; a line for each fault, with field and remedy."""


def read_pool_file(file: Path) -> LLMServingPool:
    """The one LLMServingPool in a YAML file (`-`: standard input); other kinds are ignored. Raises PoolFileError."""
    name = "<stdin>" if str(file) == "-" else str(file)
    try:
        documents = [one for one in documents_of(read_text(file)) if isinstance(one, Mapping)]
    except Unreadable as error:
        raise PoolFileError(f"{name}:{error.where or '(document)'}: {error}") from None
    pools = [one for one in documents if one.get("kind") == KIND]
    if len(pools) != 1:
        raise PoolFileError(f"{name}: found {len(pools)} {KIND}s; give a file with exactly one")
    faults = lint_pool(pools[0])
    if faults:
        raise PoolFileError("\n".join(f"{name}:{fault.path}: {fault.message}" for fault in faults))
    return LLMServingPool.parse(pools[0])
