"""Runs a scenario from an empty computer to a report: cluster, operator, pool, phases; nothing is left over."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from evenflow_devcluster.demo import prometheus
from evenflow_devcluster.demo.children import Children
from evenflow_devcluster.demo.observer import EngineTotals, Observer
from evenflow_devcluster.demo.picture import PhaseSeries
from evenflow_devcluster.demo.pool_watch import PoolWatch, until
from evenflow_devcluster.demo.report import DemoReport, PhaseReport, lag_percent, phase_report
from evenflow_devcluster.demo.scenarios import Phase, Scenario
from evenflow_devcluster.demo.view import Progress, Screen, View
from evenflow_devcluster.kube import KubeClient
from evenflow_devcluster.replay.client import ReplayProgress, replay
from evenflow_devcluster.replay.results import ReplayResult
from evenflow_devcluster.state import read_state

READY_SECONDS = 90.0
SCREEN_SECONDS = 0.25
DRAIN_SHARE = 0.5
"""First guess of how long the last requests run on after the last arrival, as a share of the arrivals' span."""


@dataclass(frozen=True, slots=True)
class Finished:
    report: PhaseReport
    series: PhaseSeries
    lag_percent: float
    client_delay_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Running:
    """What the phases need of the started parts."""

    watch: PoolWatch
    observer: Observer
    children: Children
    metrics_source: str


async def run(scenario: Scenario, console: Console) -> tuple[DemoReport, list[PhaseSeries]]:
    """Run every phase. ChildError, PoolTimeout and cancellation pass through, after everything has been stopped."""
    started = Screen(console)
    async with _started(scenario, started) as running:
        finished: list[Finished] = []
        applied_s: float | None = None
        with started.showing():
            for number, phase in enumerate(scenario.phases, 1):
                patched, applied = await _enter(scenario, phase, number, running, started, finished)
                if number == 1:
                    running.watch.settled()
                elif number == len(scenario.phases):
                    applied_s = applied - patched
                finished.append(await _replay(scenario, phase, number, running, started, finished))
        report = DemoReport(
            trace={
                "name": scenario.trace_name,
                "requests": len(scenario.requests),
                "rate_scale": scenario.rate_scale,
                "time_scale": scenario.time_scale,
            },
            kv_tokens=scenario.kv_tokens,
            phases=tuple(one.report for one in finished),
            phases_planned=len(scenario.phases),
            decisions=tuple(running.watch.decisions.values()),
            pods_restarted=running.watch.restarts(),
            engine_lag_percent=max(one.lag_percent for one in finished),
            client_delay_s=tuple(one.client_delay_s for one in finished),
            metrics_source=running.metrics_source,
            policy_applied_s=applied_s,
        )
        return report, [one.series for one in finished]


@contextlib.asynccontextmanager
async def _started(scenario: Scenario, screen: Screen) -> AsyncIterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="evenflow-demo-"))
    try:
        async with Children(folder) as children:
            kubeconfig = await _start_cluster(children, folder)
            screen.say("Cluster up: two A100 nodes. To look inside from another terminal:")
            screen.say(f"  export KUBECONFIG={kubeconfig}")
            found = await prometheus.start_if_present(children, folder)
            command = [_evenflow(), "operator", "--kubeconfig", str(kubeconfig), "--no-leader-election"]
            if found is not None:
                command += ["--prometheus-url", found.url]
            await children.start("operator", command)
            source = "Prometheus" if found else "the operator itself (no prometheus on PATH)"
            metadata = scenario.manifest["metadata"]
            async with await KubeClient.connect(kubeconfig) as client:
                watch = PoolWatch(client, metadata["namespace"], metadata["name"])
                observer = Observer(watch.targets)
                tasks = [asyncio.create_task(watch.run()), asyncio.create_task(observer.run())]
                if found is not None:
                    tasks.append(asyncio.create_task(found.follow(lambda: watch.pods)))
                try:
                    yield Running(watch, observer, children, source)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _evenflow() -> str:
    return str(Path(sys.executable).with_name("evenflow"))


async def _start_cluster(children: Children, folder: Path) -> Path:
    home = {"EVENFLOW_HOME": str(folder)}
    command = [_evenflow(), "cluster", "up", "--foreground", "--name", "demo", "--nodes", "2"]
    child = await children.start("cluster", command, home)
    kubeconfig: list[Path] = []

    async def missing() -> str | None:
        child.check()
        state = read_state("demo", home=folder)
        if state is None:
            return "the cluster isn't up"
        kubeconfig.append(state.kubeconfig)
        return None

    await until(missing, READY_SECONDS)
    return kubeconfig[0]


