"""`evenflow plan`: what to do about a pool before touching a cluster, and why."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from evenflow_cli.planning.advice import advice_of
from evenflow_cli.planning.document import document_of
from evenflow_cli.planning.hardware import kv_memory
from evenflow_cli.planning.plan import PoolPlan, plan_of
from evenflow_cli.planning.subject import subject_of
from evenflow_cli.planning.table import print_plan
from evenflow_cli.pool_file import PoolFileError, read_pool_file
from evenflow_cli.simulation.loads import TraceOptions, load_traces
from evenflow_cli.trace_options import columns_of, time_unit_of, trace_file

EXIT_UNUSABLE = 2


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options, as given."""

    pool_file: Path
    traces: tuple[str, ...] = ()
    kv_tokens: int | None = None
    columns: tuple[str, ...] = ()
    time_unit: str | None = None
    output: str = "table"


def plan_command(options: Options) -> int:
    """Returns the exit status: 0, or 2 with the reason on standard error."""
    try:
        if options.output == "png" and sys.stdout.isatty():
            raise ValueError("--output png writes an image to standard output: redirect it to a file")
        plan = _plan(options)
        advice = advice_of(plan)
    except PoolFileError as error:
        print(error, file=sys.stderr)
        return EXIT_UNUSABLE
    except OSError as error:
        print(f"evenflow plan: {error.filename}: can't be read ({error.strerror}); name a file", file=sys.stderr)
        return EXIT_UNUSABLE
    except ValueError as error:
        print(f"evenflow plan: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    for note in plan.subject.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.output == "json":
        print(json.dumps(document_of(plan, advice), indent=2))
    elif options.output == "png":
        return _draw(plan)
    else:
        print_plan(plan, advice)
    return 0


def _draw(plan: PoolPlan) -> int:
    from evenflow_cli.planning.picture import picture

    try:
        image = picture(plan)
    except ModuleNotFoundError as error:
        print(f"evenflow: {error.name} is not installed; run: pip install 'evenflow[plot]'", file=sys.stderr)
        return EXIT_UNUSABLE
    sys.stdout.buffer.write(image)
    sys.stdout.buffer.flush()
    return 0


def _plan(options: Options) -> PoolPlan:
    pool = read_pool_file(options.pool_file)
    memory = kv_memory(pool.spec, options.kv_tokens)
    trace, files = None, [trace_file(text) for text in options.traces]
    if files:
        how = TraceOptions(columns=columns_of(options.columns), time_unit=time_unit_of(options.time_unit))
        trace = load_traces(files, pool.spec.traffic_classes, how)
    return plan_of(subject_of(pool, memory, trace, [path.name for _, path in files]))
