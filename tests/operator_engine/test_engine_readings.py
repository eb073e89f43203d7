import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine_kit import NAMESPACE, LoopClock, ManualClock, pod_view, pool_record, travel

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_operator.core.snapshot import EngineCounters, Reading
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.poller import DEADLINE_SECONDS, Poller
from evenflow_operator.engine.push import REFUSED_PAUSE_SECONDS, Pusher
from evenflow_operator.engine.readings import Readings
from evenflow_operator.engine.workqueue import WorkQueue
from evenflow_operator.ports import Key, PodRecord, Sample, Target, TokenUnavailable, WorkerError

KEY = (NAMESPACE, "llama")
STATE = WorkerState(3, "h", "sim", "evenflow", "SVF", 430_000, 16, 100, 5, 0)


def good(at: float, evictions: float = 1.0) -> Reading:
    return Reading(at, "Scrape", EngineCounters(evictions=evictions))


def bad(at: float, problem: str = "HTTP 500") -> Reading:
    return Reading(at, "Scrape", problem=problem)


def test_a_failed_sample_keeps_the_last_good_one_and_its_age() -> None:
    readings = Readings(ManualClock())
    readings.put_sample(KEY, Sample({"pod-0": good(10.0)}), ["pod-0"])
    readings.put_sample(KEY, Sample({"pod-0": bad(20.0)}), ["pod-0"])
    reading = readings.view(KEY, 90.0)["pod-0"]
    assert (reading.taken_at, reading.problem) == (10.0, "HTTP 500")
    assert reading.counters == EngineCounters(evictions=1.0)
    readings.put_sample(KEY, Sample({"pod-0": good(30.0)}), ["pod-0"])
    assert readings.view(KEY, 90.0)["pod-0"].problem is None


def test_a_source_that_fails_as_a_whole_changes_no_reading() -> None:
    readings = Readings(ManualClock())
    readings.put_sample(KEY, Sample({"pod-0": good(10.0)}), ["pod-0"])
    readings.put_sample(KEY, Sample(problem="Prometheus is down"), ["pod-0"])
    assert readings.source_problem(KEY) == "Prometheus is down"
    reading = readings.view(KEY, 90.0)["pod-0"]
    assert (reading.taken_at, reading.counters) == (10.0, EngineCounters(evictions=1.0))
    readings.put_sample(KEY, Sample({"pod-0": good(20.0)}), ["pod-0"])
    assert readings.source_problem(KEY) is None


def test_a_pod_that_the_source_does_not_name_says_so() -> None:
    readings = Readings(ManualClock())
    readings.put_sample(KEY, Sample({}), ["pod-0"])
    assert readings.view(KEY, 90.0)["pod-0"].counters is None
    assert "nothing about this pod" in (readings.view(KEY, 90.0)["pod-0"].problem or "")


def test_a_state_that_is_too_old_must_not_look_idle() -> None:
    clock = ManualClock()
    readings = Readings(clock)
    readings.put_state(KEY, "pod-0", STATE)
    clock.at += 90.0
    assert readings.view(KEY, 90.0)["pod-0"].state == STATE
    clock.at += 1.0
    assert readings.view(KEY, 90.0)["pod-0"].state is None


def test_an_answered_push_shows_at_once_and_never_backwards() -> None:
    readings = Readings(ManualClock())
    readings.put_state(KEY, "pod-0", STATE)
    config = WorkerConfig(generation=4)
    readings.applied(KEY, "pod-0", config, 4)
    state = readings.view(KEY, 90.0)["pod-0"].state
    assert state is not None
    assert (state.applied_generation, state.config_hash) == (4, config.content_hash())
    readings.applied(KEY, "pod-0", WorkerConfig(generation=2), 2)
    again = readings.view(KEY, 90.0)["pod-0"].state
    assert again is not None
    assert again.applied_generation == 4


