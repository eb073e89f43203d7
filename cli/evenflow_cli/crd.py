"""`evenflow crd`: the CustomResourceDefinition on standard output."""

import sys

from evenflow_operator.api.crd import crd_text


def crd_command() -> int:
    """Print the CRD, byte for byte the committed file. Returns the exit status."""
    sys.stdout.buffer.write(crd_text().encode())
    sys.stdout.buffer.flush()
    return 0
