"""The `slots` of the status: where each slot stands, and what is known of its engine."""

import re
from typing import Any

from evenflow_operator.api.enums import SlotPhase
from evenflow_operator.api.status import MAX_REASON, REASON_PATTERN
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.readings.facts import applied_generation, fresh_reading, usable_kv_tokens
from evenflow_operator.core.readings.rates import per_thousand
from evenflow_operator.core.slots.broken import CRASHED, failure
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView
from evenflow_operator.core.status import figures as shown
from evenflow_operator.core.times import rfc3339

MAX_MESSAGE = 1024
MAX_MESSAGES = 100_000
"""Characters that all slots' messages share: the API server stores no object of more than 1.5 MiB."""


def slot_statuses(situation: Situation, outcome: Outcome, memory: PoolMemory) -> list[dict[str, Any]]:
    longest = min(MAX_MESSAGE, MAX_MESSAGES // max(1, len(situation.slots)))
    return [_slot(situation, outcome, memory, slot, longest) for slot in sorted(situation.slots)]


def _slot(situation: Situation, outcome: Outcome, memory: PoolMemory, slot: int, longest: int) -> dict[str, Any]:
    pod = situation.filling.get(slot)
    phase, reason, message = _phase(situation, outcome, slot, pod)
    backoff = outcome.refill.backoff.get(slot)
    waiting = backoff is not None and backoff.until > situation.now and pod is None
    entry: dict[str, Any] = {
        "name": f"{situation.snapshot.name}-{slot}",
        "pod": None if pod is None else pod.name,
        "phase": phase.value,
        "reason": reason,
        "message": None if message is None else message[:longest],
        "revision": None if pod is None or not pod.revision else pod.revision,
        "attempts": None if backoff is None else backoff.failures + 1,
        "nextAttemptTime": rfc3339(backoff.until) if waiting and backoff is not None else None,
        "classes": list(memory.placement.get(slot, ())),
    }
    entry.update(_lengths(situation, outcome, slot, pod))
    if pod is not None:
        entry.update(_config(situation, pod))
        entry.update(_rates(situation, memory, pod))
    return {key: value for key, value in entry.items() if value is not None}


def _phase(
    situation: Situation, outcome: Outcome, slot: int, pod: PodView | None
) -> tuple[SlotPhase, str | None, str | None]:
    if pod is None:
        return _empty_phase(situation, outcome, slot)
    if pod.drain_started is not None:
        return SlotPhase.DRAINING, None, pod.drain_reason
    if situation.stalled(pod):
        return SlotPhase.STALLED, None, "requests wait, but the engine doesn't iterate"
    if pod.ready:
        return SlotPhase.READY, None, None
    if pod.unschedulable is not None:
        return SlotPhase.PENDING, "Unschedulable", pod.unschedulable
    if pod.waiting_reason in CRASHED:
        return SlotPhase.FAILED, pod.waiting_reason, failure(pod)
    phase = SlotPhase.PENDING if pod.node is None and pod.phase == "Pending" else SlotPhase.STARTING
    reason = pod.waiting_reason
    # Some kubelets and providers of nodes say a sentence, for which the API server would refuse the whole status.
    return (phase, reason, None) if reason is None or _is_word(reason) else (phase, None, reason)


def _is_word(reason: str) -> bool:
    return len(reason) <= MAX_REASON and re.fullmatch(REASON_PATTERN, reason) is not None


def _empty_phase(situation: Situation, outcome: Outcome, slot: int) -> tuple[SlotPhase, str | None, str | None]:
    dead = [pod for pod in situation.dead if pod.slot == slot]
    if dead:
        return SlotPhase.FAILED, None, f"{dead[0].name} ended in phase {dead[0].phase}"
    if slot in situation.terminating:
        return SlotPhase.TERMINATING, None, f"{situation.terminating[slot].name} still holds its GPUs"
    if slot in outcome.refill.backing_off:
        failures = outcome.refill.backoff[slot].failures
        why = situation.snapshot.create_refusals.get(slot)
        return SlotPhase.BACK_OFF, None, f"failures in a row: {failures}" + (f"; {why}" if why else "")
    if slot in outcome.refill.waiting_for_gpus:
        return SlotPhase.PENDING, "WaitingForGPUs", "terminating pods still hold GPUs"
    return SlotPhase.PENDING, None, situation.snapshot.create_refusals.get(slot)


def _lengths(situation: Situation, outcome: Outcome, slot: int, pod: PodView | None) -> dict[str, Any]:
    figures = outcome.assignment.figures.get(slot)
    reading = None if pod is None else situation.snapshot.readings.get(pod.uid)
    usable = None if reading is None else usable_kv_tokens(reading, 0)
    known: dict[str, Any] = {"usableKvTokens": usable or None}
    if figures is not None:
        known["lengthGcd"] = figures.gcd
        known["severityMicro"] = shown.micro(figures.severity)
        known["evictionFreeRateMicro"] = shown.micro(figures.rate)
    return known


def _config(situation: Situation, pod: PodView) -> dict[str, Any]:
    """Wanted settings are the annotation's; what the engine runs with is known by the generation that it reports."""
    config = pod.worker_config
    applied = applied_generation(situation.snapshot.readings.get(pod.uid))
    if config is None:
        return {"appliedGeneration": applied}
    cap = shown.exact_micro(config.admission.per_iteration)
    return {
        "capMicro": cap,
        "appliedCapMicro": cap if applied == config.generation else None,
        "watermarkPercent": round(100 * config.admission.watermark),
        "configGeneration": config.generation,
        "appliedGeneration": applied,
    }


def _rates(situation: Situation, memory: PoolMemory, pod: PodView) -> dict[str, Any]:
    rates = memory.rates.get(pod.uid)
    if rates is None or fresh_reading(situation.snapshot, pod, situation.spec.metrics.stale_after_seconds) is None:
        return {}
    return {
        "evictionsPerThousand": per_thousand(rates.evicted, rates.finished),
        "recomputedTokensPerThousand": per_thousand(rates.recomputed_tokens, rates.generated_tokens),
    }
