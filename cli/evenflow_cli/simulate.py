"""`evenflow simulate`: the same pool and trace under several policies, side by side."""

import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evenflow_cli.pool_file import PoolFileError, read_pool_file
from evenflow_cli.simulation.loads import LoadedTrace, PrefixCaching, TraceOptions, engine_requests, load_traces
from evenflow_cli.simulation.picture import picture
from evenflow_cli.simulation.policies import Candidate, candidate
from evenflow_cli.simulation.progress import PlainProgress
from evenflow_cli.simulation.runs import Load, Run, engine_spec, simulate_all
from evenflow_cli.trace_options import columns_of, time_unit_of, trace_file
from evenflow_model.fleet.routing import router
from evenflow_model.traces import DEFAULT_CLASS
from evenflow_operator.api.enums import PlacementStrategy, PredictorType
from evenflow_operator.api.pool import LLMServingPool

EXIT_FAILED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options, as given."""

    pool_file: Path
    traces: tuple[str, ...]
    policies: str
    output: str = "table"
    rate_scale: float = 1.0
    seconds: float | None = None
    seed: int = 0
    oracle: bool = False
    prefix_caching: str = "off"
    routing: str = "least-outstanding"
    time_unit: str | None = None
    columns: tuple[str, ...] = ()
    kv_tokens: int | None = None
    jobs: int | None = None


class Unusable(ValueError):
    """Input that can't be simulated: the reason, the field and the remedy."""


