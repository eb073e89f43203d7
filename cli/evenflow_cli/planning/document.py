"""The JSON form of a plan; docs/plan.md describes every key, and a test holds the two together."""

import math
from typing import Any

from evenflow_cli.planning.admission import GroupAdmission, Measure, Trims
from evenflow_cli.planning.placements import Candidate, Group
from evenflow_cli.planning.plan import PoolPlan
from evenflow_cli.planning.subject import Subject, TraceFacts
from evenflow_cli.planning.wording import Advice
from evenflow_contract.names import DEFAULT_CLASS
from evenflow_model.congestion import eviction_free_rate
from evenflow_model.severity import Severity
from evenflow_model.trim import RandomCap, TrimEffect
from evenflow_operator.api.enums import AdmissionMode
from evenflow_operator.core.caps import LOOSEST, TIGHTEST
from evenflow_operator.core.placement.lengths import ENOUGH_REQUESTS, class_shares, law_of, observed_law
from evenflow_operator.core.placement.severity_cache import ClassLaw, length_mix
from evenflow_operator.core.scaling.engine import RESOURCES, Load

VERSION = 1
DIGITS = 6


def document_of(plan: PoolPlan, advice: tuple[Advice, ...]) -> dict[str, Any]:
    subject, choice = plan.subject, plan.choice
    spec = subject.pool.spec
    return {
        "version": VERSION,
        "pool": {
            "name": subject.pool.metadata.name,
            "namespace": subject.pool.metadata.namespace,
            "model": spec.model.name,
            "replicas": spec.replicas,
            "placementStrategy": spec.placement.strategy.value,
            "admissionMode": spec.admission.mode.value,
        },
        "trace": None if subject.trace is None else _trace(subject.trace),
        "memory": {
            "usableKvTokens": subject.memory.tokens,
            "blockSize": subject.memory.block_size,
            "source": subject.memory.source,
            "doubt": subject.memory.doubt,
        },
        "classes": classes_of(subject),
        "placements": [_candidate(one) for one in plan.candidates],
        "placement": {
            "name": choice.candidate.name,
            "severity": _number(choice.candidate.severity),
            "slots": [
                {"slot": slot, "classes": sorted(names)} for slot, names in sorted(choice.candidate.placement.items())
            ],
            "moves": choice.moves,
            "blocked": choice.blocked,
            "unplaced": list(choice.unplaced),
        },
        "admission": [_admission(one, spec.admission.mode) for one in plan.admissions],
        "trims": [_trims(one) for one in plan.admissions if one.trims is not None],
        "capacity": _capacity(plan),
        "advice": [{"topic": one.topic, "act": one.act, "text": one.text} for one in advice],
        "notes": list(subject.notes),
    }


def classes_of(subject: Subject) -> list[dict[str, Any]]:
    """What is known of each class, and what the class would be alone on a replica."""
    observed = subject.observed
    shares = class_shares(subject.pool.spec, observed)
    laws = {entry.name: law_of(entry, observed) for entry in subject.classes}
    if DEFAULT_CLASS in shares:
        laws[DEFAULT_CLASS] = observed_law(observed[DEFAULT_CLASS])
    return [_class(subject, name, shares[name], law) for name, law in laws.items()]


def _class(subject: Subject, name: str, share: float, law: ClassLaw) -> dict[str, Any]:
    seen = subject.observed.get(name)
    observed = seen is not None and (seen.completed >= ENOUGH_REQUESTS or name == DEFAULT_CLASS)
    memory, longest = subject.memory, subject.pool.spec.model.max_model_len or 1 << 17
    mix = length_mix(((1.0, law),), min(longest, 1 << 20))
    prompt, output = (
        (seen.prompt_tokens, seen.output_tokens)
        if seen is not None and observed
        else (law.prompt_tokens, law.output_tokens)
    )
    rate = None if subject.rates is None else subject.rates.get(name)
    return {
        "name": name,
        "promptTokens": _number(prompt),
        "outputTokens": _number(output),
        "outputSpreadPercent": None if observed else law.spread_percent,
        "source": "trace" if observed else "declared",
        "requestsObserved": None if subject.trace is None else subject.trace.counts.get(name, 0),
        "sharePercent": _number(100 * share),
        "requestsPerMinute": None if rate is None else _number(60 * rate),
        "meanVolume": _number(mix.mean_volume()),
        "evictionFreeRate": _number(eviction_free_rate(mix, memory.tokens)),
        "evictionFreeRateBlocks": _number(eviction_free_rate(mix, memory.tokens, memory.block_size)),
    }


