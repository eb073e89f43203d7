"""One pass over one pool, with a scripted core and a cluster of dictionaries."""

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from engine_kit import NAMESPACE, DictCluster, ManualClock, pod_view, pool_record, service_view

from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.plan import CreatePod, Decision, Notice, Plan, PutService, ScalePool
from evenflow_operator.core.snapshot import EngineCounters, Reading, Snapshot
from evenflow_operator.engine.act import Actor
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.push import Pusher
from evenflow_operator.engine.readings import Readings
from evenflow_operator.engine.reconcile import FOREIGN_CHECK_SECONDS, SLOWEST_LOOK_SECONDS, Core, Reconciler
from evenflow_operator.engine.workqueue import Retry, WorkQueue
from evenflow_operator.ports import ApiError, Key, PodRecord, PoolRecord, Sample
from evenflow_operator.telemetry import Telemetry

KEY = (NAMESPACE, "llama")
EMPTY = Plan((), (), None, PoolMemory(), None)


class Quiet(Pusher):
    def __init__(self) -> None:
        self.problem: str | None = None

    def submit(self, record: PoolRecord, uid: str, ip: str, config: WorkerConfig) -> None:
        raise AssertionError("nothing is pushed in these tests")

    async def token_problem(self, record: PoolRecord) -> str | None:
        return self.problem


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[bool, str, str]] = []

    def post(self, pool: PoolRecord, *, warning: bool, reason: str, message: str) -> None:
        self.events.append((warning, reason, message))


class Dates(WorkQueue[Key]):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, random.Random(1))
        self.dates: list[float] = []

    def add_after(self, key: Key, delay: float) -> None:
        self.dates.append(delay)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = DictCluster()
        self.expectations = Expectations(self.clock)
        self.cache = Cache(self.expectations, lambda key: None)
        self.readings = Readings(self.clock)
        self.pusher = Quiet()
        self.heard = Heard()
        self.queue = Dates(self.clock)
        self.seen: list[Snapshot] = []
        self.restored: list[Mapping[str, Any]] = []
        self.plan: Callable[[Snapshot], Plan] = lambda snapshot: EMPTY
        self.reconciler = Reconciler(
            core=Core(self._decide, self._restore, ThreadPoolExecutor(1), {"worker_image": "w"}),
            cluster=self.cluster,
            cache=self.cache,
            expectations=self.expectations,
            readings=self.readings,
            actor=Actor(self.cluster, self.cache, self.expectations, self.pusher),
            pusher=self.pusher,
            events=self.heard,
            queue=self.queue,
            clock=self.clock,
            telemetry=Telemetry(),
        )
        self.put_pool(pool_record())
        self.cache.synced = True

    def put_pool(self, record: PoolRecord) -> None:
        self.cluster.pools[record.key] = record
        self.cache.put(record)

    def _decide(self, snapshot: Snapshot) -> Plan:
        self.seen.append(snapshot)
        return self.plan(snapshot)

    def _restore(self, status: Mapping[str, Any], pods: Any) -> PoolMemory:
        self.restored.append(status)
        return PoolMemory()

    async def once(self) -> None:
        await self.reconciler(KEY, 0.0)


def create(slot: int = 0, name: str = "llama-0-x") -> CreatePod:
    manifest = {
        "metadata": {
            "name": name,
            "labels": {"evenflow.dev/pool": "llama", "evenflow.dev/slot": str(slot)},
            "ownerReferences": [{"uid": "pool-1", "controller": True}],
        }
    }
    return CreatePod(slot, manifest, Decision("CreatePod", "SlotEmpty", "create a pod", {}, slot))


def planned(*commands: Any, **more: Any) -> Callable[[Snapshot], Plan]:
    decisions = tuple(command.decision for command in commands if hasattr(command, "decision"))
    fields: dict[str, Any] = {"status": None, "memory": PoolMemory(), "requeue_after": None}
    return lambda snapshot: Plan(commands=tuple(commands), decisions=decisions, **{**fields, **more})


