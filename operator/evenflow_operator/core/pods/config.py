"""The worker config that a slot should have, and what its change means (docs/design.md §6.2)."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from evenflow_contract.worker_config import MAX_GENERATION, Admission, ClassPrior, Predictor, Proxies, WorkerConfig
from evenflow_model.lengths import LengthMix
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import DecisionType, SchedulingPolicy
from evenflow_operator.api.spec import LLMServingPoolSpec, TrafficClass
from evenflow_operator.core.decisions import decision
from evenflow_operator.core.plan import Decision

FIRST_GENERATION = 1


def base_config(spec: LLMServingPoolSpec) -> WorkerConfig:
    """What all slots of a pool have in common; classes, admission and draining are each slot's own."""
    scheduling = spec.scheduling
    return WorkerConfig(
        policy=scheduling.policy.value,
        victim=scheduling.victim.value,
        aging_seconds=float(scheduling.aging_seconds),
        predictor=Predictor(scheduling.predictor.type.value, scheduling.predictor.path),
        proxies=_proxies(spec.traffic_classes) if scheduling.policy is SchedulingPolicy.ONE_BIT_SVF else None,
        class_priors={
            entry.name: ClassPrior(float(entry.prompt_tokens), float(entry.output_tokens))
            for entry in spec.traffic_classes
        },
    )


def slot_config(base: WorkerConfig, classes: Iterable[str], admission: Admission, *, draining: bool) -> WorkerConfig:
    """The config of one slot, of the first generation."""
    return replace(
        base,
        generation=FIRST_GENERATION,
        classes=tuple(sorted(classes)),
        admission=admission,
        draining=draining,
    )


def next_config(current: WorkerConfig | None, wanted: WorkerConfig, applied: int | None) -> WorkerConfig | None:
    """The config to write, with the next generation; None when the current one says the same.

    The generation goes beyond what the worker has applied, which refuses older ones: an annotation that was removed, or
    put back as it once was, would never reach it. Beyond the largest there is none: other content under the same one
    still reaches the worker through the file.
    """
    newest = min(max(0 if current is None else current.generation, applied or 0), MAX_GENERATION)
    if current is not None and newest == current.generation and wanted.same_settings(current):
        return None
    return replace(wanted, generation=min(newest + 1, MAX_GENERATION))


def config_decisions(
    current: WorkerConfig | None, wanted: WorkerConfig, slot: int, *, auto: bool, figures: str
) -> tuple[Decision, ...]:
    """What the change means for people. Classes and drains have decisions of their own."""
    if current is None:
        message = "write the worker config again: the pod has none that can be read"
        return (decision(DecisionType.POLICY, DecisionReason.SETTINGS_CHANGED, message, slot=slot),)
    made: list[Decision] = []
    changes = _changes(current, wanted)
    if changes:
        message = ", ".join(changes)
        made.append(decision(DecisionType.POLICY, DecisionReason.SETTINGS_CHANGED, message, slot=slot))
    made += _cap_decisions(current.admission, wanted.admission, slot, auto=auto, figures=figures)
    if current.admission.watermark != wanted.admission.watermark:
        message = f"watermark {current.admission.watermark:.0%} -> {wanted.admission.watermark:.0%}"
        made.append(decision(DecisionType.WATERMARK, DecisionReason.WATERMARK_SET, message, slot=slot))
    return tuple(made)


def cap_text(admission: Admission) -> str:
    if admission.per_iteration is None:
        return "off"
    unit = "x M" if admission.unit == "Volume" else "requests"
    return f"{admission.per_iteration:.3g} {unit} per iteration"


def _cap_decisions(before: Admission, after: Admission, slot: int, *, auto: bool, figures: str) -> tuple[Decision, ...]:
    if (before.mode, before.unit, before.per_iteration) == (after.mode, after.unit, after.per_iteration):
        return ()
    if before.per_iteration is None and after.per_iteration is None:
        return ()
    if after.per_iteration is None:
        reason = DecisionReason.CAP_LIFTED
    elif not auto:
        reason = DecisionReason.CAP_FIXED
    elif before.per_iteration is None or before.unit != after.unit:
        reason = DecisionReason.CAP_STARTED
    else:
        reason = DecisionReason.CAP_RAISED if after.per_iteration > before.per_iteration else DecisionReason.CAP_CUT
    message = f"cap {cap_text(before)} -> {cap_text(after)}{figures if auto and after.per_iteration else ''}"
    return (decision(DecisionType.CAP, reason, message, slot=slot),)


def _changes(before: WorkerConfig, after: WorkerConfig) -> list[str]:
    """What differs in the settings that all slots have in common."""
    aging = (f"{before.aging_seconds:g} s", f"{after.aging_seconds:g} s")
    shown = {
        "policy": (before.policy, after.policy),
        "victim": (before.victim, after.victim),
        "aging": aging,
        "predictor": (before.predictor.type, after.predictor.type),
        "predictor path": (before.predictor.path, after.predictor.path),
    }
    changes = [f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in shown.items() if old != new]
    if dict(before.class_priors) != dict(after.class_priors):
        changes.append("declared lengths of classes")
    if not changes and before.proxies != after.proxies:
        changes.append("lengths that stand for short and long requests")
    return changes


@lru_cache(maxsize=256)
def _proxies(classes: tuple[TrafficClass, ...]) -> Proxies | None:
    """One bit per request: shorter or longer than the mean, each side at its own mean. None for a single length."""
    if not classes:
        return None
    rows = [
        (
            float(entry.weight),
            float(entry.prompt_tokens),
            float(entry.output_tokens),
            float(entry.output_spread_percent),
        )
        for entry in classes
    ]
    lengths, masses = LengthMix.from_classes(rows).output_pmf()
    threshold = float(lengths @ masses)
    short = lengths <= threshold
    if short.all():
        return None
    below = float(np.average(lengths[short], weights=masses[short]))
    above = float(np.average(lengths[~short], weights=masses[~short]))
    return Proxies(round(threshold, 1), round(below, 1), round(above, 1))
