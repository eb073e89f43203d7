import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_contract.worker_config import Admission, AdmissionUnit
from evenflow_worker.scheduling import AdmissionBucket

M = 1000


def limited(rate: float, unit: str = "Requests") -> Admission:
    return Admission("Limited", unit, rate, 0.0)


def admit_all(bucket: AdmissionBucket, iterations: int, volume: float = 1.0) -> list[int]:
    """A queue that never empties beside an engine that never idles: admissions of each iteration."""
    counts = []
    for _ in range(iterations):
        bucket.refill()
        count = 0
        while bucket.allows(volume, idle=False):
            bucket.take(volume)
            count += 1
        counts.append(count)
    return counts


@given(st.one_of(st.floats(0.001, 20.0), st.sampled_from([0.1, 0.5, 0.7, 0.8, 0.9, 0.95, 0.999, 1.0, 1.3, 2.0, 7.5])))
def test_long_run_rate_in_requests_is_exact(rate):
    iterations = 3000
    admitted = sum(admit_all(AdmissionBucket(M, limited(rate)), iterations))
    exact = Fraction(rate) * iterations
    # One request is still in the bucket at most; one more for a rate that has no finite decimal form.
    assert exact - 1 - Fraction(1, 1000) <= admitted <= exact + Fraction(1, 1000)


@pytest.mark.parametrize(("rate", "expected"), [(0.8, 800_000), (0.1, 100_000), (1.3, 1_300_000), (1.0, 1_000_000)])
def test_no_rounding_error_builds_up(rate, expected):
    assert sum(admit_all(AdmissionBucket(M, limited(rate)), 1_000_000)) == expected


@given(st.floats(0.01, 4.0), st.lists(st.floats(300.0, 50_000.0), min_size=1, max_size=20))
def test_long_run_rate_in_volume_is_exact(rate, volumes):
    bucket = AdmissionBucket(M, limited(rate, "Volume"))
    taken, turn, iterations = 0.0, 0, 300
    for _ in range(iterations):
        bucket.refill()
        while bucket.allows(volume := volumes[turn % len(volumes)], idle=False):
            bucket.take(volume)
            taken += volume
            turn += 1
    allowed = rate * M * iterations
    # Ahead of the cap by one request's overshoot, or one refill of small ones; never behind it.
    assert allowed - 1e-6 * allowed <= taken <= allowed * (1 + 1e-9) + max(*volumes, rate * M)


@given(st.floats(0.01, 4.0), st.lists(st.tuples(st.floats(0.0, 3000.0), st.booleans()), max_size=200))
def test_a_debt_is_never_deeper_than_one_request_or_one_refill(rate, wanted):
    bucket = AdmissionBucket(M, limited(rate, "Volume"))
    largest = rate * M
    for volume, next_iteration in wanted:
        if next_iteration:
            bucket.refill()
        if bucket.allows(volume, idle=False):
            bucket.take(volume)
            largest = max(largest, volume)
        assert bucket.credit >= -largest - 1e-6


def test_small_requests_pass_the_debt_of_a_large_one():
    bucket = AdmissionBucket(M, limited(1.0, "Volume"))
    bucket.refill()
    bucket.take(4000.0)
    assert not bucket.allows(1.0, idle=False), "the large one has used up this iteration"
    bucket.refill()
    assert not bucket.allows(1000.1, idle=False), "more than one iteration's refill waits for the debt"
    assert admit_small(bucket, 400.0) == 2
    assert bucket.credit == -2800.0, "and is paid for"
    for _ in range(2):
        bucket.refill()
    assert not bucket.allows(4000.0, idle=False)
    bucket.refill()
    assert bucket.allows(4000.0, idle=False)


def test_small_requests_alone_keep_to_the_rate():
    bucket = AdmissionBucket(M, limited(1.0, "Volume"))
    bucket.refill()
    bucket.take(50_000.0)
    counts = []
    for _ in range(100):
        bucket.refill()
        counts.append(admit_small(bucket, 300.0))
    assert set(counts) == {3}
    assert bucket.credit == -49_000.0 + 100 * (1000.0 - 900.0)


def admit_small(bucket: AdmissionBucket, volume: float) -> int:
    count = 0
    while bucket.allows(volume, idle=False):
        bucket.take(volume)
        count += 1
    return count