async def test_nothing_is_decided_before_the_first_lists_are_complete() -> None:
    bench = Bench()
    bench.cache.synced = False
    with pytest.raises(Retry):
        await bench.once()
    assert bench.seen == []


async def test_a_pass_acts_reports_and_writes_the_status() -> None:
    bench = Bench()
    bench.plan = planned(create(), status={"replicas": 1}, requeue_after=7.0)
    await bench.once()
    assert bench.cluster.writes == [("create", "llama-0-x"), ("status", "llama")]
    assert bench.cluster.statuses == [{"replicas": 1}]
    assert bench.heard.events == [(False, "SlotEmpty", "create a pod")]
    assert bench.queue.dates == [7.0]


async def test_a_quiet_pool_is_still_looked_at_now_and_then_and_nothing_is_written() -> None:
    bench = Bench()
    await bench.once()
    assert bench.cluster.writes == []
    assert bench.queue.dates == [SLOWEST_LOOK_SECONDS]


async def test_memory_is_restored_once_from_the_live_status_and_kept() -> None:
    bench = Bench()
    kept = PoolMemory(observed_at=5.0)
    bench.plan = lambda snapshot: replace(EMPTY, memory=kept)
    await bench.once()
    await bench.once()
    assert len(bench.restored) == 1
    assert bench.seen[1].memory == kept


async def test_a_pool_made_again_under_the_name_starts_with_no_memory() -> None:
    bench = Bench()
    bench.plan = lambda snapshot: replace(EMPTY, memory=PoolMemory(observed_at=5.0))
    await bench.once()
    bench.cache.drop("pools", "pool-1")
    bench.put_pool(pool_record(uid="pool-2"))
    await bench.once()
    assert len(bench.restored) == 2
    assert bench.seen[1].uid == "pool-2"
    assert bench.seen[1].memory == PoolMemory()


async def test_when_the_clock_is_set_back_samples_of_the_future_are_forgotten_and_own_writes_are_not() -> None:
    bench = Bench()
    await bench.once()
    bench.cache.put(PodRecord(NAMESPACE, "llama", pod_view(0)))
    reading = Reading(bench.clock.now(), "Scrape", EngineCounters(waiting=1.0))
    bench.readings.put_sample(KEY, Sample({"pod-0": reading}), ["pod-0"])
    bench.expectations.patch(KEY, 0, "llama-0-aaaaaa", "pod-0", "10")
    bench.clock.wall -= 3.0
    await bench.once()
    assert (len(bench.restored), len(bench.seen[-1].readings)) == (1, 1), "a clock that is disciplined a little"
    bench.clock.wall -= 3600.0
    await bench.once()
    assert (len(bench.restored), len(bench.seen[-1].readings)) == (2, 0)
    assert bench.seen[-1].unsettled_slots == {0}
    await bench.once()
    assert len(bench.restored) == 2


async def test_a_stale_cache_of_a_pool_that_is_gone_decides_nothing() -> None:
    bench = Bench()
    bench.cluster.pools.clear()
    with pytest.raises(Retry):
        await bench.once()
    assert bench.seen == []


async def test_a_deleted_pool_is_forgotten_and_left_to_the_garbage_collector() -> None:
    bench = Bench()
    await bench.once()
    bench.put_pool(replace(pool_record(), deleting=True, resource_version="2"))
    await bench.once()
    assert len(bench.seen) == 1
    assert bench.cluster.writes == []


async def test_a_pool_that_changed_while_it_was_decided_about_is_decided_again() -> None:
    bench = Bench()

    def change_meanwhile(snapshot: Snapshot) -> Plan:
        bench.put_pool(replace(pool_record(generation=2), resource_version="9"))
        return planned(create())(snapshot)

    bench.plan = change_meanwhile
    with pytest.raises(Retry) as caught:
        await bench.once()
    assert caught.value.after == 0.0
    assert bench.cluster.writes == []