def _trace(facts: TraceFacts) -> dict[str, Any]:
    return {
        "files": list(facts.files),
        "requests": facts.requests,
        "refused": facts.refused,
        "seconds": _number(facts.seconds),
        "requestsPerMinute": None if facts.rate is None else _number(60 * facts.rate),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "feasible": candidate.feasible,
        "note": candidate.note,
        "severity": _number(candidate.severity),
        "imbalance": _number(candidate.imbalance),
        "groups": [_group(group) for group in candidate.groups],
    }


def _group(group: Group) -> dict[str, Any]:
    figures = group.figures
    return {
        "classes": list(group.classes),
        "slots": list(group.slots),
        "severity": _number(figures.severity),
        "period": _optional(figures.period),
        "lengthGcd": figures.gcd,
        "criticalPromptTokens": _number(group.critical_prompt),
        "meanPromptTokens": _number(figures.mean_prompt),
        "evictionFreeRate": _number(group.token_rate),
        "evictionFreeRateBlocks": _number(figures.rate),
    }


def _admission(one: GroupAdmission, mode: AdmissionMode) -> dict[str, Any]:
    auto = mode is AdmissionMode.AUTO
    return {
        "classes": list(one.group.classes),
        "slots": list(one.group.slots),
        "mode": one.admission.mode,
        "unit": one.admission.unit,
        "perIteration": _optional(one.admission.per_iteration),
        "capMultiple": _optional(one.multiple),
        "capBounds": [TIGHTEST, LOOSEST] if auto and one.multiple is not None else None,
        "safeCapMultiple": _number(one.safe_share),
        "watermarkPercent": _number(100 * one.admission.watermark),
        "evictionFreeWatermarkTokens": _number(one.watermark),
        "evictionFreeWatermarkPercent": _number(100 * one.watermark / one.group.kv_tokens),
        "measures": [_measure(one.group, measure) for measure in one.measures],
    }


def _measure(group: Group, measure: Measure) -> dict[str, Any]:
    return {
        "name": measure.name,
        "evictionsPerCompletion": _number(measure.evictions),
        "recomputedTokensPerCompletion": _number(measure.evictions * group.figures.mean_prompt),
        "throughputRatio": _number(measure.throughput),
        "freeMemoryPercent": _number(100 * measure.free_share),
    }


def _trims(one: GroupAdmission) -> dict[str, Any]:
    assert one.trims is not None
    trims: Trims = one.trims
    return {
        "classes": list(one.group.classes),
        "slots": list(one.group.slots),
        "tiers": list(trims.tiers),
        "severity": _number(one.group.figures.severity),
        "joint": None if trims.joint is None else _effect(trims.joint),
        "pairwise": None if trims.pairwise is None else _effect(trims.pairwise),
        "randomCap": None if trims.random is None else _random(trims.random, one.group.figures.mean_output),
        "trimsCure": trims.cures,
    }


def _effect(effect: TrimEffect) -> dict[str, Any]:
    return {"outputs": list(effect.outputs), "tokens": effect.total, "severity": _severity(effect.after)}


def _random(cap: RandomCap, mean_output: float) -> dict[str, Any]:
    return {
        "widthPercent": _number(100 * cap.width),
        "outputLossPercent": _number(100 * (1 - cap.mean_output / mean_output)),
        "severity": _severity(cap.after),
    }


def _severity(found: Severity) -> float | None:
    return _number(found.value)


def _capacity(plan: PoolPlan) -> dict[str, Any]:
    capacity, spec = plan.capacity, plan.subject.pool.spec
    rate = capacity.rate
    return {
        "stepTimeModel": capacity.engine_model,
        "stepMilliseconds": _number(capacity.step_ms),
        "targetLoadPercent": _number(100 * capacity.target),
        "requestsPerMinute": None if rate is None else _number(60 * rate),
        "rateSource": plan.subject.rate_source,
        "replicaSustains": _number(60 * capacity.sustained),
        "replicaAtTarget": _number(60 * capacity.at_target),
        "bindingResource": capacity.full.binding,
        "fullLoadPercent": _load(capacity.full),
        "replicas": spec.replicas,
        "loadPercent": None if capacity.load is None else _load(capacity.load),
        "replicasNeeded": capacity.needed,
        "loadPercentNeeded": None if capacity.load_needed is None else _load(capacity.load_needed),
        "gpusNeeded": None if capacity.needed is None else capacity.needed * spec.accelerator.parallelism.gpus,
    }


def _load(load: Load) -> dict[str, float | None]:
    return {name: _number(100 * load.shares[name]) for name in RESOURCES}


def _optional(value: float | None) -> float | None:
    return None if value is None else _number(value)


def _number(value: float) -> float | None:
    """Six significant digits, whole where the value is; null for infinity."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
