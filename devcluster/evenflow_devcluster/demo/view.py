"""What a person sees: the live screen while phases run, plain lines without a terminal, and the tables at the end."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evenflow_devcluster.demo.report import DemoReport, PhaseReport

ACT, WATCH = 50_000, 5_000
"""Severity in micro: act above .05, watch above .005 (docs/theory.md §4)."""


@dataclass(frozen=True, slots=True)
class SlotRow:
    pod: str
    phase: str
    classes: str
    severity_micro: int | None
    cap: str
    kv_use: float | None
    running: float | None
    waiting: float | None
    evictions: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a phase stands; seconds are wall time."""

    phase: str
    label: str
    number: int
    phases: int
    sent: int = 0
    completed: int = 0
    failed: int = 0
    total: int = 0
    seconds_left: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class View:
    title: str
    progress: Progress
    slots: Sequence[SlotRow] = ()
    decisions: Sequence[Mapping[str, Any]] = ()
    done: Sequence[PhaseReport] = ()
    metrics_source: str = field(default="")


def screen(view: View) -> RenderableType:
    progress = view.progress
    head = Text.assemble(
        (f"phase {progress.number} of {progress.phases}: {progress.phase}", "bold"), f"  ({progress.label})"
    )
    line = Table.grid(padding=(0, 2))
    left = "" if progress.seconds_left is None else f"about {max(progress.seconds_left, 0):.0f} s left in all"
    line.add_row(
        ProgressBar(total=max(progress.total, 1), completed=progress.completed, width=40),
        f"{progress.completed}/{progress.total} completed",
        Text(f"{progress.failed} failed", style="red" if progress.failed else "dim"),
        left,
    )
    parts: list[RenderableType] = [head, line]
    if progress.note:
        parts.append(Text(progress.note, style="dim"))
    if view.slots:
        parts.append(slots_table(view.slots))
    if view.decisions:
        parts.append(decisions_table(view.decisions[-4:], "Last decisions"))
    if view.done:
        parts.append(done_table(view.done))
    return Panel(Group(*parts), title=f"Evenflow demo: {view.title}", subtitle=view.metrics_source, width=100)


def slots_table(slots: Sequence[SlotRow]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", width=96)
    for name in ("pod", "phase", "classes"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("severity", "cap", "KV use", "running", "waiting", "evictions"):
        table.add_column(name, justify="right", no_wrap=True, overflow="ellipsis")
    for slot in slots:
        table.add_row(
            slot.pod,
            slot.phase,
            slot.classes,
            severity_text(slot.severity_micro),
            slot.cap,
            "–" if slot.kv_use is None else f"{100 * slot.kv_use:.0f} %",
            number(slot.running),
            number(slot.waiting),
            number(slot.evictions),
        )
    return table


def severity_text(micro: int | None) -> Text:
    if micro is None:
        return Text("–", style="dim")
    style = "red" if micro > ACT else "yellow" if micro > WATCH else "green"
    return Text(f"{micro / 1e6:.3f}", style=style)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def decisions_table(decisions: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1), header_style="dim", width=96)
    table.add_column("time", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    table.add_column("message", overflow="fold")
    for decision in decisions:
        table.add_row(str(decision.get("time", ""))[11:19], str(decision["reason"]), str(decision["message"]))
    return table


def done_table(phases: Sequence[PhaseReport]) -> Table:
    """The finished phases, a row each: the live screen should fit a small terminal."""
    table = Table(box=None, padding=(0, 1), header_style="dim", width=96)
    table.add_column("finished", no_wrap=True)
    for name in ("mean s", "p99 s", "first token s", "evictions", "recomputed", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for phase in phases:
        table.add_row(
            phase.name,
            f"{phase.mean_latency_s:.1f}",
            f"{phase.p99_latency_s:.1f}",
            f"{phase.mean_ttft_s:.1f}",
            f"{phase.evictions:,}",
            f"{phase.recomputed_tokens:,}",
            f"{phase.tokens_per_s:.0f}",
        )
    return table


def phases_table(phases: Sequence[PhaseReport]) -> Table:
    """The phases side by side: a row per figure, so that three phases and their change fit 100 columns."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    table.add_column("", no_wrap=True)
    for phase in phases:
        table.add_column(phase.name, justify="right")
    compare = len(phases) > 1
    for phase in phases[:-1] if compare else ():
        table.add_column(f"vs {phase.name}", justify="right", style="bold", no_wrap=True)
    rows: tuple[tuple[str, str, str], ...] = (
        ("completed", "completed", "{:,}"),
        ("failed", "failed", "{:,}"),
        ("mean latency, s", "mean_latency_s", "{:.1f}"),
        ("p50 latency, s", "p50_latency_s", "{:.1f}"),
        ("p99 latency, s", "p99_latency_s", "{:.1f}"),
        ("mean first token, s", "mean_ttft_s", "{:.1f}"),
        ("p99 first token, s", "p99_ttft_s", "{:.1f}"),
        ("evictions", "evictions", "{:,}"),
        ("recomputed tokens", "recomputed_tokens", "{:,}"),
        ("generated tokens", "generated_tokens", "{:,}"),
        ("tokens/s", "tokens_per_s", "{:.0f}"),
        ("KV memory in use", "kv_use_mean", "{:.0%}"),
    )
    for label, attribute, shape in rows:
        values = [getattr(phase, attribute) for phase in phases]
        ratios = [f"{values[-1] / value:.2f}x" if value else "–" for value in values[:-1]]
        if attribute in ("failed", "completed"):
            ratios = ["" for _ in ratios]
        table.add_row(label, *(shape.format(value) for value in values), *ratios)
    return table


def print_result(console: Console, report: DemoReport, *, picture: str | None) -> None:
    console.print()
    console.print(phases_table(report.phases))
    console.print(
        "[dim]Engine seconds. First token: time to it. The ratios compare the last phase with each earlier one.[/dim]"
    )
    console.print()
    if report.decisions:
        console.print(decisions_table(report.decisions, "What the operator decided, and why"))
        console.print()
    applied = (
        "" if report.policy_applied_s is None else f", new policy on all engines after {report.policy_applied_s:.1f} s"
    )
    console.print(
        f"Pods restarted: {report.pods_restarted}{applied}. Metrics read by: {report.metrics_source}. "
        f"Engines behind their clock: {report.engine_lag_percent:.1f} %."
    )
    if picture:
        console.print(f"Picture: {picture}", soft_wrap=True)
    for problem in report.problems:
        console.print(f"[red]Not to be trusted:[/red] {problem}")


class Screen:
    """A live screen on a terminal; elsewhere a line now and then, so that a log shows that it moves."""

    LINE_SECONDS = 10.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._line_at = 0.0

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def update(self, view: View) -> None:
        if self._live is not None:
            self._live.update(screen(view))
            return
        now = time.monotonic()
        if now - self._line_at < self.LINE_SECONDS:
            return
        self._line_at = now
        progress = view.progress
        self._console.print(
            f"[{progress.number}/{progress.phases}] {progress.phase}: {progress.completed}/{progress.total} completed, "
            f"{progress.failed} failed {progress.note}",
            highlight=False,
        )

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
