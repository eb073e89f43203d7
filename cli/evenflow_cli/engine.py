"""`evenflow engine`."""

from collections.abc import Sequence

from evenflow_worker.simulated.__main__ import main


def engine_command(arguments: Sequence[str]) -> int:
    """Start one simulated engine in the foreground; returns its exit status."""
    return main(arguments, prog="evenflow engine")
