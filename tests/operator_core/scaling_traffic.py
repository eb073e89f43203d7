"""A toy cluster under a given traffic: what arrives is spread over the slots that serve; the autoscaler is obeyed."""

from dataclasses import dataclass, field, replace
from typing import Any

from core_toy_cluster import Engine, ToyCluster, spec_of

from evenflow_model.steptime import step_time_model
from evenflow_operator.core.plan import CreatePod, Plan, ScalePool
from evenflow_operator.core.scaling.engine import Engine as Shape
from evenflow_operator.core.snapshot import ReplicaWriter, Snapshot

MEAN_OUTPUT = 164
INTERVAL = 15.0
MODEL = Shape(
    mean_prompt=1331,
    mean_output=MEAN_OUTPUT,
    mean_volume=240_000,
    chunk_source=1331,
    kv_tokens=430_000,
    step_budget=2048,
    max_seqs=256,
    model=step_time_model("A100-8B"),
)
"""The slots' engines, roughly: their iterations take the longer the more they do."""


def step_seconds(rate: float) -> float:
    """Iteration time of an engine that serves `rate` requests per second, or as many as it can."""
    seconds = 0.02
    for _ in range(50):
        seconds = MODEL.step_ms(min(rate * seconds, MODEL.most_admitted)) / 1000.0
    return seconds


@dataclass
class Traffic(ToyCluster):
    rate: float = 0.0
    """Requests per second of the whole pool; one slot sustains 7.8, and is on target at 6.8."""
    rates: dict[str, float] | None = None
    """Instead of `rate`: of each class, which its Service spreads over the slots that serve it."""
    writers: tuple[ReplicaWriter, ...] = ()
    starting: bool = False
    """Whether new pods stay in the state of loading their model."""
    written: list[int] = field(default_factory=list)
    over: int = 0
    """Most GPUs beyond those of the replicas wanted that a new pod brought the pool to."""
    obeyed: bool = True
    """Whether the API server takes what the autoscaler writes."""

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), replica_writers=self.writers)

    def decide(self) -> Plan:
        replicas, plan = self.replicas, super().decide()
        if any(isinstance(command, CreatePod) for command in plan.commands):
            self.over = max(self.over, self.holding() - replicas)
        for command in plan.commands:
            if isinstance(command, ScalePool):
                self.written.append(command.replicas)
                if self.obeyed:
                    self.change(replicas=command.replicas)
        return plan

    def tick(self, seconds: float = INTERVAL) -> None:
        if self.starting:
            self.broken = {pod.revision for pod in self.pods.values()}
        super().tick(seconds)
        serving = [pod.uid for pod in self.pods.values() if pod.ready and pod.serving]
        for uid, engine in self.engines.items():
            if uid not in serving:
                engine.running = engine.waiting = 0
        for uid in serving:
            engine = self.engines.setdefault(uid, Engine())
            rate = self.rate / len(serving) if self.rates is None else self._own_rate(uid)
            pace = min(rate + engine.waiting / seconds, MODEL.rate(MODEL.most_admitted))
            step = step_seconds(pace)
            engine.waiting = max(0, engine.waiting + round((rate - pace) * seconds))
            engine.admitted += pace * seconds
            engine.completed += pace * seconds
            engine.running = round(pace * step * MEAN_OUTPUT)
            # The toy's clock has counted a hundred iterations a second.
            engine.iterations += seconds / step - 100 * seconds

    def _own_rate(self, uid: str) -> float:
        serving = [pod for pod in self.pods.values() if pod.ready and pod.serving]
        own = next(pod.classes for pod in serving if pod.uid == uid)
        rates = self.rates or {}
        return sum(rates[name] / sum(1 for pod in serving if name in pod.classes) for name in own)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.decide()
            self.tick()
            self.decide()

    @property
    def replicas(self) -> int:
        return int(self.spec["replicas"])

    def limited(self) -> tuple[str, str, str]:
        found = next(one for one in self.status["conditions"] if one["type"] == "ScalingLimited")
        return found["status"], found["reason"], found["message"]

    def scale_records(self) -> list[dict[str, Any]]:
        return [one for one in self.status["decisions"] if one["type"] == "Scale" and "replicas" in one["inputs"]]


def under(rate: float, replicas: int = 2, seconds: float = 600.0, metrics: Any = None, **autoscaling: Any) -> Traffic:
    """A pool that has been under this traffic for a while."""
    settings = {"minReplicas": 1, "maxReplicas": 8, **autoscaling}
    fields = {"autoscaling": settings, **({"metrics": metrics} if metrics else {})}
    cluster = Traffic(spec_of(replicas=replicas, **fields), gpus=32, rate=rate)
    cluster.pass_time(seconds)
    return cluster
