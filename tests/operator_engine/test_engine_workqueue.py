import asyncio
import itertools
import random
from collections import Counter

import pytest
from engine_kit import LoopClock, travel

from evenflow_operator.engine.workqueue import Backoff, Retry, WorkQueue


def queue(**more: object) -> WorkQueue[str]:
    return WorkQueue(LoopClock(), random.Random(7), **more)  # type: ignore[arg-type]


def test_a_key_added_many_times_is_worked_on_once() -> None:
    async def work() -> Counter[str]:
        seen: Counter[str] = Counter()
        keys = queue()
        for _ in range(100):
            keys.add("a")
        keys.add("b")

        async def handle(key: str, waited: float) -> None:
            seen[key] += 1

        task = asyncio.create_task(keys.run(handle, workers=3))
        await asyncio.sleep(5)
        task.cancel()
        return seen

    assert travel(work) == {"a": 1, "b": 1}


def test_one_worker_per_key_and_a_change_meanwhile_is_never_lost() -> None:
    async def work() -> tuple[int, int]:
        keys = queue()
        active, most, passes = 0, 0, 0

        async def handle(key: str, waited: float) -> None:
            nonlocal active, most, passes
            active, passes = active + 1, passes + 1
            most = max(most, active)
            if passes == 1:
                keys.add(key)
                keys.add(key)
            await asyncio.sleep(1)
            active -= 1

        keys.add("a")
        task = asyncio.create_task(keys.run(handle, workers=4))
        await asyncio.sleep(10)
        task.cancel()
        return most, passes

    assert travel(work) == (1, 2)


def test_different_keys_are_worked_on_at_once() -> None:
    async def work() -> float:
        keys = queue()
        done: list[float] = []

        async def handle(key: str, waited: float) -> None:
            await asyncio.sleep(1)
            done.append(asyncio.get_running_loop().time())

        start = asyncio.get_running_loop().time()
        for key in "abcd":
            keys.add(key)
        task = asyncio.create_task(keys.run(handle, workers=4))
        await asyncio.sleep(3)
        task.cancel()
        return max(done) - start

    assert travel(work) == pytest.approx(1.0)


def test_failures_back_off_with_jitter_and_success_forgets_them() -> None:
    async def work() -> list[float]:
        keys = queue(backoff=Backoff(first=1.0, longest=8.0))
        times: list[float] = []

        async def handle(key: str, waited: float) -> None:
            times.append(asyncio.get_running_loop().time())
            if len(times) != 6:
                raise RuntimeError("boom")

        keys.add("a")
        task = asyncio.create_task(keys.run(handle, workers=1))
        await asyncio.sleep(60)
        assert keys.failures("a") == 0
        keys.add("a")
        await asyncio.sleep(0.5)
        assert keys.failures("a") == 1
        task.cancel()
        return times

    times = travel(work)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)][:5]
    for gap, ceiling in zip(gaps, (1.0, 2.0, 4.0, 8.0, 8.0), strict=True):
        assert 0.5 * ceiling <= gap <= ceiling
    assert len({round(gap / ceiling, 6) for gap, ceiling in zip(gaps, (1, 2, 4, 8, 8), strict=True)}) > 1


def test_retry_names_its_own_delay() -> None:
    async def work() -> list[float]:
        keys = queue()
        times: list[float] = []

        async def handle(key: str, waited: float) -> None:
            times.append(asyncio.get_running_loop().time())
            if len(times) == 1:
                raise Retry("wait for the server", after=17.0)

        keys.add("a")
        task = asyncio.create_task(keys.run(handle, workers=1))
        await asyncio.sleep(60)
        task.cancel()
        return times

    first, second = travel(work)
    assert second - first == pytest.approx(17.0)


def test_the_earliest_date_wins_and_an_earlier_pass_serves_it() -> None:
    async def work() -> list[float]:
        keys = queue()
        times: list[float] = []
        start = asyncio.get_running_loop().time()

        async def handle(key: str, waited: float) -> None:
            times.append(asyncio.get_running_loop().time() - start)

        task = asyncio.create_task(keys.run(handle, workers=1))
        keys.add_after("a", 30.0)
        keys.add_after("a", 10.0)
        keys.add_after("a", 20.0)
        await asyncio.sleep(50)
        keys.add_after("a", 30.0)
        await asyncio.sleep(1)
        keys.add("a")
        await asyncio.sleep(60)
        task.cancel()
        return times

    assert travel(work) == pytest.approx([10.0, 51.0])


