"""What is planned: a pool, what is known of its lengths and its load, in the operator's own terms."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenflow_cli.planning.hardware import KvMemory, step_times
from evenflow_cli.simulation.loads import LoadedTrace
from evenflow_contract.names import DEFAULT_CLASS
from evenflow_contract.worker_state import ClassLengths, WorkerLengths
from evenflow_model.traces import TraceRequest
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.api.spec import TrafficClass
from evenflow_operator.core.memory import ObservedClass, PoolMemory
from evenflow_operator.core.placement.lengths import ENOUGH_REQUESTS, class_shares, observe
from evenflow_operator.core.snapshot import PodView, Reading, Snapshot

NOW = 1_700_000_000.0
"""The operator's time while it is asked: any moment that lies well after 1970."""
POOL_UID = "planned"
SURPRISING_RATE = 1.3
"""The trace's rate over the declared one, or the reverse, from which it is pointed out."""


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Rates are requests per second; `counts` are requests by class."""

    files: tuple[str, ...]
    requests: int
    seconds: float
    rate: float | None
    counts: Mapping[str, int]
    refused: int
    """Requests longer than maxModelLen or a replica's KV memory; they count for nothing."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`pool` has the usable KV tokens as its kvCacheTokens. `rates` are requests per second by class; None: unknown."""

    pool: LLMServingPool
    memory: KvMemory
    observed: Mapping[str, ObservedClass]
    rates: Mapping[str, float] | None
    rate_source: str
    prompt_squares: Mapping[str, float]
    """E[prompt²] by class, tokens²: long prompts attend to more. Prompts of declared classes are at their mean."""
    trace: TraceFacts | None
    step_time_model: str
    notes: tuple[str, ...]

    @property
    def classes(self) -> Sequence[TrafficClass]:
        return self.pool.spec.traffic_classes


def subject_of(pool: LLMServingPool, memory: KvMemory, trace: LoadedTrace | None, files: Sequence[str]) -> Subject:
    """Raises ValueError naming the field of what can't be planned."""
    if pool.spec.replicas < 1:
        raise ValueError("spec.replicas: found 0; a pool without replicas serves nothing, set it to at least 1")
    if not pool.spec.traffic_classes and trace is None:
        raise ValueError(
            "spec.trafficClasses: found none, so nothing is known of the requests; declare the classes, or give --trace"
        )
    engine = pool.spec.engine.model_copy(update={"kv_cache_tokens": memory.tokens})
    pool = pool.model_copy(update={"spec": pool.spec.model_copy(update={"engine": engine})})
    step_time_model, note = step_times(pool.spec)
    notes = [] if note is None else [note]
    notes += [] if trace is None else list(trace.notes)
    facts: TraceFacts | None = None
    observed: Mapping[str, ObservedClass] = {}
    served: list[TraceRequest] = []
    if trace is not None:
        longest = min(memory.tokens, pool.spec.model.max_model_len or memory.tokens)
        served = [request for request in trace.requests if request.total_tokens <= longest]
        if not served:
            raise ValueError(
                f"--trace: every request is longer than {longest:,} tokens, which is what "
                "spec.model.maxModelLen and KV "
                "memory allow; raise them, or give another trace"
            )
        facts = _facts(trace, served, files)
        observed = _observed(pool, served)
        notes += _trace_notes(pool, facts)
        if not pool.spec.traffic_classes and not any(seen.completed >= ENOUGH_REQUESTS for seen in observed.values()):
            raise ValueError(
                f"--trace: found {facts.requests} requests; a pool without trafficClasses needs {ENOUGH_REQUESTS} or "
                "more to judge by, declare its classes or give a longer trace"
            )
    squares = {entry.name: float(entry.prompt_tokens) ** 2 for entry in pool.spec.traffic_classes}
    squares |= {name: seen.prompt_tokens**2 for name, seen in observed.items() if name not in squares}
    if trace is not None:
        squares |= _squares(served, {name for name, seen in observed.items() if seen.completed >= ENOUGH_REQUESTS})
    _check_fits(pool, memory, observed)
    rates, source = _rates(pool, observed, facts)
    if facts is not None and facts.rate and rates is not None and source == "declared":
        declared = math.fsum(rates.values())
        if not 1 / SURPRISING_RATE < facts.rate / max(declared, 1e-9) < SURPRISING_RATE:
            notes.append(
                f"the trace has {60 * facts.rate:,.0f} requests a minute, the pool declares {60 * declared:,.0f}: "
                "lengths are taken from the trace, the rate from the pool"
            )
    return Subject(pool, memory, observed, rates, source, squares, facts, step_time_model, tuple(notes))