async def _enter(
    scenario: Scenario, phase: Phase, number: int, running: Running, screen: Screen, finished: list[Finished]
) -> tuple[float, float]:
    """Apply the phase's spec and wait until every engine runs it. Returns both moments (monotonic seconds)."""
    progress = Progress(
        phase.name, phase.policy, number, len(scenario.phases), total=len(scenario.requests), note="applying the spec"
    )
    manifest = scenario.pool(phase)
    patched = await running.watch.apply(manifest)
    waiting = asyncio.create_task(running.watch.wait_applied(manifest, READY_SECONDS))
    try:
        while not waiting.done():
            running.children.check()
            _show(scenario, progress, running, screen, finished, {})
            await asyncio.wait({waiting}, timeout=SCREEN_SECONDS)
        return patched, await waiting
    finally:
        waiting.cancel()


async def _replay(
    scenario: Scenario, phase: Phase, number: int, running: Running, screen: Screen, finished: list[Finished]
) -> Finished:
    classes = sorted({request.traffic_class for request in scenario.requests})
    urls = await running.watch.service_urls(classes, READY_SECONDS)
    await running.observer.look()
    before = dict(running.observer.latest_totals)
    first_sample = len(running.observer.samples)
    began, began_at = time.monotonic(), running.observer.now()
    latest = ReplayProgress()

    def progressed(progress: ReplayProgress) -> None:
        nonlocal latest
        latest = progress

    task = asyncio.create_task(
        replay(
            scenario.requests,
            urls,
            model=str(scenario.manifest["spec"]["model"]["servedName"]),
            max_model_len=int(scenario.manifest["spec"]["model"]["maxModelLen"]),
            time_scale=scenario.time_scale,
            on_progress=progressed,
        )
    )
    try:
        while not task.done():
            running.children.check()
            progress = Progress(
                phase.name,
                phase.policy,
                number,
                len(scenario.phases),
                sent=latest.sent,
                completed=latest.completed,
                failed=latest.failed,
                total=len(scenario.requests),
                seconds_left=_seconds_left(scenario, number, time.monotonic() - began, finished),
            )
            _show(scenario, progress, running, screen, finished, before)
            await asyncio.wait({task}, timeout=SCREEN_SECONDS)
        result = await task
    finally:
        task.cancel()
    seconds = time.monotonic() - began
    await running.observer.look()
    after = dict(running.observer.latest_totals)
    samples = running.observer.samples[first_sample:]
    return Finished(
        report=phase_report(phase.name, phase.policy, result, before, after, samples),
        series=_series(scenario, phase, result, running.observer, first_sample, began_at, before),
        lag_percent=lag_percent(before, after),
        client_delay_s=result.send_delay_s,
        seconds=seconds,
    )


def _seconds_left(scenario: Scenario, number: int, elapsed: float, finished: list[Finished]) -> float:
    guess = (1.0 + DRAIN_SHARE) * max(request.arrival_s for request in scenario.requests) / scenario.time_scale
    per_phase = finished[-1].seconds if finished else guess
    return max(per_phase - elapsed, 1.0) + per_phase * (len(scenario.phases) - number)


def _series(
    scenario: Scenario,
    phase: Phase,
    result: ReplayResult,
    observer: Observer,
    first_sample: int,
    began_at: float,
    before: dict[str, EngineTotals],
) -> PhaseSeries:
    samples = observer.samples[first_sample:]
    kv_use, evictions = [], []
    for sample in samples:
        at = (sample.at - began_at) * scenario.time_scale
        if sample.kv_use:
            kv_use.append((at, sum(sample.kv_use.values()) / len(sample.kv_use)))
        if sample.totals:
            since = (totals.since(before.get(pod, EngineTotals())) for pod, totals in sample.totals.items())
            evictions.append((at, sum(totals.evictions for totals in since)))
    latencies = [(one.arrival_s, one.latency_s) for one in result.outcomes if one.latency_s is not None]
    return PhaseSeries(phase.name, phase.policy, kv_use, evictions, latencies)


def _show(
    scenario: Scenario,
    progress: Progress,
    running: Running,
    screen: Screen,
    finished: list[Finished],
    since: dict[str, EngineTotals],
) -> None:
    sample = running.observer.samples[-1] if running.observer.samples else None
    screen.update(
        View(
            title=scenario.title,
            progress=progress,
            slots=running.watch.slot_rows(sample, since),
            decisions=list(running.watch.decisions.values()),
            done=[one.report for one in finished],
            metrics_source=f"metrics read by {running.metrics_source}",
        )
    )
