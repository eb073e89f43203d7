import asyncio
import random
import threading
from collections.abc import Callable

import pytest
from engine_kit import NAMESPACE, DictCluster, LoopClock, ManualClock, pod_view, pool_record, travel

from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.feed import Feed
from evenflow_operator.engine.watchdog import MAX_MISMATCHES, CacheMismatch, Watchdog
from evenflow_operator.engine.workqueue import WorkQueue
from evenflow_operator.ports import ApiError, Identity, Key, Kind, PodRecord, Record
from evenflow_operator.telemetry import Telemetry

KEY = (NAMESPACE, "llama")


class Listed(DictCluster):
    """Lists what a test says."""

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.cache = cache
        self.truth: dict[str, PodRecord] = {}
        self.trouble: ApiError | None = None
        self.growing = False
        """Whether a pod that no watch tells about comes with every check."""
        self.lists: list[tuple[str, Kind]] = []

    async def list_records(self, kind: Kind, namespace: str | None) -> list[Record]:
        self.lists.append(("records", kind))
        return list(self.truth.values()) if kind == "pods" else []

    async def list_identities(self, kind: Kind, namespace: str | None) -> list[Identity]:
        self.lists.append(("identities", kind))
        if self.trouble is not None:
            raise self.trouble
        if self.growing:
            record = PodRecord(NAMESPACE, "llama", pod_view(len(self.truth)))
            self.truth[record.view.uid] = record
        return [
            Identity(record.namespace, record.view.name, record.view.uid, record.view.resource_version)
            for record in (self.truth.values() if kind == "pods" else ())
        ]


class Bench:
    def __init__(self) -> None:
        clock = LoopClock()
        self.cache = Cache(Expectations(clock), lambda key: None)
        self.cluster = Listed(self.cache)
        self.queue: WorkQueue[Key] = WorkQueue(clock, random.Random(1))
        self.watchdog = Watchdog(
            cluster=self.cluster,
            cache=self.cache,
            queue=self.queue,
            telemetry=Telemetry(),
            kinds=["pods"],
            namespaces=(),
            every=60.0,
            grace=10.0,
        )
        self.cache.synced = True

    def pod(self, slot: int, *, cached: bool, listed: bool) -> PodRecord:
        record = PodRecord(NAMESPACE, "llama", pod_view(slot))
        if cached:
            self.cache.put(record)
        if listed:
            self.cluster.truth[record.view.uid] = record
        return record


def test_agreement_costs_one_cheap_list() -> None:
    async def work() -> None:
        bench = Bench()
        bench.pod(0, cached=True, listed=True)
        assert await bench.watchdog.check() == 0
        assert bench.cluster.lists == [("identities", "pods")]

    travel(work)


def test_what_the_watch_missed_is_put_right() -> None:
    async def work() -> None:
        bench = Bench()
        bench.pod(0, cached=True, listed=False)
        bench.pod(1, cached=False, listed=True)
        assert await bench.watchdog.check() == 2
        assert [view.slot for view in bench.cache.pods(KEY)] == [1]

    travel(work)


def test_a_watch_that_is_only_late_is_no_mismatch() -> None:
    async def work() -> None:
        bench = Bench()
        record = bench.pod(1, cached=False, listed=True)
        checking = asyncio.create_task(bench.watchdog.check())
        await asyncio.sleep(3)
        bench.cache.put(record)
        assert await checking == 0

    travel(work)


def test_mismatches_that_come_again_and_again_end_the_process() -> None:
    async def work() -> int:
        bench = Bench()
        bench.cluster.growing = True
        with pytest.raises(CacheMismatch):
            await bench.watchdog.run()
        return bench.cluster.lists.count(("records", "pods"))

    assert travel(work) == MAX_MISMATCHES


def test_a_single_mismatch_and_api_errors_do_not() -> None:
    async def work() -> None:
        bench = Bench()
        task = asyncio.create_task(bench.watchdog.run())
        bench.pod(0, cached=False, listed=True)
        await asyncio.sleep(300)
        bench.cluster.trouble = ApiError(503, "ServiceUnavailable", "")
        await asyncio.sleep(300)
        assert not task.done()

    travel(work)


def test_a_kick_brings_the_check_forward_and_refused_keys_come_back() -> None:
    async def work() -> None:
        bench = Bench()
        bench.cache.put(pool_record())
        task = asyncio.create_task(bench.watchdog.run())
        await asyncio.sleep(1)
        assert bench.cluster.lists == []
        bench.watchdog.kick.set()
        await asyncio.sleep(1)
        assert len(bench.cluster.lists) == 1
        assert len(bench.queue) == 0
        bench.queue.refused = 1
        await asyncio.sleep(60)
        assert len(bench.queue) == 1
        task.cancel()

    travel(work)


async def _fed(use: Callable[[Feed], None]) -> tuple[Cache, list[str]]:
    told: list[str] = []
    cache = Cache(Expectations(ManualClock()), lambda key: told.append("/".join(key)))
    feed = Feed(cache, asyncio.get_running_loop(), lambda: told.append("complete"))
    thread = threading.Thread(target=use, args=(feed,))
    thread.start()
    await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)
    return cache, told


async def test_news_from_another_thread_arrive_in_order_and_once() -> None:
    def use(feed: Feed) -> None:
        for version in range(1, 200):
            view = pod_view(0, resource_version=str(version), restarts=version)
            feed.put("pods", view.uid, PodRecord(NAMESPACE, "llama", view))
        feed.put("pods", "pod-1", PodRecord(NAMESPACE, "llama", pod_view(1)))
        feed.drop("pods", "pod-1", "99")
        feed.complete()

    cache, told = await _fed(use)
    assert [view.restarts for view in cache.pods(KEY)] == [199]
    assert cache.synced
    assert told[-1] == "complete"
    assert told.count("complete") == 1


async def test_the_lists_are_complete_only_after_what_came_before() -> None:
    def use(feed: Feed) -> None:
        feed.put("pods", "pod-0", PodRecord(NAMESPACE, "llama", pod_view(0)))
        feed.complete()
        feed.complete()

    cache, told = await _fed(use)
    assert told == [f"{NAMESPACE}/llama", "complete"]
    assert cache.synced


def test_a_feed_outlives_its_loop_quietly() -> None:
    loop = asyncio.new_event_loop()
    cache = Cache(Expectations(ManualClock()), lambda key: None)
    feed = Feed(cache, loop, lambda: None)
    loop.close()
    feed.put("pods", "pod-0", PodRecord(NAMESPACE, "llama", pod_view(0)))
    assert cache.pods(KEY) == ()
