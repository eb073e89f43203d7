"""A plan for people: tables within 100 columns, then one line for each advice."""

import math
import shutil
import sys
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from evenflow_cli.planning.admission import GroupAdmission, enough_share
from evenflow_cli.planning.document import classes_of
from evenflow_cli.planning.placements import Candidate
from evenflow_cli.planning.plan import PoolPlan
from evenflow_cli.planning.wording import Advice, per_minute
from evenflow_operator.core.caps import ACT_ABOVE
from evenflow_operator.core.placement.search import OK_BELOW
from evenflow_operator.core.scaling.engine import RESOURCES, Load

WIDTH = 100


def print_plan(plan: PoolPlan, advice: tuple[Advice, ...]) -> None:
    """On standard output; in colour only where that is a terminal."""
    terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size((WIDTH, 50)).columns, WIDTH) if terminal else WIDTH
    console = Console(highlight=False, width=width, no_color=None if terminal else True)
    with console.capture() as capture:
        console.print(_title(plan))
        for part in (_classes(plan), _placements(plan), _measures(plan), _capacity(plan), _advice(advice)):
            console.print()
            console.print(part)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _title(plan: PoolPlan) -> Text:
    subject = plan.subject
    spec, memory = subject.pool.spec, subject.memory
    text = Text(subject.pool.metadata.name, style="bold")
    replicas = f"{spec.replicas} replica{'' if spec.replicas == 1 else 's'}"
    text.append(f": {replicas} of {spec.model.name}, {memory.tokens:,} usable KV tokens each", style="not bold")
    return text


def _table(*columns: str, left: int = 1, gap: int = 2) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for number, name in enumerate(columns):
        if number < left:
            table.add_column(name, justify="left", overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table


def _titled(title: str, *parts: RenderableType) -> Group:
    return Group(Text(title, style="bold"), *parts)


def _classes(plan: PoolPlan) -> Group:
    columns = ("class", "prompt", "output", "spread", "share", "req/min", "volume", "x* alone", "in blocks")
    table = _table(*columns)
    for one in classes_of(plan.subject):
        spread = one["outputSpreadPercent"]
        table.add_row(
            one["name"],
            f"{one['promptTokens']:,.0f}",
            f"{one['outputTokens']:,.0f}",
            "as seen" if spread is None else "fixed" if spread == 0 else f"{spread:.0f}%",
            f"{one['sharePercent']:.0f}%",
            "-" if one["requestsPerMinute"] is None else f"{one['requestsPerMinute']:,.4g}",
            short(one["meanVolume"]),
            f"{one['evictionFreeRate']:.3g}",
            f"{one['evictionFreeRateBlocks']:.3g}",
        )
    return _titled("Classes (mean lengths in tokens, x* in requests per iteration)", table)


def _placements(plan: PoolPlan) -> Group:
    columns = (
        "placement",
        "worst slot serves",
        "severity",
        "period",
        "gcd",
        "prompt",
        "critical",
        "load",
        "x*",
        "blocks",
    )
    table = _table(*columns, left=2, gap=1)
    chosen = plan.choice.candidate
    for candidate in plan.candidates:
        taken = candidate.name == chosen.name and dict(candidate.placement) == dict(chosen.placement)
        table.add_row(*_placement_row(candidate, taken=taken))
    return _titled("Placements (the slot with the highest severity of each; > is chosen)", table)


def _placement_row(candidate: Candidate, *, taken: bool) -> tuple[Any, ...]:
    worst = candidate.worst
    figures = worst.figures
    name = Text(f"{'> ' if taken else '  '}{candidate.name}", style="bold" if taken else "")
    if candidate.note is not None:
        name.append(f" ({candidate.note})", style="dim")
    return (
        name,
        _names(worst.classes),
        _severity(figures.severity),
        "-" if figures.period is None else f"{figures.period:.3g}",
        str(figures.gcd),
        f"{figures.mean_prompt:,.0f}",
        _critical(worst.critical_prompt),
        f"{candidate.imbalance:.2f}x",
        f"{worst.token_rate:.3g}",
        f"{figures.rate:.3g}",
    )


def _measures(plan: PoolPlan) -> Group:
    worst = plan.worst
    slots = f"slot{'' if len(worst.group.slots) == 1 else 's'} {_names(tuple(map(str, worst.group.slots)))}"
    if worst.group.figures.severity < OK_BELOW:
        return _titled(f"Admission on {slots}", _set_text(worst))
    table = _table("cure", "evictions", "recomputed", "throughput", "memory left free")
    for measure in worst.measures:
        evictions = _severity(measure.evictions)
        table.add_row(
            measure.name,
            evictions if measure.free_share else Text.assemble("at least ", evictions),
            f"{measure.evictions * worst.group.figures.mean_prompt:,.0f}",
            f"{measure.throughput:.0%}",
            f"{measure.free_share:.1%}",
        )
    title = f"Admission on {slots} (evictions, recomputed tokens per completion; throughput over x*)"
    return _titled(title, table, _set_text(worst))


def _set_text(worst: GroupAdmission) -> Text:
    cap = "no cap" if worst.multiple is None else f"cap {worst.multiple:.2f} x*"
    needed = worst.watermark / worst.group.kv_tokens
    enough = (
        "none is enough to end the waves"
        if math.isinf(needed)
        else f"{enough_share(needed):.1%} would end all waves without a cap"
    )
    if needed == 0:
        enough = "there are no waves to end"
    return Text(f"> {cap}, watermark {worst.admission.watermark:.0%} ({enough})")


def _capacity(plan: PoolPlan) -> Group:
    capacity = plan.capacity
    title = (
        f"Load of the fullest slot (target {capacity.target:.0%}, where {capacity.engine_model} takes "
        f"{capacity.step_ms:.0f} ms per iteration)"
    )
    table = _table("", "KV memory", "step budget", "sequences", "req/min")
    rows: list[tuple[str, Load | None, float | None]] = [("one replica, full", capacity.full, capacity.sustained)]
    replicas = plan.subject.pool.spec.replicas
    if capacity.load is not None:
        rows.append((f"{replicas} replica{'' if replicas == 1 else 's'}", capacity.load, capacity.rate))
    if capacity.load_needed is not None and capacity.needed != replicas:
        rows.append(
            (
                f"{capacity.needed} replica{'' if capacity.needed == 1 else 's'}, needed",
                capacity.load_needed,
                capacity.rate,
            )
        )
    for name, load, rate in rows:
        if load is not None:
            figures = (_load(load, resource == load.binding, load.shares[resource]) for resource in RESOURCES)
            table.add_row(name, *figures, "-" if rate is None else per_minute(rate))
    return _titled(title, table)


def _load(load: Load, binds: bool, share: float) -> Text:
    return Text(f"{share:.0%}", style=("bold red" if share > 1 else "bold") if binds else "")


def _advice(advice: tuple[Advice, ...]) -> Group:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in advice:
        table.add_row(
            Text("!" if one.act else "-", style="bold yellow" if one.act else "dim"), one.topic, Text(one.text)
        )
    return _titled("Advice (! asks for a change)", table)


def _severity(value: float) -> Text:
    style = "green" if value < OK_BELOW else "red" if value > ACT_ABOVE else "yellow"
    return Text("0" if value < 0.0005 else f"{value:.3f}", style=style)


def _critical(tokens: float) -> str:
    return "inf" if math.isinf(tokens) else short(tokens) if tokens >= 100_000 else f"{tokens:,.0f}"


def short(value: float) -> str:
    """Three digits and k, M or G."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown
