"""The pool's status: what was observed, nothing that is only hoped for."""

import statistics
from collections.abc import Mapping
from typing import Any

from evenflow_contract import labels
from evenflow_contract.names import DEFAULT_CLASS
from evenflow_operator.api.conditions import ConditionType, ReadyReason, SpecValidReason
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.placement.lengths import class_shares
from evenflow_operator.core.readings.facts import counters_of, finite, fresh_reading
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView, Snapshot
from evenflow_operator.core.status import figures as shown
from evenflow_operator.core.status.conditions import condition, judged
from evenflow_operator.core.status.conditions_engines import pool_evictions_per_thousand
from evenflow_operator.core.status.slots import slot_statuses
from evenflow_operator.core.status.verdict import Verdict, false


def pool_status(situation: Situation, outcome: Outcome, memory: PoolMemory) -> dict[str, Any]:
    """The whole status; `memory` is that of after the pass."""
    filling = situation.filling.values()
    severity = shown.micro(max((figures.severity for figures in outcome.assignment.figures.values()), default=None))
    return _present(
        {
            "observedGeneration": situation.snapshot.generation,
            "severityMicro": severity,
            "severity": shown.decimal(severity),
            "evictionsPerThousand": pool_evictions_per_thousand(situation, memory),
            "replicas": len(situation.filling) + len(situation.duplicates),
            "readyReplicas": sum(1 for pod in filling if pod.ready),
            "updatedReplicas": sum(1 for pod in filling if pod.revision == situation.revision),
            "currentRevision": situation.revision,
            "selector": selector_of(situation.snapshot.name),
            "conditions": judged(situation, outcome, memory),
            "classes": _classes(situation, memory),
            "slots": slot_statuses(situation, outcome, memory),
            "decisions": [dict(record) for record in memory.decisions],
        }
    )


def invalid_status(snapshot: Snapshot) -> dict[str, Any]:
    """The last status, with SpecValid false: the pool serves on with the last settings that could be read."""
    memory, generation = snapshot.memory, snapshot.generation
    before = dict(memory.written_status)
    problem = snapshot.spec_problem or "the spec can't be read"
    verdict = Verdict(*false(SpecValidReason.INVALID, f"{problem}; the last good settings stay"))
    broken = condition(ConditionType.SPEC_VALID, verdict, memory, generation, snapshot.now)
    others = [
        {**entry, "observedGeneration": generation}
        for entry in before.get("conditions", ())
        if entry["type"] != ConditionType.SPEC_VALID.value
    ]
    if not others:
        never = false(ReadyReason.SPEC_INVALID, "no valid spec was seen yet")
        others = [condition(ConditionType.READY, never, memory, generation, snapshot.now)]
    live = [pod for pod in snapshot.pods if pod.owner_uid == snapshot.uid and not pod.deleting]
    live = [pod for pod in live if pod.phase not in ("Failed", "Succeeded")]
    return {
        **before,
        "observedGeneration": generation,
        "replicas": len(live),
        "readyReplicas": sum(1 for pod in live if pod.ready),
        "selector": selector_of(snapshot.name),
        "conditions": [broken, *others],
    }


def selector_of(pool: str) -> str:
    return f"{labels.POOL}={pool}"


def _classes(situation: Situation, memory: PoolMemory) -> list[dict[str, Any]]:
    spec = situation.spec
    shares = class_shares(spec, memory.observed)
    serving: dict[str, list[PodView]] = {}
    for pod in situation.filling.values():
        if situation.available(pod):
            for name in (*pod.classes, DEFAULT_CLASS):
                serving.setdefault(name, []).append(pod)
    busy = {pod.uid: _load(situation, pod) for pod in situation.filling.values()}
    rows = []
    declared = {entry.name: entry for entry in spec.traffic_classes}
    for name in (*declared, *((DEFAULT_CLASS,) if DEFAULT_CLASS in shares else ())):
        entry, seen = declared.get(name), memory.observed.get(name)
        pods = serving.get(name, [])
        loads = [load for pod in pods if (load := busy[pod.uid]) is not None]
        rows.append(
            _present(
                {
                    "name": name,
                    "promptTokens": None if entry is None else entry.prompt_tokens,
                    "outputTokens": None if entry is None else entry.output_tokens,
                    "observedPromptTokens": None if seen is None else shown.whole(seen.prompt_tokens),
                    "observedOutputTokens": None if seen is None else shown.whole(seen.output_tokens),
                    "replicas": len(pods),
                    "loadPercent": shown.percent(statistics.fmean(loads)) if loads else None,
                    "requestSharePercent": shown.percent(shares.get(name)),
                }
            )
        )
    return rows


def _load(situation: Situation, pod: PodView) -> float | None:
    """The fuller of KV memory (its peak) and sequences, 0 to 1; None when neither is known."""
    reading = fresh_reading(situation.snapshot, pod, situation.spec.metrics.stale_after_seconds)
    counters = counters_of(reading)
    running = finite(counters.running)
    sequences = None if running is None else running / situation.spec.engine.max_num_seqs
    return max((load for load in (finite(counters.kv_peak_ratio), sequences) if load is not None), default=None)


def _present(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}