async def test_a_status_that_cannot_be_written_is_written_whole_next_time() -> None:
    bench = Bench()
    written = PoolMemory(written_status={"replicas": 1}, status_written_at=1.0)
    bench.plan = planned(status={"replicas": 1}, memory=written)
    bench.cluster.fail_before = lambda verb, name: ApiError(403, "Forbidden", "no") if verb == "status" else None
    with pytest.raises(Retry):
        await bench.once()
    await_plan = planned()
    bench.plan = await_plan
    await bench.once()
    assert bench.seen[1].memory.status_unknown


async def test_a_status_write_that_fails_once_is_tried_again_at_once() -> None:
    bench = Bench()
    failures = [ApiError(503, "ServiceUnavailable", ""), ApiError(409, "Conflict", "")]
    bench.cluster.fail_before = lambda verb, name: failures.pop() if verb == "status" and failures else None
    bench.plan = planned(status={"replicas": 1})
    await bench.once()
    assert bench.cluster.statuses == [{"replicas": 1}]


async def test_a_refused_create_is_known_to_the_next_decision() -> None:
    bench = Bench()
    bench.plan = planned(create(), status={"decisions": []})
    bench.cluster.fail_before = lambda verb, name: (
        ApiError(403, "Forbidden", "exceeded quota") if verb == "create" else None
    )
    with pytest.raises(Retry):
        await bench.once()
    assert bench.heard.events == [], "Degraded tells it, in the next pass"
    bench.plan = lambda snapshot: replace(EMPTY, memory=snapshot.memory)
    await bench.once()
    assert "exceeded quota" in bench.seen[1].create_refusals[0]
    assert bench.seen[1].memory.backoff[0].until == pytest.approx(bench.clock.now() + 10.0)
    bench.cache.put(PodRecord(NAMESPACE, "llama", pod_view(0)))
    await bench.once()
    assert bench.seen[2].create_refusals == {}


async def test_a_removed_class_is_a_warning_and_other_decisions_are_not(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    caplog.set_level("INFO")
    removed = Decision("UpdateService", "ClassRemoved", "class code is gone", {})
    drifted = Decision("UpdateService", "ServiceDrifted", "restore it", {})
    bench.plan = lambda snapshot: replace(EMPTY, decisions=(removed, drifted))
    await bench.once()
    assert bench.heard.events == [
        (True, "ClassRemoved", "class code is gone"),
        (False, "ServiceDrifted", "restore it"),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_refused_service_is_told() -> None:
    bench = Bench()
    manifest = {"metadata": {"name": "llama"}, "spec": {"selector": {}, "ports": []}}
    bench.plan = planned(PutService(manifest))
    bench.cluster.fail_before = lambda verb, name: ApiError(403, "Forbidden", "no Services for you")
    with pytest.raises(Retry):
        await bench.once()
    ((warning, reason, message),) = bench.heard.events
    assert (warning, reason) == (True, "CreateRefused")
    assert "no Services for you" in message


async def test_a_refused_write_of_replicas_is_not_told_as_a_refused_create() -> None:
    bench = Bench()
    bench.plan = planned(ScalePool(5, Decision("Scale", "LoadAboveTarget", "replicas 2 -> 5", {"replicas": "5"})))
    bench.cluster.fail_before = lambda verb, name: ApiError(403, "Forbidden", "no patch of llmservingpools/scale")
    with pytest.raises(Retry):
        await bench.once()
    ((warning, reason, message),) = bench.heard.events
    assert (warning, reason) == (True, "LoadAboveTarget")
    assert message.startswith("scale to 5: 403")


async def test_a_refused_write_of_replicas_is_known_to_decisions_until_one_is_taken_or_none_is_wanted() -> None:
    bench = Bench()
    scale = planned(ScalePool(5, Decision("Scale", "LoadAboveTarget", "replicas 2 -> 5", {"replicas": "5"})))
    refusal, outage = ApiError(403, "Forbidden", "no patch"), ApiError(503, "ServiceUnavailable", "")
    for answers, plan in (([refusal, outage, None], scale), ([refusal], scale), ([None], planned())):
        bench.plan = plan
        for answer in answers:
            bench.cluster.fail_before = lambda verb, name, answer=answer: answer
            with nullcontext() if answer is None else pytest.raises(Retry):
                await bench.once()
    bench.plan = planned()
    await bench.once()
    known = [None if one.scale_refusal is None else one.scale_refusal[:15] for one in bench.seen]
    assert known == [None, "scale to 5: 403", "scale to 5: 403", None, "scale to 5: 403", None]


async def test_a_notice_becomes_one_event_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    begun = Notice("Degraded", True, "PodFailed", "llama-0-x: CrashLoopBackOff")
    over = Notice("Degraded", False, "AsExpected", "PodFailed is over: nothing is wrong")
    bench.plan = planned(notices=(begun, over))
    caplog.set_level("INFO")
    await bench.once()
    assert bench.heard.events == [(one.warning, one.reason, one.message) for one in (begun, over)]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "pool serving/llama: Degraded PodFailed: llama-0-x: CrashLoopBackOff"),
        ("INFO", "pool serving/llama: Degraded AsExpected: PodFailed is over: nothing is wrong"),
    ]


