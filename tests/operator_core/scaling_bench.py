"""The operator in a closed loop with simulated engines: slots load a model first, and drain before they go."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core_toy_cluster import START, ToyCluster, spec_of

from evenflow_cli.simulation.scheduling import PoolScheduling
from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerState
from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.pool import Fleet, TimeHook
from evenflow_model.fleet.records import EngineRequest, EngineSpec, FinishedRequest
from evenflow_model.fleet.routing import router
from evenflow_operator.core.plan import DeletePod, ScalePool
from evenflow_operator.core.snapshot import EngineCounters, PodView, Reading

CLASSES = ("chat", "code")


def phases(rates: Sequence[tuple[float, float]], seed: int) -> Iterator[EngineRequest]:
    """Poisson arrivals: seconds and requests per second of each phase; wide lengths as spec_of declares them."""
    source = random.Random(seed)
    now, number, end = 0.0, 0, 0.0
    for seconds, rate in rates:
        end += seconds
        now = max(now, end - seconds)
        while True:
            now += source.expovariate(rate)
            if now >= end:
                break
            chat = source.random() < 0.7
            prompt = min(8000, max(16, round(source.lognormvariate(6.6 if chat else 7.3, 0.8))))
            output = min(2000, max(1, round(source.lognormvariate(5.1 if chat else 3.0, 0.8))))
            yield EngineRequest(str(number), prompt, output, 4000, CLASSES[0 if chat else 1], now)
            number += 1


@dataclass
class ScaledPool(ToyCluster):
    """A toy cluster whose slots are the engines of a fleet; time is what the fleet says."""

    start_seconds: float = 120.0
    most: int = 8
    engines_by_slot: list[Engine] = field(default_factory=list)
    scheduling: list[PoolScheduling] = field(default_factory=list)
    counts: list[tuple[float, int, int]] = field(default_factory=list)
    """Time, replicas wanted, slots that serve."""
    written: list[tuple[float, int, str]] = field(default_factory=list)
    killed_busy: int = 0
    over: int = 0
    """Most GPUs held at once beyond those of the replicas wanted and of slots that drain."""

    def serve(self, requests: Sequence[EngineRequest], interval: float = 15.0) -> list[FinishedRequest]:
        engine = self.spec["engine"]
        spec = EngineSpec(
            engine.get("kvCacheTokens", 430_000),
            16_384,
            max_num_seqs=engine.get("maxNumSeqs", 256),
            max_num_batched_tokens=engine.get("maxNumBatchedTokens", 2048),
        )
        config = WorkerConfig(classes=CLASSES)
        self.scheduling = [PoolScheduling(spec.kv_tokens, spec.max_model_len, config) for _ in range(self.most)]
        self.engines_by_slot = [Engine(spec, one) for one in self.scheduling]
        for number in range(20, 0, -1):
            self.now = START - number * interval
            self._round()
        fleet = Fleet(self.engines_by_slot, router("round-robin", 0), on_time=TimeHook(interval, self._hook))
        fleet.place(dict.fromkeys(CLASSES, self._serving()))
        return fleet.run(requests)

    def _hook(self, fleet: Fleet, now_s: float) -> None:
        self.now = START + now_s
        for _ in range(3):  # passes follow upon what the last one changed
            self._round()
        draining = sum(1 for pod in self.pods.values() if pod.drain_started is not None)
        self.over = max(self.over, self.holding() - self.spec["replicas"] - draining)
        serving = self._serving()
        self.counts.append((now_s, self.spec["replicas"], len(serving)))
        fleet.place(dict.fromkeys(CLASSES, serving))

    def _round(self) -> None:
        self.decide()
        for name, pod in list(self.pods.items()):
            if pod.deleting:
                del self.pods[name]
            elif pod.phase == "Pending" and (self.now - pod.created_at >= self.start_seconds or self.now < START):
                self.pods[name] = replace(
                    pod, phase="Running", ready=True, ready_since=self.now, node="node", ip="127.77.0.2"
                )
            elif pod.phase == "Pending":
                self.pods[name] = replace(pod, node="node")
            if pod.worker_config is not None:
                self.applied[pod.uid] = pod.worker_config.generation

    def _serving(self) -> list[int]:
        return sorted(pod.slot for pod in self.pods.values() if pod.slot is not None and pod.ready and pod.serving)

    def readings(self) -> dict[str, Reading]:
        return {pod.uid: self._reading(pod) for pod in self.pods.values() if pod.ready and pod.slot is not None}

    def _reading(self, pod: PodView) -> Reading:
        assert pod.slot is not None
        engine = self.engines_by_slot[pod.slot]
        counters = engine.counters
        return Reading(
            taken_at=self.now,
            source="Scrape",
            counters=EngineCounters(
                evictions=float(counters.evictions.total()),
                admitted=float(counters.admitted_new.total()),
                completed=float(counters.completed.total()),
                iterations=float(counters.iterations),
                running=float(engine.running),
                waiting=float(engine.waiting),
                kv_peak_ratio=engine.take_usage_peak(),
            ),
            state=WorkerState(
                applied_generation=self.applied.get(pod.uid, 0),
                config_hash="",
                engine="simulated",
                scheduler="evenflow",
                policy="SVF",
                kv_capacity_tokens=engine.kv_capacity_tokens,
                block_size=16,
                iterations=counters.iterations,
                running=engine.running,
                waiting=engine.waiting,
            ),
            lengths=self.scheduling[pod.slot].lengths.document(),
        )

    def _carry_out(self, command: Any) -> None:
        if isinstance(command, ScalePool):
            self.written.append((self.now - START, command.replicas, command.decision.message))
            self.change(replicas=command.replicas)
            return
        if isinstance(command, DeletePod):
            engine = self.engines_by_slot[command.slot]
            self.killed_busy += engine.running + engine.waiting
        super()._carry_out(command)


def scaled_pool(autoscaling: dict[str, Any], **fields: Any) -> ScaledPool:
    return ScaledPool(spec_of(replicas=autoscaling.get("minReplicas", 2), autoscaling=autoscaling, **fields), gpus=64)
