"""The one console command. Every command imports what it needs when it runs, so that `--help` stays instant and a
missing extra breaks only the commands that need it."""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

app = typer.Typer(
    name="evenflow",
    help="Keeps a fleet of LLM servers flowing evenly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cluster_app = typer.Typer(
    help="A Kubernetes cluster on this computer: no container engine, no GPU.", no_args_is_help=True
)
app.add_typer(cluster_app, name="cluster")
worker_app = typer.Typer(help="The worker that runs inside vLLM.", no_args_is_help=True)
app.add_typer(worker_app, name="worker")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evenflow {importlib.metadata.version('evenflow')}")
        raise typer.Exit()


@app.callback()
def evenflow(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps a fleet of LLM servers flowing evenly."""


PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


class PictureOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    PNG = "png"


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Reads a choice; typer's own reading of one words its refusal as pydantic's error."""

    def read(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"found {text!r}; choose {', '.join(kind)}") from None

    return read


OutputOption = Annotated[
    Output,
    typer.Option(
        "--output", "-o", help="What to print on standard output.", parser=_one_of(Output), metavar="[table|json]"
    ),
]
PictureOutputOption = Annotated[
    PictureOutput,
    typer.Option(
        "--output",
        "-o",
        help="What to print on standard output; png is an image.",
        parser=_one_of(PictureOutput),
        metavar="[table|json|png]",
    ),
]
ClusterName = Annotated[str, typer.Option("--name", help="Which cluster.", metavar="NAME")]


def _command(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(f"evenflow_cli.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("evenflow"):
            raise
        typer.echo(f"evenflow: {error.name} is not installed; run: pip install 'evenflow[{extra}]'", err=True)
        raise typer.Exit(2) from None


@app.command()
def lint(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="YAML with LLMServingPools, or a folder of such; - reads standard input.",
            allow_dash=True,
        ),
    ],
    output: OutputOption = Output.TABLE,
) -> None:
    """Check pool manifests: one line per mistake, with the field and the remedy. Exit status 1 if there is one."""
    raise typer.Exit(_command("lint", "operator").lint_command(files, output.value))


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition, byte for byte the file that is shipped in crds/."""
    raise typer.Exit(_command("crd", "operator").crd_command())


@app.command()
def plan(
    file: Annotated[Path, typer.Option("--file", "-f", help="YAML with one LLMServingPool; - reads standard input.")],
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="[CLASS=]FILE", help="CSV or JSON lines, gzipped or not; may be repeated to merge files."),
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Usable KV tokens of one replica, instead of spec.engine.kvCacheTokens.")
    ] = None,
    time_unit: Annotated[str | None, typer.Option(help="Of the trace's arrivals: s, ms, us, ns or iso.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=HEADER", help="Which column is arrival_s, prompt_tokens, …")
    ] = None,
    output: PictureOutputOption = PictureOutput.TABLE,
) -> None:
    """Advise on a pool without a cluster: placement, cap, watermark, trims, replicas, and why."""
    module = _command("plan", "operator,plot" if output is PictureOutput.PNG else "operator")
    options = module.Options(
        pool_file=file,
        traces=tuple(trace or ()),
        kv_tokens=kv_tokens,
        columns=tuple(column or ()),
        time_unit=time_unit,
        output=output.value,
    )
    raise typer.Exit(module.plan_command(options))


@app.command()
def simulate(
    file: Annotated[Path, typer.Option("--file", "-f", help="YAML with one LLMServingPool; - reads standard input.")],
    trace: Annotated[
        list[str],
        typer.Option(metavar="[CLASS=]FILE", help="CSV or JSON lines, gzipped or not; may be repeated to merge files."),
    ],
    policies: Annotated[
        str,
        typer.Option(
            help="What to compare, separated by commas: stock, watermark[=SHARE], SJF, OneBitSVF, SVF, evenflow, pool "
            "(as the file says), prompt-volume, max-num-active-seqs=N, cap=MULTIPLE, count-cap=MULTIPLE."
        ),
    ] = "stock,watermark,SJF,OneBitSVF,SVF,evenflow",
    rate_scale: Annotated[float, typer.Option(help="How many times as fast requests arrive.")] = 1.0,
    seconds: Annotated[float | None, typer.Option(help="Only the first seconds of the trace.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random: which of several equal engines is chosen.")] = 0,
    oracle: Annotated[bool, typer.Option("--oracle", help="Engines know the true output lengths.")] = False,
    prefix_caching: Annotated[str, typer.Option(help="off, lru or ideal; for traces with hash_ids.")] = "off",
    routing: Annotated[
        str, typer.Option(help="least-outstanding, least-volume, least-tokens, round-robin or random.")
    ] = "least-outstanding",
    kv_tokens: Annotated[int | None, typer.Option(min=32, help="Instead of spec.engine.kvCacheTokens.")] = None,
    time_unit: Annotated[str | None, typer.Option(help="Of the trace's arrivals: s, ms, us, ns or iso.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=HEADER", help="Which column is arrival_s, prompt_tokens, …")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    output: PictureOutputOption = PictureOutput.TABLE,
) -> None:
    """Serve a trace on a simulated pool under several policies, side by side."""
    module = _command("simulate", "operator,worker,plot" if output is PictureOutput.PNG else "operator,worker")
    options = module.Options(
        pool_file=file,
        traces=tuple(trace),
        policies=policies,
        output=output.value,
        rate_scale=rate_scale,
        seconds=seconds,
        seed=seed,
        oracle=oracle,
        prefix_caching=prefix_caching,
        routing=routing,
        time_unit=time_unit,
        columns=tuple(column or ()),
        kv_tokens=kv_tokens,
        jobs=jobs,
    )
    raise typer.Exit(module.simulate_command(options))


@app.command(context_settings=PASS_THROUGH)
def engine(context: typer.Context) -> None:
    """Start one simulated engine: an OpenAI-compatible server with vLLM's memory behaviour, without a GPU."""
    raise typer.Exit(_command("engine", "worker").engine_command(context.args))


@app.command(context_settings=PASS_THROUGH)
def operator(context: typer.Context) -> None:
    """Run the operator against a cluster."""
    raise typer.Exit(_command("operator", "operator").operator_command(context.args))


@app.command(context_settings=PASS_THROUGH)
def demo(context: typer.Context) -> None:
    """Replay a production trace against a pool, before and after Evenflow, on this computer."""
    raise typer.Exit(_command("demo", "devcluster,plot").demo_command(context.args))


@cluster_app.command("up")
def cluster_up(
    name: ClusterName = "evenflow",
    nodes: Annotated[int, typer.Option(help="A100 nodes with 8 GPUs each.", min=1, max=100)] = 2,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in the foreground until Ctrl-C.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start a cluster and leave it running; prints where its kubeconfig is."""
    raise typer.Exit(
        _command("cluster", "devcluster").up(name=name, nodes=nodes, foreground=foreground, output=output.value)
    )


@cluster_app.command("down")
def cluster_down(name: ClusterName = "evenflow", output: OutputOption = Output.TABLE) -> None:
    """Stop a cluster with everything that runs in it, and remove its files."""
    raise typer.Exit(_command("cluster", "devcluster").down(name=name, output=output.value))


@cluster_app.command("status")
def cluster_status(name: ClusterName = "evenflow", output: OutputOption = Output.TABLE) -> None:
    """Say whether a cluster runs, and where. Exit status 1 if it doesn't."""
    raise typer.Exit(_command("cluster", "devcluster").status(name=name, output=output.value))


@worker_app.command("install")
def worker_install(
    target: Annotated[Path, typer.Option(help="Directory for the packages; put it on vLLM's PYTHONPATH.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy the worker to a directory from which any vLLM can load it; nothing else has to be installed there."""
    raise typer.Exit(_command("worker", "worker").install_command(target, output.value))


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