def _facts(trace: LoadedTrace, served: Sequence[TraceRequest], files: Sequence[str]) -> TraceFacts:
    seconds = trace.requests[-1].arrival_s - trace.requests[0].arrival_s
    return TraceFacts(
        files=tuple(files),
        requests=len(served),
        seconds=seconds,
        rate=len(served) / seconds if seconds > 0 else None,
        counts=dict(sorted(Counter(request.traffic_class for request in served).items())),
        refused=len(trace.requests) - len(served),
    )


def _observed(pool: LLMServingPool, requests: Sequence[TraceRequest]) -> Mapping[str, ObservedClass]:
    """The trace as the operator would see it once an engine had completed all of it."""
    outputs: dict[str, Counter[int]] = defaultdict(Counter)
    prompts: Counter[str] = Counter()
    for request in requests:
        outputs[request.traffic_class][request.output_tokens] += 1
        prompts[request.traffic_class] += request.prompt_tokens
    classes = {
        name: ClassLengths(
            completed=counts.total(),
            outputs={length: float(count) for length, count in counts.items()},
            prompt_mean=prompts[name] / counts.total(),
            prompt_quantiles={},
        )
        for name, counts in outputs.items()
    }
    reading = Reading(taken_at=NOW, source="Scrape", lengths=WorkerLengths(classes))
    return observe(snapshot_of(pool, PoolMemory(), readings={"trace": reading}))[0]


def _squares(requests: Sequence[TraceRequest], names: set[str]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for request in requests:
        if request.traffic_class in names:
            sums[request.traffic_class] += request.prompt_tokens**2
            counts[request.traffic_class] += 1
    return {name: total / counts[name] for name, total in sums.items()}


def snapshot_of(
    pool: LLMServingPool,
    memory: PoolMemory,
    *,
    pods: tuple[PodView, ...] = (),
    readings: Mapping[str, Reading] | None = None,
) -> Snapshot:
    """The pool as the operator would find it, every pod in its Services."""
    return Snapshot(
        now=NOW,
        namespace=pool.metadata.namespace,
        name=pool.metadata.name,
        uid=POOL_UID,
        generation=1,
        pool=pool,
        spec_problem=None,
        pods=pods,
        services=(),
        routable=frozenset(pod.uid for pod in pods),
        readings=readings or {},
        memory=memory,
    )


def _trace_notes(pool: LLMServingPool, facts: TraceFacts) -> list[str]:
    notes = []
    for entry in pool.spec.traffic_classes:
        count = facts.counts.get(entry.name, 0)
        if count < ENOUGH_REQUESTS:
            notes.append(
                f"{entry.name}: the trace has {count:,} requests of it, fewer than {ENOUGH_REQUESTS}; its declared "
                "lengths are used, as the operator would"
            )
    if facts.refused:
        notes.append(
            f"{facts.refused:,} requests of the trace are longer than spec.model.maxModelLen or KV memory allows; "
            "engines refuse them, so they are left out"
        )
    return notes


def _check_fits(pool: LLMServingPool, memory: KvMemory, observed: Mapping[str, ObservedClass]) -> None:
    for index, entry in enumerate(pool.spec.traffic_classes):
        seen = observed.get(entry.name)
        prompt, output = float(entry.prompt_tokens), float(entry.output_tokens)
        where = f"spec.trafficClasses[{index}]"
        if seen is not None and seen.completed >= ENOUGH_REQUESTS:
            prompt, output = seen.prompt_tokens, seen.output_tokens
            where = f"--trace: class {entry.name}"
        if prompt + output > memory.tokens:
            raise ValueError(
                f"{where}: found {prompt + output:,.0f} tokens of prompt and output, but a replica has "
                f"{memory.tokens:,} tokens of KV memory ({memory.source}); lower them, or use more or larger GPUs per "
                "replica"
            )


def _rates(
    pool: LLMServingPool, observed: Mapping[str, ObservedClass], facts: TraceFacts | None
) -> tuple[Mapping[str, float] | None, str]:
    """Declared where every class declares one, else the trace's."""
    classes = pool.spec.traffic_classes
    declared = {entry.name: entry.requests_per_minute for entry in classes}
    shares = class_shares(pool.spec, observed)
    if classes and all(rate is not None for rate in declared.values()):
        rates = {name: (rate or 0) / 60 for name, rate in declared.items()}
        total = math.fsum(rates.values())
        if total > 0:
            unnamed = min(shares.get(DEFAULT_CLASS, 0.0), 0.99)
            return rates | ({DEFAULT_CLASS: total * unnamed / (1 - unnamed)} if unnamed else {}), "declared"
    if facts is not None and facts.rate:
        return {name: share * facts.rate for name, share in shares.items()}, "trace"
    return None, "unknown"
