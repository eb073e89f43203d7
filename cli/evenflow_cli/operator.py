"""`evenflow operator`."""

from collections.abc import Sequence


def operator_command(arguments: Sequence[str]) -> int:
    """Run the operator until it is told to stop; returns the exit status."""
    from evenflow_operator.main import main

    return main(arguments)
