import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_contract.worker_config import Proxies, WorkerConfig
from evenflow_model.volume import volume
from evenflow_worker.scheduling import Ordering, WaitingQueue, predicted_volume


def ordering(policy: str, aging: float = 0.0, proxies: Proxies | None = None, limit: int = 65536) -> Ordering:
    return Ordering.from_config(WorkerConfig(policy=policy, aging_seconds=aging, proxies=proxies), limit)


@dataclass(frozen=True)
class Instance:
    """Theory A.3: (prompt, output, arrival, predicted output), and the exact starts under each policy."""

    memory: int
    requests: tuple[tuple[int, ...], ...]
    proxies: tuple[float, float, float]
    starts: dict[str, list[int]]


def instance(memory, requests, proxies, fcfs, sjf, svf, one_bit) -> Instance:
    full = tuple((*request, request[1])[:4] if len(request) == 3 else request for request in requests)
    return Instance(memory, full, proxies, {"FCFS": fcfs, "SJF": sjf, "SVF": svf, "OneBitSVF": one_bit})


SEVEN = {
    "I1": instance(12, ((3, 2, 0), (1, 3, 0), (6, 1, 0)), (2, 1.5, 4), [0, 0, 2], [0, 1, 0], [0, 1, 0], None),
    "I2": instance(
        24,
        ((11, 1, 0),) * 4 + ((1, 2, 0),) * 4,
        (1, 1, 3),
        [0, 0, 1, 1, 2, 2, 2, 2],
        [0, 0, 1, 1, 2, 2, 2, 2],
        [0, 1, 2, 2, 0, 0, 0, 0],
        None,
    ),
    "I3": instance(
        20,
        ((4, 5, 0), (8, 2, 0), (2, 3, 1), (1, 8, 2), (10, 1, 2), (3, 3, 4)),
        (3, 1.7, 6),
        [0, 0, 1, 2, 5, 5],
        [0, 0, 1, 5, 4, 5],
        [0, 0, 1, 5, 4, 5],
        [0, 0, 1, 5, 5, 4],
    ),
    "I4": instance(
        30,
        ((5, 6, 0, 4), (9, 2, 0, 5), (2, 9, 0, 8), (12, 3, 0, 2), (1, 4, 0, 6), (6, 5, 0, 5), (3, 2, 0, 1)),
        (4, 2, 8),
        [0, 0, 0, 6, 6, 9, 9],
        [0, 3, 5, 0, 5, 3, 0],
        [0, 6, 3, 0, 0, 3, 0],
        [2, 0, 2, 2, 0, 5, 0],
    ),
    "I7": instance(
        9,
        ((2, 2, 0), (2, 2, 0), (6, 1, 0), (0, 3, 0), (1, 2, 0)),
        (2, 1.5, 4),
        [0, 0, 2, 2, 3],
        [1, 1, 0, 3, 3],
        [0, 2, 4, 0, 0],
        [0, 2, 5, 2, 0],
    ),
}


def starts(case: Instance, policy: str) -> list[int]:
    """The papers' discrete engine, with the product's keys and queue: head of line, peak within memory."""
    rule = ordering(policy, proxies=Proxies(*case.proxies))
    queue: WaitingQueue[int] = WaitingQueue()
    started: dict[int, int] = {}
    time = 0
    while len(started) < len(case.requests):
        for index, (prompt, output, arrival, predicted) in enumerate(case.requests):
            if arrival == time:
                # I4's one-bit schedule knows the true side of the threshold: its classifier is not its regressor.
                known = output if policy == "OneBitSVF" else predicted
                queue.add(index, rule.key(rule.metric(prompt, known), arrival, index, time))
        while queue and fits(case, started, queue.peek(), time):
            started[queue.pop()] = time
        time += 1
    return [started[index] for index in range(len(case.requests))]


def fits(case: Instance, started: dict[int, int], index: int, now: int) -> bool:
    prompt, output = case.requests[index][:2]
    for tau in range(now + 1, now + output + 1):
        held = sum(
            case.requests[other][0] + tau - start
            for other, start in started.items()
            if tau <= start + case.requests[other][1]
        )
        if held + prompt + tau - now > case.memory:
            return False
    return True


@pytest.mark.parametrize("name", SEVEN)
@pytest.mark.parametrize("policy", ["FCFS", "SJF", "SVF", "OneBitSVF"])
def test_schedules_of_theory_a3(name, policy):
    case = SEVEN[name]
    if case.starts[policy] is not None:
        assert starts(case, policy) == case.starts[policy]


