"""The figures of a demo run, and how they are computed from what was observed. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenflow_devcluster.demo.observer import EngineTotals, Sample
from evenflow_devcluster.replay.results import ReplayResult

MAX_LAG_PERCENT = 5.0
MAX_CLIENT_DELAY = 0.02
"""How late the replay may send its requests on average, as a share of their mean latency."""


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """One phase. Latencies in engine seconds; tokens and requests are counts; KV use is a share (0–1)."""

    name: str
    policy: str
    requests: int
    completed: int
    failed: int
    evictions: int
    recomputed_tokens: int
    generated_tokens: int
    mean_latency_s: float
    p50_latency_s: float
    p99_latency_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    kv_use_mean: float
    tokens_per_s: float


def phase_report(
    name: str,
    policy: str,
    result: ReplayResult,
    before: Mapping[str, EngineTotals],
    after: Mapping[str, EngineTotals],
    samples: Sequence[Sample],
) -> PhaseReport:
    """Totals are differences of each engine's own counters; an engine that was replaced counts from its start."""
    zero = EngineTotals()
    deltas = [after[pod].since(before.get(pod, zero)) for pod in after]
    return PhaseReport(
        name=name,
        policy=policy,
        requests=result.requests,
        completed=result.completed,
        failed=result.failed,
        evictions=round(sum(delta.evictions for delta in deltas)),
        recomputed_tokens=round(sum(delta.recomputed_tokens for delta in deltas)),
        generated_tokens=result.generated_tokens,
        mean_latency_s=round(result.mean_latency_s, 2),
        p50_latency_s=round(result.p50_latency_s, 2),
        p99_latency_s=round(result.p99_latency_s, 2),
        mean_ttft_s=round(result.mean_ttft_s, 2),
        p99_ttft_s=round(result.p99_ttft_s, 2),
        kv_use_mean=round(mean_kv_use(samples), 3),
        tokens_per_s=round(result.tokens_per_s, 1),
    )


def mean_kv_use(samples: Sequence[Sample]) -> float:
    used = [use for sample in samples for use in sample.kv_use.values()]
    return sum(used) / len(used) if used else 0.0


def lag_percent(before: Mapping[str, EngineTotals], after: Mapping[str, EngineTotals]) -> float:
    """How far the worst engine fell behind its own clock in a phase, in percent of the time it ran."""
    worst = 0.0
    for pod, totals in after.items():
        delta = totals.since(before.get(pod, EngineTotals()))
        if delta.run_seconds > 0:
            worst = max(worst, 100.0 * delta.lag_seconds / delta.run_seconds)
    return worst


@dataclass(frozen=True, slots=True)
class DemoReport:
    trace: Mapping[str, Any]
    kv_tokens: int
    phases: tuple[PhaseReport, ...]
    phases_planned: int
    decisions: tuple[Mapping[str, Any], ...]
    pods_restarted: int
    engine_lag_percent: float
    client_delay_s: tuple[float, ...]
    """Per phase, how late the replay sent its requests on average, in engine seconds."""
    metrics_source: str
    policy_applied_s: float | None
    """Wall seconds from the spec patch of the last phase until every engine had applied it."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the figures can't be trusted; empty when they can."""
        found = []
        if len(self.phases) < self.phases_planned:
            found.append(f"{self.phases_planned - len(self.phases)} of {self.phases_planned} phases didn't finish")
        for phase in self.phases:
            lost = phase.requests - phase.completed
            if lost:
                found.append(f"phase {phase.name}: {lost} of {phase.requests} requests were not completed")
        if self.engine_lag_percent > MAX_LAG_PERCENT:
            found.append(
                f"engines fell {self.engine_lag_percent:.1f} % behind their clock (limit {MAX_LAG_PERCENT:g} %): "
                "this computer is too busy, try --time-scale 8"
            )
        for phase, delay in zip(self.phases, self.client_delay_s, strict=True):
            if delay > MAX_CLIENT_DELAY * phase.mean_latency_s:
                found.append(
                    f"phase {phase.name}: the replay sent its requests {delay:.1f} s late on average: "
                    "this computer is too busy, try --time-scale 8"
                )
        return tuple(found)

    @property
    def ok(self) -> bool:
        return not self.problems

    def document(self) -> dict[str, Any]:
        return {
            "trace": dict(self.trace),
            "kv_tokens": self.kv_tokens,
            "phases": [
                {field: getattr(phase, field) for field in PhaseReport.__dataclass_fields__} for phase in self.phases
            ],
            "decisions": [dict(decision) for decision in self.decisions],
            "pods_restarted": self.pods_restarted,
            "engine_lag_percent": round(self.engine_lag_percent, 2),
            "client_delay_s": [round(delay, 3) for delay in self.client_delay_s],
            "metrics_source": self.metrics_source,
            "policy_applied_s": None if self.policy_applied_s is None else round(self.policy_applied_s, 2),
            "problems": list(self.problems),
            "ok": self.ok,
        }
