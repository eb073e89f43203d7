"""One pod's series added up into EngineCounters, wherever they were read.

A series that is absent, NaN or infinite gives None, never zero.
"""

import math
from collections.abc import Mapping

from evenflow_contract import metrics
from evenflow_operator.core.snapshot import EngineCounters

FIELDS: Mapping[str, str] = {
    metrics.VLLM_PREEMPTIONS: "preemptions",
    metrics.VLLM_RUNNING: "running",
    metrics.VLLM_WAITING: "waiting",
    metrics.VLLM_GENERATION_TOKENS: "generated_tokens",
    metrics.VLLM_ITERATION_TOKENS_COUNT: "iterations_vllm",
    metrics.EVICTIONS: "evictions",
    metrics.ADMITTED_REQUESTS: "admitted",
    metrics.COMPLETED_REQUESTS: "completed",
    metrics.ITERATIONS: "iterations",
    metrics.RECOMPUTED_TOKENS: "recomputed_tokens",
    metrics.KV_CAPACITY_TOKENS: "kv_capacity_tokens",
    metrics.APPLIED_GENERATION: "applied_generation",
    metrics.KV_USAGE_PEAK_RATIO: "kv_peak_ratio",
}


class SeriesSums:
    """Adds up the engines and classes of one pod."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._seen: dict[str, str] = {}
        self._bad: set[str] = set()

    def add(self, name: str, value: float) -> None:
        field = FIELDS[name]
        self._seen[field] = name
        if math.isfinite(value):
            self._sums[field] = self._sums.get(field, 0.0) + value
        else:
            self._bad.add(field)

    @property
    def empty(self) -> bool:
        return not self._seen

    def problem(self) -> str | None:
        """One line about series that are there but hold no number."""
        names = sorted(self._seen[field] for field in self._bad)
        return f"not a number: {', '.join(names)}"[:300] if names else None

    def counters(self) -> EngineCounters:
        return EngineCounters(
            # Without any page of the engine the two must not be mixed: they needn't have counted the same.
            evictions=self._first("preemptions", "evictions") if "running" in self._seen else self._get("preemptions"),
            admitted=self._get("admitted"),
            completed=self._get("completed"),
            iterations=self._first("iterations", "iterations_vllm"),
            recomputed_tokens=self._get("recomputed_tokens"),
            generated_tokens=self._get("generated_tokens"),
            running=self._get("running"),
            waiting=self._get("waiting"),
            kv_peak_ratio=self._get("kv_peak_ratio"),
            kv_capacity_tokens=self._get("kv_capacity_tokens"),
            applied_generation=self._get("applied_generation"),
        )

    def _get(self, field: str) -> float | None:
        return None if field in self._bad else self._sums.get(field)

    def _first(self, field: str, fallback: str) -> float | None:
        # A bad value of the first choice must show, not be papered over by the second.
        return self._get(field) if field in self._seen else self._get(fallback)
