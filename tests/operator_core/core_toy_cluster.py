"""A toy cluster for the decisions: pods that start, engines that answer, nodes that die. No API server, no clock."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.core.decide import decide
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.placement.severity_cache import SeverityCache
from evenflow_operator.core.plan import (
    CreatePod,
    DeletePod,
    DeleteService,
    DryRunPod,
    PatchPod,
    Plan,
    PutService,
)
from evenflow_operator.core.restore import restore
from evenflow_operator.core.revision import revision_of
from evenflow_operator.core.slots.dry_run import Answer, answered
from evenflow_operator.core.slots.refill import refused
from evenflow_operator.core.snapshot import EngineCounters, PodView, Reading, ServicePort, ServiceView, Snapshot
from evenflow_operator.core.times import parse_time

UID = "pool-uid"
START = 1_800_000_000.0
CACHE = SeverityCache()
"""Shared by all tests: severities are pure, and computing them again and again takes the time."""

CHAT = {"name": "chat", "promptTokens": 1024, "outputTokens": 220, "outputSpreadPercent": 90, "weight": 70}
CODE = {"name": "code", "promptTokens": 2048, "outputTokens": 32, "outputSpreadPercent": 120, "weight": 30}


def spec_of(**fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "servedName": "llama-8b"},
        "replicas": 4,
        "engine": {"type": "Simulated"},
        "trafficClasses": [CHAT, CODE],
    }
    spec.update(fields)
    return spec


def pool_of(spec: Mapping[str, Any], name: str = "llama") -> LLMServingPool:
    return LLMServingPool.parse({"metadata": {"name": name, "namespace": "ns", "uid": UID}, "spec": dict(spec)})


@dataclass
class Engine:
    """What one pod's engine says when asked."""

    evictions: float = 0.0
    admitted: float = 0.0
    completed: float = 0.0
    iterations: float = 0.0
    recomputed: float = 0.0
    generated: float = 0.0
    running: int = 0
    waiting: int = 0
    peak: float = 0.5
    silent: bool = False
    frozen: bool = False
    stock: bool = False
    """vLLM's own scheduler runs: the worker counts nothing, and only its state is read."""


