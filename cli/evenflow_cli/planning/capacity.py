"""How much of KV memory, step budget and sequences a load takes, and how many replicas it needs.

Counted as the operator's autoscaler counts (core.scaling.engine).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from evenflow_cli.planning.placements import Candidate, Group, Placements
from evenflow_cli.planning.subject import Subject
from evenflow_model.steptime import step_time_model
from evenflow_operator.api.names import MAX_REPLICAS
from evenflow_operator.api.spec import Autoscaling, LLMServingPoolSpec
from evenflow_operator.core.placement.lengths import class_shares
from evenflow_operator.core.placement.search import slot_counts
from evenflow_operator.core.scaling.engine import Engine, Load, counted_ms

MORE_REPLICAS = 24
"""Replica counts tried beyond what the pool's mix as a whole would need, where classes are on some slots only."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Rates are requests per second, loads those of the fullest slot. `needed` replicas keep the load at the target."""

    engine_model: str
    target: float
    sustained: float
    """By one replica of the pool's whole mix, with the binding resource in full use."""
    at_target: float
    step_ms: float
    """Iteration time at the target load, hence the time per output token of a running request."""
    full: Load
    """At `sustained`: how much of the other resources is in use when the binding one is full."""
    rate: float | None
    load: Load | None
    """At the pool's own number of replicas; None, like the two below, when the rate is unknown."""
    fewest: int | None
    """Replicas that the rate takes if every slot is equally loaded."""
    needed: int | None
    """None also where more would be needed than a pool may have, or placement leaves some slot above the target."""
    load_needed: Load | None

    def utilisation(self, replicas: int) -> float:
        """Rate over what so many replicas sustain; near 1 queues grow long whatever the load of the resources."""
        return 0.0 if self.rate is None else self.rate / (replicas * self.sustained)


def capacity(subject: Subject, placements: Placements) -> Capacity:
    """From the chosen placement; the search for `needed` asks the operator to place each number of replicas anew."""
    spec = subject.pool.spec
    engine = _engine(subject, placements.everywhere().groups[0])
    target = (spec.autoscaling or Autoscaling.model_validate({})).target_load_percent / 100
    most = engine.most_admitted
    at_target, sustained = 1000.0 * target * most / counted_ms(engine, target), engine.rate(most)
    now = first = needed = load_needed = total = None
    if subject.rates is not None:
        total = math.fsum(subject.rates.values())
        now = fullest(subject, placements.chosen().candidate, subject.rates, target)
        first = max(math.ceil(total / at_target - 1e-9), fewest(spec))
        for replicas in range(first, min(first + MORE_REPLICAS, MAX_REPLICAS) + 1):
            load = fullest(subject, placements.chosen(replicas).candidate, subject.rates, target)
            if load.share <= target * (1 + 1e-6):
                needed, load_needed = replicas, load
                break
    return Capacity(
        engine_model=subject.step_time_model,
        target=target,
        sustained=sustained,
        at_target=at_target,
        step_ms=engine.step_ms(target * most),
        full=Load(engine.shares(most)),
        rate=total,
        load=now,
        fewest=first,
        needed=needed,
        load_needed=load_needed,
    )


def fewest(spec: LLMServingPoolSpec) -> int:
    """Replicas that classes and the autoscaler ask for whatever the load."""
    classes = max((entry.min_replicas for entry in spec.traffic_classes), default=1)
    return max(classes, spec.autoscaling.min_replicas if spec.autoscaling is not None else 1)


def fullest(subject: Subject, candidate: Candidate, rates: Mapping[str, float], target: float) -> Load:
    """The load of the fullest slot of a placement."""
    counts = slot_counts(candidate.placement)
    loads = []
    for group in candidate.groups:
        rate = math.fsum(rates.get(name, 0.0) / counts.get(name, len(candidate.placement)) for name in group.classes)
        loads.append(_engine(subject, group).load(rate, target))
    return max(loads, key=lambda load: load.share)


def _engine(subject: Subject, group: Group) -> Engine:
    engine, figures = subject.pool.spec.engine, group.figures
    shares = class_shares(subject.pool.spec, subject.observed)
    total = math.fsum(shares[name] for name in group.classes)
    square = math.fsum(shares[name] * subject.prompt_squares[name] for name in group.classes) / total
    return Engine(
        mean_prompt=figures.mean_prompt,
        mean_output=figures.mean_output,
        mean_volume=figures.mean_volume,
        chunk_source=square / figures.mean_prompt,
        kv_tokens=group.kv_tokens,
        step_budget=engine.max_num_batched_tokens,
        max_seqs=engine.max_num_seqs,
        model=step_time_model(subject.step_time_model),
    )
