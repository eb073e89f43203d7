"""How long one decision takes: 100 slots × 20 classes on a warm cache, and a placement of 32 classes from cold.

.venv/bin/python bench/decide.py
"""

import time
from collections.abc import Callable
from dataclasses import replace

from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import ClassLengths, WorkerLengths, WorkerState
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.core.decide import decide
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.placement.severity_cache import SeverityCache
from evenflow_operator.core.plan import CreatePod, Plan, PutService
from evenflow_operator.core.services import PORTS
from evenflow_operator.core.snapshot import EngineCounters, PodView, Reading, ServiceView, Snapshot

NOW = 1_800_000_000.0


def pool_of(slots: int, classes: int, max_classes: int) -> LLMServingPool:
    declared = [
        {
            "name": f"class-{number}",
            "promptTokens": 100 + 150 * number,
            "outputTokens": 50 + 40 * number,
            "outputSpreadPercent": 40 + 5 * (number % 8),
            "weight": 1 + number % 5,
        }
        for number in range(classes)
    ]
    spec = {
        "model": {"name": "some/model"},
        "replicas": slots,
        "engine": {"type": "Simulated"},
        "trafficClasses": declared,
        "placement": {"maxClassesPerReplica": max_classes},
    }
    return LLMServingPool.parse({"metadata": {"name": "bench", "namespace": "default", "uid": "uid"}, "spec": spec})


def empty(pool: LLMServingPool) -> Snapshot:
    return Snapshot(
        now=NOW,
        namespace="default",
        name="bench",
        uid="uid",
        generation=1,
        pool=pool,
        spec_problem=None,
        pods=(),
        services=(),
        routable=frozenset(),
        readings={},
        memory=PoolMemory(),
    )


def running(snapshot: Snapshot, plan: Plan, *, lengths: int = 0) -> Snapshot:
    """The snapshot once the plan's pods are in service; each engine has observed `lengths` lengths per class."""
    creates = [command for command in plan.commands if isinstance(command, CreatePod)]
    pods, readings = [], {}
    for command in creates:
        meta = command.manifest["metadata"]
        config = WorkerConfig.parse(meta["annotations"][labels.WORKER_CONFIG])
        uid = f"uid-{command.slot}"
        pods.append(
            PodView(
                name=meta["name"],
                uid=uid,
                resource_version="1",
                phase="Running",
                ready=True,
                created_at=NOW,
                slot=command.slot,
                revision=meta["labels"][labels.REVISION],
                attempt=1,
                serving=True,
                classes=frozenset(config.classes),
                owner_uid="uid",
                ready_since=NOW,
                node="node",
                ip="10.0.0.1",
                worker_config=config,
            )
        )
        readings[uid] = _reading(config, command.slot, lengths)
    services = [
        ServiceView(
            name=command.manifest["metadata"]["name"],
            uid=f"service-{number}",
            resource_version="1",
            owner_uid="uid",
            pool="bench",
            traffic_class=command.manifest["metadata"]["labels"][labels.TRAFFIC_CLASS],
            selector=command.manifest["spec"]["selector"],
            ports=PORTS,
        )
        for number, command in enumerate(command for command in plan.commands if isinstance(command, PutService))
    ]
    routable = frozenset(pod.uid for pod in pods)
    return replace(
        snapshot,
        now=NOW + 15,
        pods=tuple(pods),
        services=tuple(services),
        routable=routable,
        readings=readings,
        memory=plan.memory,
    )


def _reading(config: WorkerConfig, slot: int, lengths: int) -> Reading:
    counters = EngineCounters(10.0, 1000.0, 900.0, 1e5, 2e4, 4e5, 200.0, 5.0, 0.9, 430_000.0, 1.0)
    state = WorkerState(config.generation, "", "simulated", "evenflow", "SVF", 430_000, 16, 100_000, 200, 5)
    seen = WorkerLengths(
        {
            name: ClassLengths(1000, {1 + (n * 7 + slot) % (3 * lengths): 1.0 for n in range(lengths)}, 900.0, {})
            for name in config.classes
            if lengths
        }
    )
    return Reading(NOW + 10, "Scrape", counters, state, lengths=seen)


def sampled(snapshot: Snapshot, cache: SeverityCache, samples: int = 6) -> Snapshot:
    """The snapshot with autoscaling on, after so many samples of every engine."""
    assert snapshot.pool is not None
    document = snapshot.pool.model_dump(by_alias=True, exclude_none=True, mode="json")
    document["spec"]["autoscaling"] = {"minReplicas": 1, "maxReplicas": 200}
    snapshot = replace(snapshot, pool=LLMServingPool.parse(document))
    for number in range(1, samples + 1):
        now = snapshot.now + 15
        readings = {uid: _later(reading, now, number) for uid, reading in snapshot.readings.items()}
        snapshot = replace(snapshot, now=now, readings=readings)
        snapshot = replace(snapshot, memory=decide(snapshot, cache).memory)
    return snapshot


def _later(reading: Reading, now: float, number: int) -> Reading:
    assert reading.counters is not None
    counters = replace(reading.counters, admitted=1000.0 + 60.0 * number, iterations=1e5 + 300.0 * number)
    return replace(reading, taken_at=now, counters=counters)


def best(work: Callable[[], object], repeat: int) -> float:
    """Shortest of several runs, in milliseconds."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return 1000 * min(taken)


def main() -> None:
    cache = SeverityCache()
    first = empty(pool_of(slots=100, classes=20, max_classes=20))
    busy = running(first, decide(first, cache))
    warm = replace(busy, memory=decide(busy, cache).memory)
    assert not decide(warm, cache).commands
    report("decide, 100 slots x 20 classes, warm cache", best(lambda: decide(warm, cache), 30), "bar: 20 ms")

    scaled = sampled(warm, cache)
    report("the same with spec.autoscaling", best(lambda: decide(scaled, cache), 30), "bar: 20 ms")

    crowded = empty(pool_of(slots=100, classes=32, max_classes=8))
    cold = best(lambda: decide(crowded, SeverityCache()), 3)
    report("decide, 100 slots x 32 classes, 8 per slot, cold", cold, "bar for the placement: 500 ms")

    many = running(first, decide(first, cache), lengths=500)
    renewed = best(lambda: decide(many, cache), 3)
    report("decide, with 100 x 20 x 500 observed lengths renewed", renewed, "once a minute")


def report(what: str, milliseconds: float, remark: str) -> None:
    print(f"{what:<55} {milliseconds:8.2f} ms   {remark}")


if __name__ == "__main__":
    main()