@dataclass
class ToyCluster:
    spec: dict[str, Any]
    gpus: int = 8
    now: float = START
    generation: int = 1
    pods: dict[str, PodView] = field(default_factory=dict)
    services: dict[str, ServiceView] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    lengths: dict[str, WorkerLengths] = field(default_factory=dict)
    lost_nodes: set[str] = field(default_factory=set)
    memory: PoolMemory = field(default_factory=PoolMemory)
    status: dict[str, Any] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Revisions whose pods never become ready."""
    refused: set[str] = field(default_factory=set)
    """Revisions whose pods the API server refuses."""
    unanswered: bool = False
    """Whether dry runs get no answer."""
    dry_runs: list[float] = field(default_factory=list)
    """When they were asked for."""
    source_problem: str | None = None
    spec_problem: str | None = None
    counter: int = 0
    last: dict[str, Reading] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now=self.now,
            namespace="ns",
            name="llama",
            uid=UID,
            generation=self.generation,
            pool=None if self.spec_problem else pool_of(self.spec),
            spec_problem=self.spec_problem,
            pods=tuple(self.pods.values()),
            services=tuple(self.services.values()),
            routable=frozenset(p.uid for p in self.pods.values() if p.ready and p.serving and not p.deleting),
            readings=self.readings(),
            memory=self.memory,
            lost_nodes=frozenset(self.lost_nodes),
            metrics_source_problem=self.source_problem,
        )

    def readings(self) -> dict[str, Reading]:
        found = {}
        for pod in self.pods.values():
            engine = self.engines.get(pod.uid)
            if engine is not None and engine.silent and pod.uid in self.last:
                found[pod.uid] = self.last[pod.uid]
            if engine is None or not pod.ready or engine.silent:
                continue
            found[pod.uid] = self.last[pod.uid] = Reading(
                taken_at=self.now,
                source="Scrape",
                counters=EngineCounters(waiting=engine.waiting)
                if engine.stock
                else EngineCounters(
                    evictions=engine.evictions,
                    admitted=engine.admitted,
                    completed=engine.completed,
                    iterations=engine.iterations,
                    recomputed_tokens=engine.recomputed,
                    generated_tokens=engine.generated,
                    running=engine.running,
                    waiting=engine.waiting,
                    kv_peak_ratio=engine.peak,
                ),
                state=WorkerState(
                    applied_generation=self.applied.get(pod.uid, 0),
                    config_hash="",
                    engine="simulated",
                    scheduler="stock" if engine.stock else "evenflow",
                    policy="SVF",
                    kv_capacity_tokens=430_000,
                    block_size=16,
                    iterations=0 if engine.stock else int(engine.iterations),
                    running=engine.running,
                    waiting=engine.waiting,
                ),
                lengths=self.lengths.get(pod.uid),
            )
        return found

    def decide(self) -> Plan:
        """One pass whose plan is carried out, and the next one at once if the API server was asked something."""
        asked = len(self.dry_runs)
        plan = self.one_pass()
        return plan if len(self.dry_runs) == asked else self.one_pass()

    def one_pass(self) -> Plan:
        plan = decide(self.snapshot(), CACHE)
        self.plans.append(plan)
        self.memory = plan.memory
        if plan.status is not None:
            self.status = json.loads(json.dumps(plan.status))
        for command in plan.commands:
            self._carry_out(command)
        return plan

    def tick(self, seconds: float = 5.0) -> None:
        """Time passes: deleted pods go, bound pods become ready, engines iterate and take over their config."""
        self.now += seconds
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting or pod.node in self.lost_nodes}
        used = sum(1 for pod in self.pods.values() if pod.node is not None and self._holds(pod))
        for name, pod in self.pods.items():
            if pod.node is None and not pod.deleting and used < self.gpus:
                used += 1
                self.pods[name] = replace(pod, node=f"node-{self.counter % 2}", ip="127.77.0.2", unschedulable=None)
            elif pod.node is None:
                self.pods[name] = replace(pod, unschedulable="Insufficient nvidia.com/gpu")
            elif pod.phase == "Pending" and pod.revision not in self.broken and pod.node not in self.lost_nodes:
                self.pods[name] = replace(pod, phase="Running", ready=True, ready_since=self.now)
                self.engines.setdefault(pod.uid, Engine())
        for pod in self.pods.values():
            engine = self.engines.get(pod.uid)
            if engine is not None and not engine.frozen:
                engine.iterations += 100 * seconds
            if pod.ready and pod.worker_config is not None:
                self.applied[pod.uid] = pod.worker_config.generation

    def run(self, rounds: int = 30, seconds: float = 5.0) -> None:
        for _ in range(rounds):
            self.decide()
            self.tick(seconds)

    def settle(self, rounds: int = 60, seconds: float = 5.0) -> int:
        """Rounds until passes have nothing to do and nothing to wait for; fails when that never happens."""
        quiet = 0
        for number in range(rounds):
            busy = bool(self.decide().commands)
            busy |= any(entry.until > self.now for entry in self.memory.backoff.values())
            busy |= any(pod.drain_started is not None for pods in self.by_slot().values() for pod in pods)
            quiet = 0 if busy else quiet + 1
            if quiet == 2:
                return number
            self.tick(seconds)
        raise AssertionError(f"still busy after {rounds} rounds: {self.plans[-1].commands}")

    def change(self, **fields: Any) -> None:
        self.spec = {**self.spec, **fields}
        self.generation += 1

    def change_badly(self, **fields: Any) -> str:
        """As `change`, to a revision that the API server refuses."""
        self.change(**fields)
        self.refused.add(self.revision)
        return self.revision

    @property
    def revision(self) -> str:
        return revision_of(pool_of(self.spec).spec)

    def restart_operator(self) -> None:
        self.memory = restore(self.status, tuple(self.pods.values()))

    def fail(self, name: str, phase: Any = "Failed") -> None:
        self.pods[name] = replace(self.pods[name], phase=phase, ready=False, ready_since=None)

    def holding(self) -> int:
        """Pods of the pool that hold a GPU; orphans are nobody's until they are adopted."""
        return sum(1 for pod in self.pods.values() if pod.owner_uid == UID and self._holds(pod))

    def by_slot(self) -> dict[int | None, list[PodView]]:
        found: dict[int | None, list[PodView]] = {}
        for pod in self.pods.values():
            if pod.owner_uid == UID and not pod.deleting and pod.phase in ("Pending", "Running"):
                found.setdefault(pod.slot, []).append(pod)
        return found

    def _holds(self, pod: PodView) -> bool:
        return pod.phase in ("Pending", "Running") and pod.node not in self.lost_nodes

    def _carry_out(self, command: Any) -> None:
        if isinstance(command, DryRunPod):
            self._answer(command)
            return
        self.counter += 1
        if isinstance(command, CreatePod):
            self._create(command)
        elif isinstance(command, DeletePod):
            pod = self.pods[command.name]
            assert pod.uid == command.uid
            if pod.node is None or pod.phase in ("Failed", "Succeeded"):
                del self.pods[command.name]
            else:
                self.pods[command.name] = replace(pod, deleting=True, resource_version=f"{self.counter}")
        elif isinstance(command, PatchPod):
            self._patch(command)
        elif isinstance(command, PutService):
            self._put(command)
        elif isinstance(command, DeleteService):
            del self.services[command.name]

    def _answer(self, command: DryRunPod) -> None:
        self.dry_runs.append(self.now)
        refusal = command.revision in self.refused and not self.unanswered
        problem = "no answer" if self.unanswered else "no such field" if refusal else ""
        self.memory = answered(self.memory, [Answer(command, problem, refusal)], self.now)

    def _create(self, command: CreatePod) -> None:
        meta = command.manifest["metadata"]
        assert meta["name"] not in self.pods, "the API server would answer 409"
        tags = meta["labels"]
        if tags[labels.REVISION] in self.refused:
            self.memory = refused(self.memory, [command], self.now)
            return
        self.pods[meta["name"]] = PodView(
            name=meta["name"],
            uid=f"uid-{self.counter}",
            resource_version=f"{self.counter}",
            phase="Pending",
            ready=False,
            created_at=self.now,
            slot=int(tags[labels.SLOT]),
            revision=tags[labels.REVISION],
            attempt=int(tags[labels.ATTEMPT]),
            serving=labels.SERVING in tags,
            classes=labels.classes_of(tags),
            owner_uid=meta["ownerReferences"][0]["uid"],
            worker_config=WorkerConfig.parse(meta["annotations"][labels.WORKER_CONFIG]),
            worker_image=meta["annotations"][labels.WORKER_IMAGE],
        )

    def _patch(self, command: PatchPod) -> None:
        pod = self.pods[command.name]
        assert (pod.uid, pod.resource_version) == (command.uid, command.resource_version)
        tags = {labels.class_label(name): labels.TRUE for name in pod.classes}
        tags.update({labels.SERVING: labels.TRUE} if pod.serving else {})
        for key, value in command.labels.items():
            if value is None:
                tags.pop(key, None)
            else:
                tags[key] = value
        notes = command.annotations
        self.pods[command.name] = replace(
            pod,
            resource_version=f"{self.counter}",
            serving=labels.SERVING in tags,
            classes=labels.classes_of(tags),
            owner_uid=UID if command.adopt else pod.owner_uid,
            worker_config=command.config or pod.worker_config,
            drain_started=parse_time(notes[labels.DRAIN_STARTED])
            if labels.DRAIN_STARTED in notes
            else pod.drain_started,
            drain_reason=notes.get(labels.DRAIN_REASON, pod.drain_reason),
        )

    def _put(self, command: PutService) -> None:
        meta, spec = command.manifest["metadata"], command.manifest["spec"]
        self.services[meta["name"]] = ServiceView(
            name=meta["name"],
            uid=command.uid or f"service-{self.counter}",
            resource_version=f"{self.counter}",
            owner_uid=UID,
            pool=meta["labels"][labels.POOL],
            traffic_class=meta["labels"][labels.TRAFFIC_CLASS],
            class_removed=parse_time(meta.get("annotations", {}).get(labels.CLASS_REMOVED)),
            selector=spec["selector"],
            ports=tuple(
                ServicePort(port["name"], port["port"], port["targetPort"], port["protocol"]) for port in spec["ports"]
            ),
        )


def ready_cluster(**fields: Any) -> ToyCluster:
    """A pool whose pods are all in service."""
    cluster = ToyCluster(spec_of(**fields))
    cluster.settle()
    return cluster