def simulate_command(options: Options) -> int:
    """Returns the exit status: 0, or 2 with the reason on standard error."""
    console = Console(stderr=True, highlight=False)
    try:
        if options.output == "png" and sys.stdout.isatty():
            raise Unusable("--output png writes an image to standard output: redirect it to a file")
        candidates = _candidates(options.policies)
        pool = _pool(options)
        trace_options = TraceOptions(
            _within("--rate-scale", options.rate_scale, 0.001, 1000.0),
            None if options.seconds is None else _within("--seconds", options.seconds, 0.001, 1e9),
            columns_of(options.columns),
            time_unit_of(options.time_unit),
        )
        files = [trace_file(text) for text in options.traces]
        trace = load_traces(files, pool.spec.traffic_classes, trace_options)
        _check_placement(pool, trace)
        load = _load(options, pool, trace)
    except (Unusable, PoolFileError, ValueError) as error:
        print(f"evenflow simulate: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except OSError as error:
        print(f"evenflow simulate: {error.filename}: can't be read ({error.strerror})", file=sys.stderr)
        return EXIT_UNUSABLE
    for note in trace.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if pool.spec.scheduling.predictor.type is PredictorType.MODEL and not options.oracle:
        console.print("note: spec.scheduling.predictor: a trace has no prompts for the Model; class means predict")
    try:
        runs = _simulate(load, candidates, options.jobs, console)
    except BrokenProcessPool:
        print("evenflow simulate: a process ended early, likely for want of memory; try --jobs 1", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("evenflow simulate: interrupted, nothing is left running", file=sys.stderr)
        return EXIT_INTERRUPTED
    if runs[0].refused:
        limit = "spec.model.maxModelLen" if _model_binds(pool) else "spec.engine.kvCacheTokens"
        count = runs[0].refused
        words = "request is longer" if count == 1 else "requests are longer"
        refused = f"{count:,} {words} than {limit} allows and {'was' if count == 1 else 'were'} refused"
        console.print(f"note: {refused}", markup=False, soft_wrap=True)
    document = trace.document([path.name for _, path in files], trace_options)
    document["refused"] = runs[0].refused
    if options.output == "json":
        print(json.dumps({"trace": document, "rows": [_row(run) for run in runs]}, indent=2))
    elif options.output == "png":
        sys.stdout.buffer.write(picture(runs, _title(pool, document)))
        sys.stdout.buffer.flush()
    else:
        _print_table(runs, _title(pool, document))
    return 0


def _candidates(text: str) -> list[Candidate]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise Unusable(f"--policies: found {text!r}; name each policy once, separated by commas")
    try:
        return [candidate(name) for name in names]
    except ValueError as error:
        raise Unusable(f"--policies: {error}") from None


def _pool(options: Options) -> LLMServingPool:
    pool = read_pool_file(options.pool_file)
    if pool.spec.replicas < 1:
        raise Unusable("spec.replicas: found 0; a pool without engines serves nothing, set it to at least 1")
    if options.kv_tokens is not None:
        engine = pool.spec.engine.model_copy(update={"kv_cache_tokens": options.kv_tokens})
        pool = pool.model_copy(update={"spec": pool.spec.model_copy(update={"engine": engine})})
    return pool


def _load(options: Options, pool: LLMServingPool, trace: LoadedTrace) -> Load:
    router(options.routing, options.seed)
    caching = cast(PrefixCaching, options.prefix_caching)
    if caching not in get_args(PrefixCaching):
        raise Unusable(f"--prefix-caching: found {caching!r}; choose off, lru or ideal")
    if caching != "off" and not trace.has_hashes:
        raise Unusable(
            "--prefix-caching: the trace has no column hash_ids that names the prompts' blocks; leave it off"
        )
    largest = engine_spec(pool.spec)
    limit = min(largest.max_model_len, largest.kv_tokens // largest.block_size * largest.block_size)
    if all(request.total_tokens > limit for request in trace.requests):
        field = "spec.model.maxModelLen" if _model_binds(pool) else "spec.engine.kvCacheTokens"
        shortest = min(request.total_tokens for request in trace.requests)
        raise Unusable(
            f"{field}: every request of the trace is longer than {limit} tokens; raise it to {shortest} or more"
        )
    requests = engine_requests(trace.requests, oracle=options.oracle, prefix_caching=caching)
    return Load(pool, requests, options.seed, options.routing, prefix_caching=caching == "lru")


def _check_placement(pool: LLMServingPool, trace: LoadedTrace) -> None:
    """Static placement may leave a class that the trace has without a slot; its Service would answer 503."""
    placement = pool.spec.placement
    listed = {entry.slot: entry.classes for entry in placement.static}
    if placement.strategy is not PlacementStrategy.STATIC or not all(n in listed for n in range(pool.spec.replicas)):
        return
    served = {name for slot in range(pool.spec.replicas) for name in listed[slot]} | {DEFAULT_CLASS}
    missing = sorted({request.traffic_class for request in trace.requests} - served)
    if missing:
        raise Unusable(
            f"spec.placement.static: no slot serves {', '.join(missing)}; list it on one, or leave a slot out"
        )


def _model_binds(pool: LLMServingPool) -> bool:
    spec = engine_spec(pool.spec)
    return spec.max_model_len <= spec.kv_tokens


def _within(option: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise Unusable(f"{option}: found {value:g}; it must be a number from {low:g} to {high:g}")
    return value


def _simulate(load: Load, candidates: Sequence[Candidate], jobs: int | None, console: Console) -> list[Run]:
    if not console.is_terminal:
        plain = PlainProgress(
            len(candidates), len(load.requests), lambda line: print(line, file=sys.stderr, flush=True), time.monotonic
        )
        return simulate_all(load, candidates, jobs=jobs, progress=plain.update)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        tasks = [bar.add_task(one.name, total=len(load.requests)) for one in candidates]
        runs = simulate_all(
            load, candidates, jobs=jobs, progress=lambda number, done: bar.update(tasks[number], completed=done)
        )
        for task in tasks:
            bar.update(task, completed=len(load.requests))
    return runs


def _row(run: Run) -> dict[str, Any]:
    figures = {name: _finite(value) for name, value in asdict(run.result).items()}
    return {"name": run.name, **figures}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _title(pool: LLMServingPool, trace: dict[str, Any]) -> str:
    spec = pool.spec
    return (
        f"{', '.join(trace['files'])}: {trace['requests']:,} requests in {trace['seconds']:,.0f} s on {spec.replicas} "
        f"engines ({spec.engine.simulated.step_time_model.value}, {spec.engine.kv_cache_tokens:,} KV tokens, "
        f"{spec.engine.max_num_seqs} sequences, {spec.engine.max_num_batched_tokens} tokens per step)"
    )


def _print_table(runs: Sequence[Run], title: str) -> None:
    caption = (
        "mean to TTFT: seconds; s/tok: latency per output token; rec: recomputed tokens per generated; span: seconds"
    )
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.add_column("policy", overflow="fold")
    for name in ("done", "mean", "p50", "p99", "TTFT", "s/tok", "evicted", "rec", "KV use", "span"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        one = run.result
        table.add_row(
            run.name,
            f"{one.completed:,}",
            *(f"{value:.1f}" for value in (one.mean_latency_s, one.p50_latency_s, one.p99_latency_s, one.mean_ttft_s)),
            f"{one.latency_per_token_s:.2f}",
            f"{one.evictions:,}",
            f"{one.recomputed_per_generated:.3f}",
            f"{one.kv_use_mean:.2f}",
            f"{one.makespan_s:,.0f}",
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 130).print(table)