@given(st.floats(0.01, 20.0), st.integers(0, 500))
def test_burst_after_a_quiet_time_is_bounded(rate, quiet):
    bucket = AdmissionBucket(M, limited(rate))
    for _ in range(quiet):
        bucket.refill()
    assert admit_all(bucket, 1)[0] <= math.floor(rate + 1 + 1e-9)
    volume = AdmissionBucket(M, limited(rate, "Volume"))
    for _ in range(quiet):
        volume.refill()
    assert volume.credit <= rate * M * (1 + 1e-9)


def test_overshoot_is_paid_off_before_the_next():
    bucket = AdmissionBucket(M, limited(1.0, "Volume"))
    assert admit_all(bucket, 8, volume=4000.0) == [1, 0, 0, 0, 1, 0, 0, 0]


def test_an_idle_engine_may_always_admit_one():
    bucket = AdmissionBucket(M, limited(0.001))
    bucket.refill()
    assert not bucket.allows(1.0, idle=False)
    assert bucket.allows(1.0, idle=True)


@pytest.mark.parametrize("unit", ["Requests", "Volume"])
def test_free_passes_leave_at_most_their_own_cost_as_debt(unit):
    bucket = AdmissionBucket(M, limited(0.05, unit))
    for _ in range(1000):
        bucket.refill()
        bucket.take(500.0, idle=True)
    assert bucket.credit == (-1.0 if unit == "Requests" else -500.0)


def test_a_paused_engine_collects_nothing():
    bucket = AdmissionBucket(M, limited(0.4))
    for _ in range(100):
        bucket.refill(paused=True)
    assert bucket.credit == 0.0


def test_off_limits_nothing_and_forgets():
    bucket = AdmissionBucket(M)
    bucket.refill()
    bucket.take(1e9)
    assert bucket.allows(1e9, idle=False)
    assert not bucket.limited
    bucket.configure(limited(0.5))
    assert bucket.credit == 0.0
    assert not bucket.allows(1.0, idle=False)


def test_cap_and_unit_change_live():
    bucket = AdmissionBucket(M, limited(10.0))
    bucket.refill()
    assert bucket.credit == 10.0
    bucket.configure(limited(0.5))
    assert bucket.credit == 1.5
    bucket.configure(limited(2.0, "Volume"))
    assert bucket.credit == 0.0
    bucket.refill()
    bucket.take(5000.0)
    bucket.configure(limited(3.0, "Volume"))
    assert bucket.credit == -3000.0
    assert not admit_all(bucket, 1, volume=3001.0)[0]


@pytest.mark.parametrize("volume", [math.nan, math.inf, -5.0])
def test_a_volume_that_is_none_counts_as_the_whole_memory(volume):
    bucket = AdmissionBucket(M, limited(1.0, "Volume"))
    bucket.refill()
    bucket.take(volume)
    assert bucket.credit == 0.0


def test_a_pool_without_memory_is_refused():
    with pytest.raises(ValueError, match="capacity_tokens"):
        AdmissionBucket(0)


@given(st.lists(st.tuples(st.sampled_from(["refill", "take", "idle", "cap", "unit", "off"]), st.floats(0.001, 5))))
def test_flips_keep_the_credit_sane(steps):
    bucket = AdmissionBucket(M)
    for name, number in steps:
        if name == "refill":
            bucket.refill()
        elif name == "off":
            bucket.configure(Admission())
        elif name in ("cap", "unit"):
            bucket.configure(limited(number, "Requests" if name == "cap" else "Volume"))
        elif bucket.allows(number * M, idle=name == "idle"):
            bucket.take(number * M, idle=name == "idle")
        assert -5 * M - 1 <= bucket.credit <= 6 * M
        assert bucket.allows(number * M, idle=True)


@given(
    rate=st.floats(1e-5, 3.0),
    unit=st.sampled_from(["Requests", "Volume"]),
    spent=st.lists(st.floats(0.0, 5e5), max_size=6),
    times=st.integers(1, 60),
    head=st.floats(0.0, 5e3),
)
def test_many_refills_at_once_are_many_refills(
    rate: float, unit: AdmissionUnit, spent: list[float], times: int, head: float
):
    """Leaps over uneventful iterations rest on this."""
    one, many = (AdmissionBucket(1000, Admission("Limited", unit, rate, 0.0)) for _ in range(2))
    for volume in spent:
        one.take(volume)
        many.take(volume)
    refused = 0
    for _ in range(times):
        one.refill()
        refused += not one.allows(head, idle=False)
    assert min(many.refills_refused(head), times) == refused
    many.refill(times)
    assert many.credit == one.credit
