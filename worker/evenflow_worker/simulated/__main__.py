"""`python -m evenflow_worker.simulated`: what pods run; the same as `evenflow engine`."""

import asyncio
import logging
import sys
from collections.abc import Sequence

from evenflow_worker.simulated.app import serve
from evenflow_worker.simulated.options import parse_options


def main(arguments: Sequence[str], prog: str = "python -m evenflow_worker.simulated") -> int:
    """Parse, serve, and return the exit status; a wrong option raises SystemExit(2)."""
    options = parse_options(arguments, prog=prog)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
