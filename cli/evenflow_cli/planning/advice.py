"""A plan in plain sentences: what to do and why, and where nothing is worth doing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from evenflow_cli.planning.admission import GroupAdmission
from evenflow_cli.planning.capacity import RESOURCE_NAMES
from evenflow_cli.planning.placements import SEGREGATED, Candidate
from evenflow_cli.planning.plan import PoolPlan
from evenflow_cli.planning.trim_advice import trims_text
from evenflow_operator.api.enums import AdmissionMode, AdmissionUnit, PlacementStrategy, SchedulingPolicy
from evenflow_operator.core.caps import ACT_ABOVE, LOOSE_START, LOOSEST, TIGHT_START, TIGHTEST, WIDE_WATERMARK
from evenflow_operator.core.placement_search import OK_BELOW, TOLERATED_IMBALANCE

Topic = Literal["memory", "placement", "admission", "watermark", "trims", "replicas"]

FULL_QUEUE = 0.9
"""Share of the sustainable rate from which queues are long for want of any reserve."""
TOO_LOOSE = 1.2
"""A fixed cap so many times x* lets the waves of tiers through."""
TOO_TIGHT = 1.0
"""A fixed cap below so many times x* under-fills the memory of wide lengths."""


@dataclass(frozen=True, slots=True)
class Advice:
    """`act`: something should be changed in the pool or around it; otherwise it is well as it is."""

    topic: Topic
    act: bool
    text: str


def advice_of(plan: PoolPlan) -> tuple[Advice, ...]:
    """One sentence or two for every topic, in a fixed order."""
    return (_memory(plan), _placement(plan), _admission(plan), _watermark(plan), _trims(plan), _replicas(plan))


def _memory(plan: PoolPlan) -> Advice:
    memory = plan.subject.memory
    text = f"A replica has {memory.tokens:,} usable KV tokens ({memory.source})"
    group = plan.worst.group
    text += (
        f": about {group.figures.rate * group.figures.mean_output:,.0f} requests at once in the middle of their lives."
    )
    if memory.doubt is None:
        return Advice("memory", False, text)
    text += f" That is uncertain: {memory.doubt}. Give --kv-tokens (num_gpu_blocks - 1) x block_size of a real engine."
    return Advice("memory", True, text)


def _placement(plan: PoolPlan) -> Advice:
    choice, chosen = plan.choice, plan.choice.candidate
    if choice.unplaced:
        names = ", ".join(choice.unplaced)
        return Advice("placement", True, f"No slot serves {names}: add them to spec.placement.static, or use Balanced.")
    if choice.overfull:
        limit = plan.subject.pool.spec.placement.max_classes_per_replica
        text = (
            f"Some slots serve more than maxClassesPerReplica ({limit}) classes, or some class would have "
            "none: add replicas or raise it."
        )
        return Advice("placement", True, text)
    if len(plan.subject.classes) <= 1:
        return Advice(
            "placement", False, "Nothing to place: the pool has one kind of request, and every slot serves it."
        )
    better = _clearly_better(plan)
    if better is not None:
        text = (
            f"Change spec.placement.strategy to {better.name}: severity falls from {chosen.severity:.2g} to "
            f"{better.severity:.2g} and the fullest slot from {chosen.imbalance:.2f} to "
            f"{better.imbalance:.2f} times the "
            "mean load."
        )
        return Advice("placement", True, text)
    return Advice("placement", False, " ".join(_placement_sentences(plan)))


def _placement_sentences(plan: PoolPlan) -> Iterator[str]:
    choice, chosen = plan.choice, plan.choice.candidate
    everywhere = len(chosen.groups) == 1
    if not everywhere:
        sets = "; ".join(f"{_slots(group.slots)}: {', '.join(group.classes)}" for group in chosen.groups)
        yield f"{chosen.name} places {sets}."
    if chosen.severity < OK_BELOW:
        leave = "Leave every class on every slot: pooling serves best, and at " if everywhere else "At "
        yield f"{leave}severity {_severity(chosen.severity)} no lengths finish in step."
    elif everywhere:
        yield (
            f"Leave every class on every slot: severity is {chosen.severity:.2g}, but no other placement is clearly "
            "better; the cap has to end the waves."
        )
    else:
        yield (
            f"The worst slot has severity {chosen.severity:.2g}; all classes on all slots: "
            f"{plan.candidates[0].severity:.2g}."
        )
    if choice.moves:
        budget = plan.subject.pool.spec.placement.rebalance.max_moves_per_hour
        yield f"Getting there from all on all changes {choice.moves} slots, at most {budget} an hour."
    apart = plan.candidates[-1]
    if apart.name == SEGREGATED and apart.imbalance > TOLERATED_IMBALANCE:
        yield f"Don't split by class: the fullest slot would carry {apart.imbalance:.2g} times the mean load."


def _clearly_better(plan: PoolPlan) -> Candidate | None:
    """Balanced, where the file says otherwise and loses by it."""
    spec, chosen = plan.subject.pool.spec.placement, plan.choice.candidate
    if spec.strategy is PlacementStrategy.BALANCED:
        return None
    other = next((one for one in plan.candidates if one.name == PlacementStrategy.BALANCED.value), None)
    if other is None or dict(other.placement) == dict(chosen.placement):
        return None
    wanted = chosen.severity * (1 - spec.rebalance.min_improvement_percent / 100)
    if chosen.severity > OK_BELOW and other.severity <= wanted:
        return other
    as_calm = other.severity <= max(OK_BELOW, chosen.severity)
    return other if as_calm and chosen.imbalance > TOLERATED_IMBALANCE > other.imbalance else None


def _admission(plan: PoolPlan) -> Advice:
    spec, worst = plan.subject.pool.spec, plan.worst
    if spec.admission.unit is AdmissionUnit.REQUESTS and spec.scheduling.policy is not SchedulingPolicy.FCFS:
        text = (
            "Set spec.admission.unit to Volume: a cap that counts requests makes small ones wait for large ones, which "
            f"costs more than it gives under {spec.scheduling.policy.value}."
        )
        return Advice("admission", spec.admission.mode is not AdmissionMode.OFF, text)
    if plan.capacity.full.binding != "kv":
        return Advice("admission", False, f"Nothing to do: {_memory_free(plan)}, so a cap has nothing to hold back.")
    if spec.admission.mode is AdmissionMode.AUTO:
        return _auto(worst)
    if worst.multiple is None:
        return _uncapped(worst)
    return _fixed(worst, worst.multiple)


def _auto(worst: GroupAdmission) -> Advice:
    start, x = worst.multiple or LOOSE_START, worst.group.figures.rate
    bounds = f"evictions then move it between {TIGHTEST:g} and {LOOSEST:g} x*"
    if start >= LOOSE_START:
        why = "a cap near x* would leave memory unused"
        text = (
            f"Nothing to do: mode Auto starts the cap loose, at {start:.2g} x* (x* = {x:.3g} requests per "
            f"iteration), since {why}; {bounds}."
        )
        return Advice("admission", False, text)
    text = (
        f"Keep mode Auto: it starts the cap at {start:.2f} x* (x* = {x:.3g} requests per iteration), "
        "because severity is "
        f"{worst.group.figures.severity:.2g}; {bounds}. {_uncured(worst)}"
    )
    return Advice("admission", False, text)


def _uncapped(worst: GroupAdmission) -> Advice:
    if worst.group.figures.severity < OK_BELOW:
        return Advice("admission", False, "Nothing to do: without a cap (mode Off) these lengths cause no waves.")
    return Advice("admission", True, f"Set spec.admission.mode to Auto. {_uncured(worst)}")


def _fixed(worst: GroupAdmission, multiple: float) -> Advice:
    severity, found = worst.group.figures.severity, f"The fixed cap is {multiple:.2g} x*"
    if severity > ACT_ABOVE and multiple > TOO_LOOSE:
        return Advice(
            "admission", True, f"{found}, too loose: lower capMicro to x*, or use mode Auto. {_uncured(worst)}"
        )
    if severity < OK_BELOW and multiple < TOO_TIGHT:
        text = (
            f"{found} and these lengths cause no waves: below x* it leaves memory unused. Raise it to "
            f"{LOOSE_START:g} x*, or use mode Auto."
        )
        return Advice("admission", True, text)
    reason = "about x*, which ends the waves" if severity > ACT_ABOVE else "loose enough to cost nothing"
    if OK_BELOW <= severity <= ACT_ABOVE:
        reason = f"with severity {severity:.2g} anything from {TIGHT_START:g} to {LOOSEST:g} x* will do"
    return Advice("admission", False, f"Nothing to do: {found[0].lower()}{found[1:]}, {reason}.")


def _uncured(worst: GroupAdmission) -> str:
    nothing = worst.measures[0]
    prompt = worst.group.figures.mean_prompt
    return (
        f"Without a cap and a watermark expect at least {100 * nothing.evictions:.2g} evictions per 100 "
        "completions, each of which "
        f"prefills some {prompt:,.0f} tokens again."
    )


def _watermark(plan: PoolPlan) -> Advice:
    spec, worst = plan.subject.pool.spec.admission, plan.worst
    share, needed = worst.admission.watermark, worst.watermark / worst.group.kv_tokens
    given = (
        "as spec.admission.watermarkPercent says"
        if spec.watermark_percent is not None
        else f"set by mode {spec.mode.value}"
    )
    if plan.capacity.full.binding != "kv":
        return Advice("watermark", False, f"Nothing to do: {_memory_free(plan)}. It is {share:.0%}, {given}.")
    if share > 2 * WIDE_WATERMARK and share > 1.5 * needed:
        text = (
            f"Lower watermarkPercent: {share:.0%} of memory stays unused; {WIDE_WATERMARK:.0%} is enough, or "
            "leave it to mode Auto."
        )
        return Advice("watermark", True, text)
    if worst.group.figures.severity < OK_BELOW:
        if share > 0:
            text = (
                f"Nothing to do: {share:.0%}, {given}, keeps requests that were just admitted from being "
                f"evicted, at the price of {share:.0%} of memory."
            )
            return Advice("watermark", False, text)
        text = (
            f"Use mode Auto, or set watermarkPercent to {100 * WIDE_WATERMARK:.0f}: without one, requests "
            "that were just admitted are evicted now and then."
        )
        return Advice("watermark", True, text)
    text = f"Nothing to do: {share:.0%}, {given}. {_watermark_alone(worst, needed)}"
    return Advice("watermark", False, text)


def _watermark_alone(worst: GroupAdmission, needed: float) -> str:
    if math.isinf(needed):
        return "No watermark alone could end the waves; the cap does."
    if needed <= WIDE_WATERMARK:
        return f"A watermark of {100 * needed:.2g} % would end the waves without any cap."
    throughput = worst.measures[0].throughput
    cost = f" and still complete only {throughput:.0%} of what x* does" if throughput < 0.99 else ""
    return (
        f"To end the waves without a cap it would have to leave {100 * needed:.2g} % of memory free{cost}; "
        "the cap is cheaper."
    )


def _trims(plan: PoolPlan) -> Advice:
    act, text = trims_text(plan.worst)
    return Advice("trims", act, text)


def _replicas(plan: PoolPlan) -> Advice:
    capacity, spec = plan.capacity, plan.subject.pool.spec
    one = (
        f"one replica sustains {60 * capacity.sustained:,.3g} of these requests a minute, "
        f"{60 * capacity.at_target:,.3g} at "
        f"{capacity.target:.0%} of {RESOURCE_NAMES[capacity.full.binding]}, which binds"
    )
    if capacity.rate is None or capacity.load is None:
        return Advice(
            "replicas", True, f"Set requestsPerMinute of every class, or give a trace, to have replicas counted: {one}."
        )
    rate = f"{60 * capacity.rate:,.4g} requests a minute ({plan.subject.rate_source})"
    if capacity.needed is None:
        return Advice(
            "replicas",
            True,
            f"No number of replicas near the right one keeps every slot at the target for {rate}: {one}.",
        )
    now, needed = spec.replicas, capacity.needed
    reserve = capacity.utilisation(needed)
    tail = (
        f" Take {needed + 1} if queues must stay short: {needed} run at {reserve:.0%} of what they sustain."
        if reserve > FULL_QUEUE
        else ""
    )
    gpus = needed * spec.accelerator.parallelism.gpus
    scaling = spec.autoscaling
    if scaling is not None and needed > scaling.max_replicas:
        text = f"Raise spec.autoscaling.maxReplicas from {scaling.max_replicas} to {needed} for {rate}: {one}.{tail}"
        return Advice("replicas", True, text)
    if scaling is not None:
        text = f"Nothing to do: {needed} replicas for {rate} lie within spec.autoscaling; {one}.{tail}"
        return Advice("replicas", False, text)
    load = f"{now} would be at {capacity.load.share:.0%} of {RESOURCE_NAMES[capacity.load.binding]}"
    if needed > now:
        return Advice("replicas", True, f"Run {needed} replicas ({gpus} GPUs) for {rate}: {load}; {one}.{tail}")
    if needed < now:
        text = f"{needed} replicas would do for {rate}: {load}; {one}.{tail}"
        return Advice("replicas", False, text)
    return Advice("replicas", False, f"Nothing to do: {needed} replicas are right for {rate}; {one}.{tail}")


def _memory_free(plan: PoolPlan) -> str:
    full = plan.capacity.full
    return f"KV memory doesn't bind ({full.shares['kv']:.0%} in use when {RESOURCE_NAMES[full.binding]} is full)"


def _severity(value: float) -> str:
    return "0" if value < 0.0005 else f"{value:.2g}"


def _slots(slots: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, slots[:8])) + (f" and {len(slots) - 8} more" if len(slots) > 8 else "")
    return f"slot {shown}" if len(slots) == 1 else f"slots {shown}"
