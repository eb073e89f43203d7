import asyncio
import random
import threading

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
        self.unreadable: Identity | None = None
        """An object that shows among identities and never as a record."""
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
        odd = [self.unreadable] if self.unreadable is not None else []
        return odd + [
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
            patience=60.0,
        )
        self.cache.synced = True

    def pod(self, slot: int, *, cached: bool, listed: bool) -> PodRecord:
        record = PodRecord(NAMESPACE, "llama", pod_view(slot))
        if cached:
            self.cache.put(record)
        if listed:
            self.cluster.truth[record.view.uid] = record
        return record


def test_first_lists_are_complete_when_the_watches_have_shown_what_there_is() -> None:
    async def work() -> None:
        bench = Bench()
        missing = bench.pod(0, cached=False, listed=True)
        bench.pod(1, cached=True, listed=True)
        gone = bench.pod(2, cached=True, listed=False)
        caught_up = asyncio.create_task(bench.watchdog.catch_up())
        await asyncio.sleep(20)
        assert not caught_up.done()
        bench.cache.put(missing)
        await asyncio.sleep(20)
        assert not caught_up.done(), "a pod that is gone still stands there"
        bench.cache.drop("pods", gone.view.uid)
        await asyncio.sleep(2)
        await caught_up
        assert bench.cluster.lists == [("identities", "pods")]

    travel(work)


def test_nothing_at_all_is_complete_at_once() -> None:
    async def work() -> None:
        bench = Bench()
        began = asyncio.get_running_loop().time()
        await bench.watchdog.catch_up()
        assert asyncio.get_running_loop().time() == began

    travel(work)


def test_first_lists_that_the_watches_never_complete_are_read_in_their_stead() -> None:
    async def work() -> None:
        bench = Bench()
        lost = bench.pod(0, cached=False, listed=True)
        await bench.watchdog.catch_up()
        assert bench.cluster.lists == [("identities", "pods"), ("records", "pods")]
        assert bench.cache.pods(KEY) == (lost.view,)

    travel(work)


def test_an_object_that_nobody_can_read_doesnt_keep_the_others_waiting() -> None:
    async def work() -> None:
        bench = Bench()
        bench.cluster.unreadable = Identity(NAMESPACE, "odd", "uid-odd", "1")
        began = asyncio.get_running_loop().time()
        await bench.watchdog.catch_up()
        assert asyncio.get_running_loop().time() - began < 120

    travel(work)


def test_a_first_list_that_fails_is_told() -> None:
    async def work() -> None:
        bench = Bench()
        bench.cluster.trouble = ApiError(503, "ServiceUnavailable", "not now")
        with pytest.raises(ApiError):
            await bench.watchdog.catch_up()

    travel(work)


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


async def test_news_from_another_thread_arrive_in_order_and_once() -> None:
    told: list[Key] = []
    cache = Cache(Expectations(ManualClock()), told.append)
    feed = Feed(cache, asyncio.get_running_loop())

    def use() -> None:
        for version in range(1, 200):
            view = pod_view(0, resource_version=str(version), restarts=version)
            feed.put("pods", view.uid, PodRecord(NAMESPACE, "llama", view))
        feed.put("pods", "pod-1", PodRecord(NAMESPACE, "llama", pod_view(1)))
        feed.drop("pods", "pod-1", "99")

    thread = threading.Thread(target=use)
    thread.start()
    # Without giving way to the loop: what came meanwhile arrives as one.
    thread.join()
    await asyncio.sleep(0)
    assert [view.restarts for view in cache.pods(KEY)] == [199]
    assert told == [KEY]


def test_a_feed_outlives_its_loop_quietly() -> None:
    loop = asyncio.new_event_loop()
    cache = Cache(Expectations(ManualClock()), lambda key: None)
    feed = Feed(cache, loop)
    loop.close()
    feed.put("pods", "pod-0", PodRecord(NAMESPACE, "llama", pod_view(0)))
    assert cache.pods(KEY) == ()