def test_starts_are_rate_limited_after_a_burst() -> None:
    async def work() -> list[float]:
        keys = queue(rate=10.0, burst=5.0)
        times: list[float] = []
        start = asyncio.get_running_loop().time()

        async def handle(key: str, waited: float) -> None:
            times.append(asyncio.get_running_loop().time() - start)

        for number in range(15):
            keys.add(f"k{number}")
        task = asyncio.create_task(keys.run(handle, workers=4))
        await asyncio.sleep(10)
        task.cancel()
        return times

    times = travel(work)
    assert len(times) == 15
    assert times[4] == 0.0
    assert times[-1] == pytest.approx(1.0, abs=0.15)


def test_a_key_that_always_comes_back_is_slowed_down_and_no_other_one() -> None:
    async def work() -> tuple[list[float], list[float]]:
        keys = queue(key_rate=2.0, key_burst=10.0)
        times: dict[str, list[float]] = {"undone": [], "calm": []}
        start = asyncio.get_running_loop().time()

        async def handle(key: str, waited: float) -> None:
            times[key].append(asyncio.get_running_loop().time() - start)
            await asyncio.sleep(0.01)
            if key == "undone":
                keys.add(key)

        task = asyncio.create_task(keys.run(handle, workers=2))
        keys.add("undone")
        for _ in range(4):
            await asyncio.sleep(15)
            keys.add("calm")
        await asyncio.sleep(1)
        task.cancel()
        return times["undone"], times["calm"]

    undone, calm = travel(work)
    assert undone[9] < 0.2
    assert 10 + 2 * 60 <= len(undone) <= 10 + 2 * 62
    assert max(later - earlier for earlier, later in itertools.pairwise(undone)) <= 0.52
    assert calm == pytest.approx([15.0, 30.0, 45.0, 60.0])


def test_a_key_that_rested_may_come_often_again() -> None:
    async def work() -> list[float]:
        keys = queue(key_rate=2.0, key_burst=3.0)
        times: list[float] = []
        start = asyncio.get_running_loop().time()

        async def handle(key: str, waited: float) -> None:
            times.append(asyncio.get_running_loop().time() - start)
            if len(times) % 5:
                keys.add(key)

        task = asyncio.create_task(keys.run(handle, workers=1))
        keys.add("a")
        await asyncio.sleep(20)
        keys.add("a")
        await asyncio.sleep(20)
        task.cancel()
        return times

    assert travel(work) == pytest.approx([0.0, 0.0, 0.0, 0.5, 1.0, 20.0, 20.0, 20.0, 20.5, 21.0], abs=0.01)


def test_a_full_queue_refuses_and_counts() -> None:
    async def work() -> None:
        keys = queue(bound=2)
        assert keys.add("a")
        assert keys.add("b")
        assert not keys.add("c")
        assert keys.add("a"), "a key that waits already is no new one"
        assert (len(keys), keys.refused) == (2, 1)

    travel(work)


def test_forget_drops_later_dates() -> None:
    async def work() -> int:
        keys = queue()
        passes = 0

        async def handle(key: str, waited: float) -> None:
            nonlocal passes
            passes += 1

        task = asyncio.create_task(keys.run(handle, workers=1))
        keys.add_after("a", 10.0)
        keys.forget("a")
        await asyncio.sleep(60)
        task.cancel()
        return passes

    assert travel(work) == 0


def test_the_time_waited_and_the_longest_pass_are_known() -> None:
    async def work() -> tuple[float, float]:
        keys = queue()
        waits: list[float] = []

        async def handle(key: str, waited: float) -> None:
            waits.append(waited)
            await asyncio.sleep(100)

        keys.add("a")
        await asyncio.sleep(3)
        task = asyncio.create_task(keys.run(handle, workers=1))
        await asyncio.sleep(7)
        longest = keys.longest_active()
        task.cancel()
        return waits[0], longest

    assert travel(work) == pytest.approx((3.0, 7.0))
