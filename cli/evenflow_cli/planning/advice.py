"""A plan in plain sentences: what to do and why, and where nothing is worth doing."""

from collections.abc import Iterator

from evenflow_cli.planning.admission_advice import admission_advice, watermark_advice
from evenflow_cli.planning.placements import SEGREGATED, Candidate
from evenflow_cli.planning.plan import PoolPlan
from evenflow_cli.planning.trim_advice import trims_advice
from evenflow_cli.planning.wording import Advice, kv_binds, memory_free, per_minute
from evenflow_operator.api.enums import PlacementStrategy
from evenflow_operator.api.names import MAX_REPLICAS
from evenflow_operator.core.placement.search import OK_BELOW, TOLERATED_IMBALANCE
from evenflow_operator.core.scaling.engine import RESOURCE_NAMES

FULL_QUEUE = 0.9
"""Share of the sustainable rate from which queues are long for want of any reserve."""
SHOWN_GROUPS = 2
SHOWN_NAMES = 6


def advice_of(plan: PoolPlan) -> tuple[Advice, ...]:
    """One sentence or two for every topic, in a fixed order."""
    return (
        _memory(plan),
        _placement(plan),
        admission_advice(plan),
        watermark_advice(plan),
        trims_advice(plan),
        _replicas(plan),
    )


def _memory(plan: PoolPlan) -> Advice:
    memory = plan.subject.memory
    text = f"A replica has {memory.tokens:,} usable KV tokens ({memory.source})"
    group = plan.worst.group
    text += (
        f": about {group.figures.rate * group.figures.mean_output:,.0f} requests at once in the middle of their lives."
    )
    if memory.doubt is None:
        return Advice("memory", False, text)
    text += (
        f" That is uncertain, {memory.doubt}: give --kv-tokens what a real one has, (num_gpu_blocks - 1) x block_size."
    )
    return Advice("memory", memory.assumed, text)


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
    if kv_binds(plan) and _limited(plan):
        text = (
            f"Raise spec.placement.maxClassesPerReplica to {len(plan.subject.classes)}: with every class "
            "on every slot severity falls from "
            f"{chosen.severity:.2g} to {_severity(plan.candidates[0].severity)}."
        )
        return Advice("placement", True, text)
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
        shown = "; ".join(f"{_slots(group.slots)}: {_names(group.classes)}" for group in chosen.groups[:SHOWN_GROUPS])
        more = f"; and {len(chosen.groups) - SHOWN_GROUPS} more sets" if len(chosen.groups) > SHOWN_GROUPS else ""
        yield f"{chosen.name} places {shown}{more}."
    if chosen.severity < OK_BELOW:
        leave = "Leave every class on every slot: pooling serves best, and at " if everywhere else "At "
        yield f"{leave}severity {_severity(chosen.severity)} no lengths finish in step."
    elif not kv_binds(plan):
        yield f"Severity is {chosen.severity:.2g}, but does no harm: {memory_free(plan)}."
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


def _limited(plan: PoolPlan) -> bool:
    """All is clearly calmer than what was chosen, but maxClassesPerReplica rules it out."""
    every, spec = plan.candidates[0], plan.subject.pool.spec.placement
    wanted = plan.choice.candidate.severity * (1 - spec.rebalance.min_improvement_percent / 100)
    return not every.feasible and plan.choice.candidate.severity > OK_BELOW and every.severity <= wanted


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


def _replicas(plan: PoolPlan) -> Advice:
    capacity, spec = plan.capacity, plan.subject.pool.spec
    one = (
        f"one replica sustains {per_minute(capacity.sustained)} of these requests a minute, "
        f"{per_minute(capacity.at_target)} at "
        f"{capacity.target:.0%} of {RESOURCE_NAMES[capacity.full.binding]}, which binds"
    )
    if capacity.rate is None or capacity.load is None:
        return Advice(
            "replicas", True, f"Set requestsPerMinute of every class, or give a trace, to have replicas counted: {one}."
        )
    rate = f"{per_minute(capacity.rate)} requests a minute ({plan.subject.rate_source})"
    if capacity.needed is None and (capacity.fewest or 0) > MAX_REPLICAS:
        text = (
            f"Split the pool: {rate} take {capacity.fewest:,} replicas, more than a pool may have "
            f"({MAX_REPLICAS}); {one}."
        )
        return Advice("replicas", True, text)
    if capacity.needed is None:
        text = f"Use placement Balanced or All: as placed, some slot stays above the target for {rate}; {one}."
        return Advice("replicas", True, text)
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


def _severity(value: float) -> str:
    return "0" if value < 0.0005 else f"{value:.2g}"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    return f"{shown} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else shown


def _slots(slots: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, slots[:8])) + (f" and {len(slots) - 8} more" if len(slots) > 8 else "")
    return f"slot {shown}" if len(slots) == 1 else f"slots {shown}"
