import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_kit import stage
from engine_kit import LoopClock, travel

from evenflow_operator.adapters.clock import SystemClock
from evenflow_operator.adapters.leases import KubeLeases
from evenflow_operator.engine.lease import Elector, LeadershipLost, LeaseTimes
from evenflow_operator.ports import ApiError, LeaseRecord

TIMES = LeaseTimes(duration=15, renew_deadline=10, retry=2)


class OneLease:
    """A Lease in memory, with optimistic concurrency; `trouble` may fail a call or delay it."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.trouble: Callable[[str], float | ApiError | None] = lambda verb: None
        self.slow_answers = 0.0
        """Seconds between a write and its answer."""
        self._versions = itertools.count(1)

    async def _maybe(self, verb: str) -> None:
        trouble = self.trouble(verb)
        if isinstance(trouble, ApiError):
            raise trouble
        if trouble is not None:
            await asyncio.sleep(trouble)

    async def get(self) -> LeaseRecord | None:
        await self._maybe("get")
        return self.record

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        await self._maybe("create")
        if self.record is not None:
            raise ApiError(409, "AlreadyExists", "")
        stored = self._store(record)
        await asyncio.sleep(self.slow_answers)
        return stored

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        await self._maybe("replace")
        if self.record is None or record.resource_version != self.record.resource_version:
            raise ApiError(409, "Conflict", "")
        return self._store(record)

    def _store(self, record: LeaseRecord) -> LeaseRecord:
        self.record = replace(record, resource_version=str(next(self._versions)))
        return self.record


def elector(leases: OneLease, name: str) -> Elector:
    return Elector(leases, name, LoopClock(), random.Random(name), TIMES)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_creates_the_lease_and_keeps_it() -> None:
    async def work() -> None:
        leases = OneLease()
        first, second = elector(leases, "a"), elector(leases, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(300)
        assert first.leading
        assert not second.leading
        assert not waiting.done()
        assert not holding.done()

    travel(work)


def test_a_standby_names_the_holder_once_and_again_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        leases = OneLease()
        first, second, third = (elector(leases, name) for name in "abc")
        await first.acquire()
        waiting = asyncio.create_task(third.acquire())
        await asyncio.sleep(5)
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(300)
        holding.cancel()
        await first.release()
        await second.acquire()
        holding = asyncio.create_task(second.hold())
        await asyncio.sleep(300)
        assert not waiting.done()

    caplog.set_level("INFO")
    travel(work)
    told = [record.message for record in caplog.records if record.message.startswith("standing by")]
    assert [line.split()[2] for line in told] == ["a", "b"]
    # The clock began at 22:30:00; the lease was written just then, for 15 s.
    assert "until 22:30:15 UTC" in told[0]


def test_a_failure_to_get_or_renew_the_lease_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    def gone(verb: str) -> ApiError:
        return ApiError(503, "ServiceUnavailable", "starting")

    async def work() -> None:
        leases = OneLease()
        leases.trouble = gone
        first = elector(leases, "a")
        acquiring = asyncio.create_task(first.acquire())
        await asyncio.sleep(60)
        leases.trouble = lambda verb: None
        await acquiring
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(60)
        leases.trouble = gone
        await asyncio.sleep(5)
        leases.trouble = lambda verb: None
        await asyncio.sleep(60)
        assert not holding.done()

    caplog.set_level("INFO")
    travel(work)
    assert [record.message for record in caplog.records] == [
        "lease not acquired, trying again: 503 ServiceUnavailable: starting",
        "the lease can be had again",
        "leading as a",
        "lease not renewed, trying again: 503 ServiceUnavailable: starting",
        "the lease can be had again",
    ]


def test_a_released_lease_is_taken_within_seconds() -> None:
    async def work() -> float:
        leases = OneLease()
        first, second = elector(leases, "a"), elector(leases, "b")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(30)
        released = now()
        await first.release()
        assert not first.leading
        await waiting
        assert leases.record is not None
        assert (leases.record.holder, leases.record.transitions) == ("b", 1)
        return now() - released

    assert travel(work) <= 3.0


def test_a_killed_leader_is_followed_after_its_lease_has_run_out_and_not_before() -> None:
    async def work() -> float:
        leases = OneLease()
        first, second = elector(leases, "a"), elector(leases, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(60)
        holding.cancel()
        killed = now()
        await waiting
        return now() - killed

    assert TIMES.duration - TIMES.retry <= travel(work) <= TIMES.duration + 2 * TIMES.retry * 1.2


def test_a_leader_without_the_api_gives_up_before_another_may_take_over() -> None:
    async def work() -> tuple[float, float]:
        leases = OneLease()
        first, second = elector(leases, "a"), elector(leases, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(20)
        cut = now()
        leases.trouble = lambda verb: ApiError(503, "ServiceUnavailable", "")
        with pytest.raises(LeadershipLost, match="not renewed"):
            await holding
        lost = now() - cut
        assert not first.leading
        leases.trouble = lambda verb: None
        await second.acquire()
        return lost, now() - cut

    lost, taken = travel(work)
    assert lost <= TIMES.renew_deadline + TIMES.retry
    assert taken > lost


def test_a_renewal_that_hangs_counts_as_not_renewed() -> None:
    async def work() -> float:
        leases = OneLease()
        first = elector(leases, "a")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(20)
        leases.trouble = lambda verb: 1e6
        started = now()
        with pytest.raises(LeadershipLost):
            await holding
        return now() - started

    assert travel(work) <= TIMES.renew_deadline + 0.01


def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    """The others count from when the API server wrote it, which may be long before its answer is here."""

    async def work() -> None:
        leases = OneLease()
        leases.slow_answers = 8.0
        first, second = elector(leases, "a"), elector(leases, "b")
        taking = asyncio.create_task(second.acquire())
        await first.acquire()
        leases.trouble = lambda verb: ApiError(503, "ServiceUnavailable", "") if verb == "replace" else None
        holding = asyncio.create_task(first.hold())
        while not holding.done():
            await asyncio.sleep(0.1)
        leases.trouble = lambda verb: None
        assert not taking.done(), "the second leads although the first has not given up"
        with pytest.raises(LeadershipLost):
            holding.result()
        assert now() - 1000.0 <= TIMES.renew_deadline + 0.2
        taking.cancel()

    travel(work)


@pytest.mark.parametrize("trouble", [ApiError(503, "ServiceUnavailable", ""), 1e6])
def test_who_cannot_tell_whether_somebody_else_holds_the_lease_gives_up_in_time(trouble: float | ApiError) -> None:
    async def work() -> float:
        leases = OneLease()
        first = elector(leases, "a")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(20)
        assert leases.record is not None
        leases._store(replace(leases.record, holder="b"))
        leases.trouble = lambda verb: trouble if verb == "get" else None
        started = now()
        with pytest.raises(LeadershipLost):
            await holding
        return now() - started

    assert travel(work) <= TIMES.renew_deadline + 0.01


def test_a_pause_between_two_renewals_does_not_outlast_the_deadline() -> None:
    async def work() -> float:
        leases = OneLease()
        times = LeaseTimes(duration=10.5, renew_deadline=10, retry=4)
        first = Elector(leases, "a", LoopClock(), random.Random(1), times)
        await first.acquire()
        leases.trouble = lambda verb: ApiError(503, "ServiceUnavailable", "")
        with pytest.raises(LeadershipLost):
            await first.hold()
        return now() - 1000.0

    assert travel(work) <= 10.1


def test_the_written_duration_is_never_shorter_than_the_deadline() -> None:
    async def work() -> None:
        leases = OneLease()
        times = LeaseTimes(duration=1.4, renew_deadline=1.3, retry=0.1)
        await Elector(leases, "a", LoopClock(), random.Random(1), times).acquire()
        assert leases.record is not None
        assert leases.record.duration_seconds >= times.renew_deadline

    travel(work)


def test_a_lease_taken_by_somebody_else_is_lost_at_once() -> None:
    async def work() -> None:
        leases = OneLease()
        first = elector(leases, "a")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(10)
        assert leases.record is not None
        leases._store(replace(leases.record, holder="b"))
        started = now()
        with pytest.raises(LeadershipLost, match="held by b"):
            await holding
        assert now() - started <= TIMES.retry

    travel(work)


def test_a_renewal_whose_answer_was_lost_is_no_loss() -> None:
    async def work() -> None:
        leases = OneLease()
        first = elector(leases, "a")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(10)
        assert leases.record is not None
        leases._store(leases.record)
        await asyncio.sleep(100)
        assert first.leading
        assert not holding.done()

    travel(work)


def test_the_clock_of_the_other_computer_does_not_matter() -> None:
    async def work() -> float:
        leases = OneLease()
        leases.record = LeaseRecord("dead", 15, "1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000000Z", 0, "7")
        started = now()
        await elector(leases, "a").acquire()
        return now() - started

    assert travel(work) >= 15.0, "a lease that looks old may be held by a computer whose clock is wrong"


def test_two_that_race_for_a_free_lease_never_both_win() -> None:
    async def work() -> None:
        leases = OneLease()
        both = [elector(leases, name) for name in "ab"]
        tasks = [asyncio.create_task(one.acquire()) for one in both]
        await asyncio.sleep(5)
        assert [task.done() for task in tasks].count(True) == 1

    travel(work)


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 10, 0), (15, 2, 10)])
def test_times_that_would_allow_two_leaders_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="renew deadline"):
        LeaseTimes(*times)


async def test_two_electors_on_a_real_lease(tmp_path: Path) -> None:
    quick = LeaseTimes(duration=1.0, renew_deadline=0.6, retry=0.05)
    async with stage(tmp_path) as s:
        made = [
            Elector(KubeLeases(s.client, "default", "lease"), name, SystemClock(), random.Random(name), quick)
            for name in "ab"
        ]
        await made[0].acquire()
        holding = asyncio.create_task(made[0].hold())
        waiting = asyncio.create_task(made[1].acquire())
        await asyncio.sleep(0.3)
        assert not waiting.done()
        holding.cancel()
        await made[0].release()
        await asyncio.wait_for(waiting, 5)
        lease = s.cluster.api.get("leases.coordination.k8s.io", "default", "lease")
        assert lease is not None
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("b", 1)