def test_pods_that_are_gone_are_forgotten() -> None:
    readings = Readings(ManualClock())
    readings.put_sample(KEY, Sample({"pod-0": good(1.0), "pod-1": good(1.0)}), ["pod-0", "pod-1"])
    readings.retain(KEY, {"pod-1"})
    assert set(readings.view(KEY, 90.0)) == {"pod-1"}
    readings.forget(KEY)
    assert readings.view(KEY, 90.0) == {}


class Admin:
    """A worker whose answers a test sets; an exception is raised, a number slept."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"push": 4, "state": STATE, "lengths": WorkerLengths({})}
        self.pushed: list[tuple[str, int, str | None]] = []
        self.asked: list[str] = []

    async def _answer(self, what: str) -> Any:
        self.asked.append(what)
        answer = self.answers[what]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer

    async def push(self, ip: str, config: WorkerConfig, token: str | None) -> int:
        self.pushed.append((ip, config.generation, token))
        await self._answer("push")
        return config.generation

    async def state(self, ip: str) -> WorkerState:
        return await self._answer("state")  # type: ignore[no-any-return]

    async def lengths(self, ip: str) -> WorkerLengths:
        return await self._answer("lengths")  # type: ignore[no-any-return]


class Tokens:
    def __init__(self, token: str | None = "sesame") -> None:
        self.token = token

    async def admin_token(self, namespace: str, secret: str, key: str) -> str:
        if self.token is None:
            raise TokenUnavailable("not allowed")
        return self.token


def pusher(admin: Admin, readings: Readings, token: str | None = None) -> tuple[Pusher, list[Key], list[str]]:
    changed: list[Key] = []
    results: list[str] = []
    made = Pusher(admin, Tokens(token), readings, LoopClock(), changed.append, results.append)
    return made, changed, results


def test_a_push_in_the_background_records_its_answer_and_has_the_pool_looked_at() -> None:
    async def work() -> None:
        admin, readings = Admin(), Readings(LoopClock())
        readings.put_state(KEY, "pod-0", STATE)
        push, changed, results = pusher(admin, readings)
        push.submit(pool_record(), "pod-0", "127.77.0.1", WorkerConfig(generation=4))
        await asyncio.sleep(1)
        state = readings.view(KEY, 90.0)["pod-0"].state
        assert state is not None
        assert state.applied_generation == 4
        assert (changed, results) == ([KEY], ["applied"])
        assert admin.pushed == [("127.77.0.1", 4, None)]

    travel(work)


def test_one_push_per_pod_at_a_time_and_the_newest_wins() -> None:
    async def work() -> None:
        admin = Admin()
        admin.answers["push"] = 5.0
        push, _, _ = pusher(admin, Readings(LoopClock()))
        for generation in (1, 2, 3, 4):
            push.submit(pool_record(), "pod-0", "127.77.0.1", WorkerConfig(generation=generation))
            await asyncio.sleep(0.1)
        push.submit(pool_record(), "pod-1", "127.77.0.2", WorkerConfig(generation=9))
        await asyncio.sleep(20)
        assert [generation for ip, generation, _ in admin.pushed if ip == "127.77.0.1"] == [1, 4]
        assert ("127.77.0.2", 9, None) in admin.pushed

    travel(work)


def test_a_push_submitted_just_as_the_one_before_ends_is_not_lost() -> None:
    async def work() -> None:
        admin, push = Admin(), None

        def changed(key: Key) -> None:
            if len(admin.pushed) == 1:
                again = (pool_record(), "pod-0", "127.77.0.1", WorkerConfig(generation=5))
                asyncio.get_running_loop().call_soon(push.submit, *again)

        push = Pusher(admin, Tokens(None), Readings(LoopClock()), LoopClock(), changed, lambda result: None)
        push.submit(pool_record(), "pod-0", "127.77.0.1", WorkerConfig(generation=4))
        await asyncio.sleep(1)
        assert [generation for _, generation, _ in admin.pushed] == [4, 5]

    travel(work)


def test_a_worker_that_refuses_us_is_left_alone_for_a_while() -> None:
    async def work() -> None:
        admin = Admin()
        admin.answers["push"] = WorkerError(403, "closed")
        push, _, results = pusher(admin, Readings(LoopClock()))
        for _ in range(3):
            push.submit(pool_record(), "pod-0", "127.77.0.1", WorkerConfig(generation=4))
            await asyncio.sleep(1)
        assert results == ["refused"]
        await asyncio.sleep(REFUSED_PAUSE_SECONDS)
        push.submit(pool_record(), "pod-0", "127.77.0.1", WorkerConfig(generation=4))
        await asyncio.sleep(1)
        assert len(admin.pushed) == 2

    travel(work)


def test_the_pools_token_is_used_and_without_it_nothing_is_pushed() -> None:
    async def work() -> None:
        record = pool_record(adminTokenSecretRef={"name": "admin", "key": "token"})
        admin = Admin()
        push, _, _ = pusher(admin, Readings(LoopClock()), token="sesame")
        assert await push.token_problem(record) is None
        push.submit(record, "pod-0", "127.77.0.1", WorkerConfig(generation=4))
        await asyncio.sleep(1)
        assert admin.pushed == [("127.77.0.1", 4, "sesame")]
        without, _, results = pusher(admin, Readings(LoopClock()), token=None)
        assert await without.token_problem(record) == "not allowed"
        without.submit(record, "pod-0", "127.77.0.1", WorkerConfig(generation=5))
        await asyncio.sleep(1)
        assert (len(admin.pushed), results) == (1, ["no_token"])

    travel(work)


class Source:
    def __init__(self, name: str, delay: float = 0.0) -> None:
        self.name = name
        self.delay = delay
        self.asked: list[list[Target]] = []

    async def sample(self, targets: Sequence[Target]) -> Sample:
        self.asked.append(list(targets))
        await asyncio.sleep(self.delay)
        now = LoopClock().now()
        return Sample({target.uid: good(now) for target in targets})


class Bench:
    """A poller over a cache with one running pod."""

    def __init__(self, *, prometheus: Source | None = None, delay: float = 0.0, **spec: Any) -> None:
        clock = LoopClock()
        self.keys: list[Key] = []
        self.admin = Admin()
        self.readings = Readings(clock)
        self.scrape = Source("Scrape", delay)
        self.cache = Cache(Expectations(clock), lambda key: None)
        self.queue: WorkQueue[Key] = WorkQueue(clock, random.Random(1))
        sources: dict[Any, Any] = {"Scrape": self.scrape}
        if prometheus is not None:
            sources["Prometheus"] = prometheus
        self.poller = Poller(
            cache=self.cache,
            readings=self.readings,
            queue=self.queue,
            sources=sources,
            admin=self.admin,
            clock=clock,
            rng=random.Random(1),
        )
        self.cache.put(pool_record(**spec))
        self.add_pod(0)

    def add_pod(self, slot: int, **more: Any) -> None:
        self.cache.put(PodRecord(NAMESPACE, "llama", pod_view(slot, **more)))


def test_every_engine_is_sampled_at_the_interval_and_lengths_less_often() -> None:
    async def work() -> None:
        bench = Bench(metrics={"intervalSeconds": 2})
        bench.poller.touch(KEY)
        await asyncio.sleep(20.5)
        await bench.poller.close()
        assert 9 <= len(bench.scrape.asked) <= 12
        assert bench.admin.asked.count("state") == len(bench.scrape.asked)
        assert 2 <= bench.admin.asked.count("lengths") <= 3
        assert len(bench.queue) == 1, "the pool is to be looked at"
        reading = bench.readings.view(KEY, 90.0)["pod-0"]
        assert reading.state == STATE
        assert reading.counters is not None

    travel(work)


def test_lengths_are_asked_for_at_once_and_then_at_every_fourth_interval() -> None:
    async def work() -> None:
        bench = Bench(metrics={"intervalSeconds": 15})
        bench.poller.touch(KEY)
        await asyncio.sleep(10)
        assert bench.admin.asked.count("lengths") == 1
        await asyncio.sleep(600)
        await bench.poller.close()
        assert bench.admin.asked.count("state") >= 38
        assert 8 <= bench.admin.asked.count("lengths") <= 11

    travel(work)


def test_only_running_pods_with_an_address_are_asked() -> None:
    async def work() -> None:
        bench = Bench()
        bench.add_pod(1, phase="Pending")
        bench.add_pod(2, ip=None)
        bench.add_pod(3, deleting=True)
        await bench.poller.poll(KEY)
        assert [target.uid for target in bench.scrape.asked[0]] == ["pod-0", "pod-3"]

    travel(work)


def test_a_new_engine_does_not_wait_for_the_next_tick() -> None:
    async def work() -> None:
        bench = Bench(metrics={"intervalSeconds": 300, "staleAfterSeconds": 3600})
        bench.poller.touch(KEY)
        await asyncio.sleep(5)
        bench.add_pod(1)
        bench.poller.touch(KEY)
        await asyncio.sleep(5)
        await bench.poller.close()
        assert len(bench.scrape.asked) == 2
        assert len(bench.scrape.asked[1]) == 2

    travel(work)


def test_a_source_that_hangs_is_given_up_and_blocks_neither_states_nor_others() -> None:
    async def work() -> None:
        bench = Bench(delay=1e6)
        await bench.poller.poll(KEY)
        assert "no answer within" in (bench.readings.source_problem(KEY) or "")
        assert bench.readings.view(KEY, 90.0)["pod-0"].state == STATE
        assert len(bench.queue) == 1

    travel(work, limit=DEADLINE_SECONDS + 1)


def test_a_worker_that_does_not_answer_loses_nothing_that_is_known() -> None:
    async def work() -> None:
        bench = Bench()
        await bench.poller.poll(KEY)
        bench.admin.answers["state"] = WorkerError(0, "gone")
        await bench.poller.poll(KEY)
        assert bench.readings.view(KEY, 90.0)["pod-0"].state == STATE

    travel(work)


def test_the_source_is_the_pools_choice() -> None:
    async def work() -> None:
        for wanted, given, used in (
            ("Auto", False, "Scrape"),
            ("Auto", True, "Prometheus"),
            ("Scrape", True, "Scrape"),
            ("Prometheus", True, "Prometheus"),
        ):
            prometheus = Source("Prometheus")
            bench = Bench(prometheus=prometheus if given else None, metrics={"source": wanted})
            await bench.poller.poll(KEY)
            assert len((prometheus if used == "Prometheus" else bench.scrape).asked) == 1, (wanted, given)
        bench = Bench(metrics={"source": "Prometheus"})
        await bench.poller.poll(KEY)
        assert "--prometheus-url" in (bench.readings.source_problem(KEY) or "")

    travel(work)


def test_the_peak_window_covers_an_interval_of_the_engines_clock() -> None:
    async def work() -> None:
        for interval, scale, window in ((1, 1, "10s"), (15, 1, "30s"), (2, 20, "60s"), (300, 1, "60s")):
            engine = {"type": "Simulated", "simulated": {"timeScale": scale}}
            bench = Bench(metrics={"intervalSeconds": interval, "staleAfterSeconds": 3600}, engine=engine)
            await bench.poller.poll(KEY)
            assert bench.scrape.asked[0][0].peak_window == window

    travel(work)


def test_a_pool_that_is_gone_or_made_again_ends_its_loop() -> None:
    async def work() -> None:
        bench = Bench(metrics={"intervalSeconds": 1})
        bench.poller.touch(KEY)
        await asyncio.sleep(3)
        record = bench.cache.pool(KEY)
        assert record is not None
        bench.cache.put(replace(record, uid="pool-2"))
        bench.poller.touch(KEY)
        await asyncio.sleep(3)
        bench.cache.drop("pools", "pool-2")
        bench.poller.touch(KEY)
        asked = len(bench.scrape.asked)
        await asyncio.sleep(10)
        assert len(bench.scrape.asked) == asked
        await bench.poller.close()
        bench.cache.put(pool_record(uid="pool-3"))
        bench.poller.touch(KEY)
        await asyncio.sleep(3)
        assert len(bench.scrape.asked) == asked, "after close nothing starts again"

    travel(work)