@given(st.integers(0, 200_000), st.integers(1, 100_000))
def test_svf_metric_is_the_volume(prompt, output):
    assert ordering("SVF").metric(prompt, output) == pytest.approx(volume(prompt, output), rel=1e-12)


def test_policies_differ_as_they_should():
    long_prompt, long_output = (30_000, 10.0), (10, 600.0)
    svf, sjf = ordering("SVF"), ordering("SJF")
    assert svf.metric(*long_prompt) > svf.metric(*long_output)
    assert sjf.metric(*long_prompt) < sjf.metric(*long_output)


def test_one_bit_sees_one_bit():
    rule = ordering("OneBitSVF", proxies=Proxies(threshold=100, short=40, long=300))
    assert rule.metric(10, 1) == rule.metric(10, 100) == predicted_volume(10, 40)
    assert rule.metric(10, 101) == rule.metric(10, 9000) == predicted_volume(10, 300)


def test_one_bit_without_proxies_uses_those_of_the_models_limit():
    rule = ordering("OneBitSVF", limit=65536)
    assert (rule.proxies.threshold, rule.proxies.short, rule.proxies.long) == (256, 16, 4096)


@pytest.mark.parametrize("policy", ["SVF", "OneBitSVF", "SJF"])
@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_a_bad_prediction_goes_last_and_keeps_the_order_total(policy, bad):
    rule = ordering(policy, aging=30.0)
    key = rule.key(rule.metric(100, bad), 0.0, 1, 1e6)
    if policy == "OneBitSVF":
        assert key[0] >= 0
    else:
        assert key > rule.key(rule.metric(1_000_000, 1_000_000), 0.0, 2, 0.0)
    assert not math.isnan(key[0])
    assert predicted_volume(math.nan, 5) == predicted_volume(0, math.inf) == math.inf


def test_aging_divides_by_one_plus_wait_over_t():
    rule = ordering("SVF", aging=30.0)
    assert rule.key(1200.0, 10.0, 7, 10.0) == (1200.0, 10.0, 7)
    assert rule.key(1200.0, 10.0, 7, 40.0) == (600.0, 10.0, 7)
    assert rule.key(1200.0, 10.0, 7, 100.0) == (300.0, 10.0, 7)
    assert rule.key(1200.0, 10.0, 7, 0.0) == (1200.0, 10.0, 7)
    assert ordering("SVF").key(1200.0, 0.0, 7, 1e9) == (1200.0, 0.0, 7)


def test_fcfs_neither_ages_nor_looks_at_lengths():
    rule = ordering("FCFS", aging=30.0)
    first = rule.key(rule.metric(50_000, 900.0), 1.0, 1, 100.0)
    second = rule.key(rule.metric(1, 1.0), 2.0, 2, 100.0)
    assert first < second
    assert not rule.rekey_due(elapsed_s=1e9, iterations=10**9, waiting=0)


def test_evicted_requests_go_to_the_front_under_fcfs_only_the_last_one_first():
    fcfs, svf = ordering("FCFS"), ordering("SVF")
    head = fcfs.key(0.0, 0.0, 1, 9.0)
    earlier, later = fcfs.evicted_key(0.0, 5.0, 9, 9.0, 1), fcfs.evicted_key(0.0, 4.0, 8, 9.0, 2)
    assert later < earlier < head
    assert svf.evicted_key(70.0, 5.0, 9, 9.0, 1) == svf.key(70.0, 5.0, 9, 9.0)


def test_rekeying_is_rare_and_its_cost_bounded():
    rule = ordering("SVF", aging=30.0)
    assert not rule.rekey_due(elapsed_s=1.9, iterations=1000, waiting=10)
    assert rule.rekey_due(elapsed_s=2.0, iterations=1, waiting=32)
    assert not rule.rekey_due(elapsed_s=2.0, iterations=100, waiting=10_000)
    assert rule.rekey_due(elapsed_s=2.0, iterations=313, waiting=10_000)


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(1, 2000)), min_size=2, max_size=20), st.floats(0.1, 600))
def test_whoever_waits_long_enough_comes_first(shapes, aging):
    rule = ordering("SVF", aging=aging)
    oldest = rule.metric(60_000, 2000)
    fresh = [rule.metric(*shape) for shape in shapes]
    wait = aging * oldest / min(fresh) * 1.01
    assert all(rule.key(oldest, 0.0, 0, wait) < rule.key(metric, wait, 1, wait) for metric in fresh)