async def test_an_answer_that_was_lost_leaves_the_slot_alone_until_a_list_was_seen() -> None:
    bench = Bench()
    bench.plan = planned(create())
    bench.cluster.fail_after = lambda verb, name: ApiError(0, "Timeout", "")
    with pytest.raises(Retry):
        await bench.once()
    bench.plan = planned()
    await bench.once()
    assert bench.seen[1].unsettled_slots == {0}
    assert bench.queue.dates[-1] <= 1.0, "it is verified soon"
    bench.clock.at += 1.5
    await bench.once()
    assert bench.seen[2].unsettled_slots == frozenset()
    assert [pod.name for pod in bench.seen[2].pods] == ["llama-0-x"], "the LIST found that it had happened"


async def test_a_write_that_never_happened_is_decided_again_after_a_list() -> None:
    bench = Bench()
    bench.plan = planned(create())
    bench.cluster.fail_before = lambda verb, name: ApiError(0, "ClientConnectorError", "")
    with pytest.raises(Retry):
        await bench.once()
    bench.clock.at += 1.5
    bench.plan = planned()
    await bench.once()
    assert bench.seen[1].unsettled_slots == frozenset()
    assert bench.seen[1].pods == ()


async def test_a_name_taken_by_a_foreign_service_is_watched_until_it_is_free() -> None:
    bench = Bench()
    bench.cluster.services["llama"] = service_view(owner_uid=None, pool=None)
    service = {"metadata": {"name": "llama"}, "spec": {"selector": {}, "ports": []}}
    bench.plan = planned(PutService(service))
    with pytest.raises(Retry):
        await bench.once()
    bench.plan = planned()
    await bench.once()
    assert [view.owner_uid for view in bench.seen[1].services] == [None]
    bench.cluster.services.clear()
    bench.clock.at += FOREIGN_CHECK_SECONDS + 1
    await bench.once()
    assert bench.seen[2].services == ()


async def test_a_throttled_api_server_is_obeyed() -> None:
    bench = Bench()
    bench.plan = planned(create())
    bench.cluster.fail_before = lambda verb, name: ApiError(429, "TooManyRequests", "", retry_after=13.0)
    with pytest.raises(Retry) as caught:
        await bench.once()
    assert caught.value.after == 13.0


async def test_a_token_that_cannot_be_had_is_known_to_the_decision() -> None:
    bench = Bench()
    bench.pusher.problem = "Secret serving/admin: 404 NotFound"
    await bench.once()
    assert bench.seen[0].admin_token_problem == "Secret serving/admin: 404 NotFound"
    assert bench.seen[0].extra == {"worker_image": "w"}
