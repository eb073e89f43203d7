"""`evenflow demo`."""

import argparse
import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from evenflow_devcluster import demo as package
from evenflow_devcluster.demo.children import ChildError
from evenflow_devcluster.demo.picture import PhaseSeries, draw
from evenflow_devcluster.demo.pool_watch import PoolTimeout
from evenflow_devcluster.demo.report import DemoReport
from evenflow_devcluster.demo.scenarios import SCENARIOS, Scenario
from evenflow_devcluster.demo.session import run
from evenflow_devcluster.demo.view import print_result

EXIT_NOT_TRUSTED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


def demo_command(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    progress = Console(stderr=True)
    examples = package.examples_folder()
    try:
        scenario: Scenario = SCENARIOS[options.scenario](examples, quick=options.quick)
    except (OSError, ValueError) as error:
        progress.print(f"evenflow demo: {error}", style="red")
        return EXIT_UNUSABLE
    if options.time_scale:
        scenario = replace(scenario, time_scale=options.time_scale)
    for name in ("report", "picture"):
        if problem := unwritable(getattr(options, name)):
            progress.print(f"evenflow demo: --{name}: {problem}", style="red", highlight=False)
            return EXIT_UNUSABLE
    try:
        report, series = asyncio.run(_interruptible(scenario, progress))
    except (KeyboardInterrupt, asyncio.CancelledError):
        progress.print("Interrupted: everything that the demo started has been stopped.")
        return EXIT_INTERRUPTED
    except (ChildError, PoolTimeout) as error:
        progress.print(f"evenflow demo: {error}", style="red", highlight=False)
        return EXIT_NOT_TRUSTED
    picture = Path(options.picture)
    draw(series, scenario.title, picture)
    document = report.document()
    if options.report:
        target = Path(options.report)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(document, indent=2) + "\n")
    if options.output == "json":
        json.dump(document, sys.stdout, indent=2)
        print()
    else:
        print_result(Console(width=None if sys.stdout.isatty() else 100), report, picture=str(picture))
    return 0 if report.ok else EXIT_NOT_TRUSTED


def unwritable(file: str | None) -> str | None:
    """Why a file could not be written: asked before the replay rather than after it, and nothing is made yet."""
    if file is None:
        return None
    path = Path(file).absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    if existing == path and path.is_dir():
        return f"{file} is a folder; name a file in it"
    if existing != path and not existing.is_dir():
        return f"{existing} is no folder; name a file that can be written"
    return None if os.access(existing, os.W_OK) else f"{existing} can't be written; name another file"


async def _interruptible(scenario: Scenario, console: Console) -> tuple[DemoReport, list[PhaseSeries]]:
    """SIGTERM ends the demo as cleanly as Ctrl-C does (asyncio turns SIGINT into a cancellation itself)."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(scenario, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evenflow demo",
        description="Replay a production trace against a pool on this computer, before and after Evenflow.",
    )
    parser.add_argument(
        "--scenario", choices=sorted(SCENARIOS), default="mooncake", help="what to send (default: mooncake)"
    )
    parser.add_argument("--quick", action="store_true", help="half the trace, only before and after: about a minute")
    parser.add_argument("--time-scale", type=_time_scale, help="engine seconds per second; lower it on a busy computer")
    parser.add_argument("--report", metavar="FILE", help="write the figures as JSON to FILE as well")
    parser.add_argument(
        "--picture", metavar="FILE", default="demo-out/demo.png", help="where the picture goes (%(default)s)"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="what to print")
    return parser


def _time_scale(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from 1 to 100")
    return value
