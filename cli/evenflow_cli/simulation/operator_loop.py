"""The operator in the loop: its own `decide` over a simulated pool, with readings as its scraper would bring them.

Time of the operator is engine time: a pool of simulated engines that run N times as fast is sampled every N intervals.
"""

from collections.abc import Sequence
from dataclasses import replace

from evenflow_cli.simulation.scheduling import PoolScheduling
from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerState
from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.pool import Fleet
from evenflow_operator.api.enums import EngineType
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.decide import decide
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.placement.lengths import RENEW_SECONDS
from evenflow_operator.core.placement.severity_cache import SeverityCache
from evenflow_operator.core.plan import CreatePod, PatchPod
from evenflow_operator.core.snapshot import EngineCounters, PodView, Reading, Snapshot

_UID = "simulated"
_START_S = 1_700_000_000.0
"""When the trace begins, in the operator's time: any moment that lies well after 1970."""
_SETTLING_ROUNDS = 10


class OperatorLoop:
    """Decides for `pool` at `interval_s` seconds. Make it, make the engines with its `configs`, then `attach` them."""

    def __init__(self, pool: LLMServingPool) -> None:
        metrics = pool.spec.metrics
        scale = pool.spec.engine.simulated.time_scale if pool.spec.engine.type is EngineType.SIMULATED else 1
        self.interval_s = float(metrics.interval_seconds * scale)
        spec = pool.spec.model_copy(
            update={
                "autoscaling": None,
                "metrics": metrics.model_copy(
                    update={
                        "interval_seconds": metrics.interval_seconds * scale,
                        "stale_after_seconds": metrics.stale_after_seconds * scale,
                    }
                ),
            }
        )
        metadata = pool.metadata.model_copy(update={"uid": _UID, "generation": 1, "name": pool.metadata.name or "pool"})
        self._pool = pool.model_copy(update={"spec": spec, "metadata": metadata})
        self._cache = SeverityCache()
        self._memory = PoolMemory()
        self._pods: dict[int, PodView] = {}
        self._engines: Sequence[Engine] = ()
        self._scheduling: Sequence[PoolScheduling] = ()
        self._lengths_at = 0.0
        self._settle()

    @property
    def spec(self) -> LLMServingPoolSpec:
        return self._pool.spec

    @property
    def configs(self) -> list[WorkerConfig]:
        """Each slot's worker config now, in the order of slots."""
        configs = [pod.worker_config for _, pod in sorted(self._pods.items())]
        return [config for config in configs if config is not None]

    @property
    def placement(self) -> dict[str, list[int]]:
        """Slots that serve each class; classes that no slot serves are left out."""
        names = [entry.name for entry in self.spec.traffic_classes]
        served = {name: [slot for slot, pod in sorted(self._pods.items()) if name in pod.classes] for name in names}
        return {name: slots for name, slots in served.items() if slots}

    def attach(self, engines: Sequence[Engine], scheduling: Sequence[PoolScheduling]) -> None:
        """These engines, in the order of slots, are what the pods run."""
        self._engines, self._scheduling = engines, scheduling

    def tick(self, fleet: Fleet, now_s: float) -> None:
        """One pass of the operator, carried out."""
        if self._decide(_START_S + now_s):
            fleet.place(self.placement)

    def _settle(self) -> None:
        """The pool comes up before the trace begins: pods are made, become ready and get their classes."""
        for number in range(_SETTLING_ROUNDS, 0, -1):
            self._decide(_START_S - number * self.interval_s)

    def _decide(self, now: float) -> bool:
        """True if some pod's classes changed."""
        plan = decide(self._snapshot(now), self._cache)
        self._memory = plan.memory
        changed = False
        for command in plan.commands:
            if isinstance(command, CreatePod):
                self._create(command, now)
            elif isinstance(command, PatchPod):
                changed |= self._patch(command)
        return changed

    def _snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            now=now,
            namespace=self._pool.metadata.namespace,
            name=self._pool.metadata.name,
            uid=_UID,
            generation=1,
            pool=self._pool,
            spec_problem=None,
            pods=tuple(self._pods.values()),
            services=(),
            routable=frozenset(pod.uid for pod in self._pods.values() if pod.serving),
            readings=self._readings(now),
            memory=self._memory,
        )

    def _readings(self, now: float) -> dict[str, Reading]:
        fresh_lengths = now - self._lengths_at >= RENEW_SECONDS
        if fresh_lengths:
            self._lengths_at = now
        readings = {}
        for (_, pod), engine, scheduling in zip(
            sorted(self._pods.items()), self._engines, self._scheduling, strict=bool(self._engines)
        ):
            counters = engine.counters
            readings[pod.uid] = Reading(
                taken_at=now,
                source="Scrape",
                counters=EngineCounters(
                    evictions=float(counters.evictions.total()),
                    admitted=float(counters.admitted_new.total()),
                    completed=float(counters.completed.total()),
                    iterations=float(counters.iterations),
                    recomputed_tokens=float(counters.recomputed_tokens),
                    generated_tokens=float(counters.generation_tokens),
                    running=float(engine.running),
                    waiting=float(engine.waiting),
                    kv_peak_ratio=engine.take_usage_peak(),
                    kv_capacity_tokens=float(engine.kv_capacity_tokens),
                ),
                state=_state(engine, scheduling.config),
                lengths=scheduling.lengths.document() if fresh_lengths else None,
            )
        return readings

    def _create(self, command: CreatePod, now: float) -> None:
        meta = command.manifest["metadata"]
        tags, notes = meta["labels"], meta["annotations"]
        self._pods[command.slot] = PodView(
            name=meta["name"],
            uid=f"pod-{command.slot}",
            resource_version="1",
            phase="Running",
            ready=True,
            ready_since=now,
            created_at=now,
            slot=command.slot,
            revision=tags[labels.REVISION],
            attempt=int(tags[labels.ATTEMPT]),
            serving=labels.SERVING in tags,
            classes=labels.classes_of(tags),
            owner_uid=_UID,
            template_version=notes.get(labels.TEMPLATE_VERSION),
            worker_config=WorkerConfig.parse(notes[labels.WORKER_CONFIG]),
            node="node",
        )

    def _patch(self, command: PatchPod) -> bool:
        pod = self._pods[command.slot]
        tags: dict[str, str | None] = {**labels.class_labels(pod.classes), **command.labels}
        serving = command.labels.get(labels.SERVING, labels.TRUE if pod.serving else None)
        classes = labels.classes_of({key: value for key, value in tags.items() if value is not None})
        self._pods[command.slot] = replace(
            pod, serving=serving is not None, classes=classes, worker_config=command.config or pod.worker_config
        )
        if command.config is not None and self._engines:
            slot = sorted(self._pods).index(command.slot)
            self._scheduling[slot].configure(command.config)
            self._engines[slot].rescheduled()
        return classes != pod.classes


def _state(engine: Engine, config: WorkerConfig) -> WorkerState:
    return WorkerState(
        applied_generation=config.generation,
        config_hash=config.content_hash(),
        engine="simulated",
        scheduler="evenflow",
        policy=config.policy,
        kv_capacity_tokens=engine.kv_capacity_tokens,
        block_size=engine.spec.block_size,
        iterations=engine.counters.iterations,
        running=engine.running,
        waiting=engine.waiting,
    )
