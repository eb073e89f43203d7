"""The load of a pool in slots: three resources, the queue, noise, groups of slots, engines that say nothing."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_model.steptime import step_time_model
from evenflow_operator.core.scaling.engine import RESOURCES, Engine, counted_ms
from evenflow_operator.core.scaling.growth import growth, on_their_way
from evenflow_operator.core.scaling.load import DRAIN_SECONDS, PoolLoad, SlotUse, calibration_of, pool_load
from evenflow_operator.core.scaling.samples import Pace, Usage, newest, usages
from evenflow_operator.core.scaling.state import Sample
from evenflow_operator.core.scaling.window import highest, noted

CHAT = Engine(
    mean_prompt=1000,
    mean_output=200,
    mean_volume=220_000,
    chunk_source=1000,
    kv_tokens=430_000,
    step_budget=2048,
    max_seqs=512,
    model=step_time_model("A100-8B"),
)
TARGET = 0.75


def use(slot: int = 0, engine: Engine | None = CHAT, serving: bool = True, **usage: Any) -> SlotUse:
    fields = {"running": 0.0, "present": 1.0, "waiting": 0.0, "arrivals": 0.0}
    fields |= usage
    fields.setdefault("arrived", (fields["arrivals"] or 0.0) * 60)
    known = Usage(**fields) if usage else None
    return SlotUse(slot, frozenset({"chat"}), engine, 512, serving, known)


def load_of(*slots: SlotUse) -> PoolLoad:
    return pool_load(slots, TARGET, 1.0)


def at_target(engine: Engine) -> float:
    """Requests per second that put one slot exactly on target."""
    return 1000 * TARGET * engine.most_admitted / counted_ms(engine, TARGET)


@pytest.mark.parametrize(
    ("engine", "binding"),
    [
        (replace(CHAT, kv_tokens=20_000), "kv"),
        (CHAT, "stepBudget"),
        (replace(CHAT, max_seqs=16), "sequences"),
    ],
)
def test_the_binding_resource_is_named_and_counted_against_the_target(engine: Engine, binding: str) -> None:
    load = load_of(use(engine=engine, arrivals=at_target(engine)))
    assert load.fullest.binding == binding
    assert load.share(load.fullest.binding) == pytest.approx(TARGET)
    assert all(load.share(name) < TARGET for name in RESOURCES if name != binding)


def test_three_slots_worth_of_requests_call_for_three_slots() -> None:
    rate = 3 * at_target(CHAT)
    assert load_of(use(arrivals=rate)).called_for(TARGET) == 3
    assert load_of(*(use(slot, arrivals=rate / 4) for slot in range(4))).called_for(TARGET) == 4  # too near to go
    assert load_of(*(use(slot, arrivals=rate / 6) for slot in range(6))).called_for(TARGET) == 4


def test_engines_that_iterate_half_as_fast_need_twice_the_slots() -> None:
    rate = at_target(CHAT)
    slots = [use(arrivals=rate)]
    assert pool_load(slots, TARGET, 2.0).called_for(TARGET) == 2 * pool_load(slots, TARGET, 1.0).called_for(TARGET)


def test_iteration_time_is_measured_on_busy_engines() -> None:
    admitted = 0.5 * CHAT.most_admitted
    step_s = 3 * CHAT.step_ms(admitted) / 1000
    busy = Pace(admitted * 200, admitted / step_s, 1 / step_s)
    outlier = replace(busy, iterations=1e-3)
    assert calibration_of([use(running=9.0, paces=(busy, outlier, busy))], 1.0, 2.0) == pytest.approx(3.0)
    counts_nothing = replace(busy, admitted=None)
    assert calibration_of([use(running=9.0, paces=(counts_nothing,))], 1.0, None) == pytest.approx(3.0, rel=0.02)
    assert calibration_of([use(running=9.0), use()], 1.0, None) is None
    assert calibration_of([use(running=9.0), use()], 1.0, 2.0) == 2.0
    assert calibration_of([use(running=9.0, paces=(outlier,))], 1.0, None) == 50.0
    overloaded = replace(busy, admitted=admitted / step_s / 2, iterations=1 / step_s / 2, calm=False)
    assert calibration_of([use(running=9.0, paces=(busy, overloaded, overloaded))], 1.0, 2.0) == pytest.approx(3.0)
    assert calibration_of([use(running=9.0, paces=(overloaded,))], 1.0, 2.0) == 2.0
    assert calibration_of([use(running=9.0, paces=(overloaded,))], 1.0, None) == pytest.approx(6.0)


def test_few_survivors_are_counted_at_the_iteration_time_that_they_will_have() -> None:
    """Memory at 30 % on two slots would fit on one by the naive sum; at its longer iterations it doesn't."""
    engine = replace(CHAT, kv_tokens=430_000, mean_prompt=8000, mean_volume=1_620_000, step_budget=8192)
    admitted = 0.3 * engine.most_admitted
    rate = 1000 * admitted / engine.step_ms(admitted)
    usage = {"running": admitted * 200, "arrivals": rate}
    assert load_of(use(0, engine, **usage), use(1, engine, **usage)).called_for(TARGET) == 2


def test_a_queue_that_drains_in_time_calls_for_nothing() -> None:
    per_second = 1000 * CHAT.most_admitted / counted_ms(CHAT, TARGET)
    rate = 0.5 * per_second
    short = load_of(use(arrivals=rate, waiting=0.4 * per_second * DRAIN_SECONDS))
    assert short.called_for(TARGET) == 1
    assert short.drain_seconds == pytest.approx(0.8 * DRAIN_SECONDS)
    long = load_of(use(arrivals=rate, waiting=2 * per_second * DRAIN_SECONDS))
    assert long.called_for(TARGET) == 3
    assert load_of(use(arrivals=2 * per_second, waiting=1.0)).drain_seconds == math.inf


def test_a_queue_waits_for_the_slots_that_are_on_their_way() -> None:
    per_second = 1000 * CHAT.most_admitted / counted_ms(CHAT, TARGET)
    crowded = use(0, arrivals=0.5 * per_second, waiting=3 * per_second * DRAIN_SECONDS)
    coming = use(1, serving=False)
    assert load_of(crowded).called_for(TARGET) == 4
    assert load_of(crowded, coming).called_for(TARGET) == 2
    # What arrives calls for more all the same.
    assert load_of(use(0, arrivals=4 * at_target(CHAT)), coming).called_for(TARGET) == 4


def test_chance_adds_no_slot() -> None:
    rate = 1.3 * at_target(CHAT)
    assert load_of(use(arrivals=rate, arrived=20)).called_for(TARGET) == 1
    assert load_of(use(arrivals=rate, arrived=400)).called_for(TARGET) == 2
    # A queue that never empties is no chance.
    assert load_of(use(arrivals=rate, arrived=20, queued=True, waiting=1.0)).called_for(TARGET) == 2
    assert load_of(use(arrivals=at_target(CHAT), arrived=20, queued=True, waiting=1.0)).called_for(TARGET) == 1


def test_an_engine_that_is_full_before_the_model_says_so() -> None:
    """What comes is what the model takes for 95 % of the target, but a fifth of it can't be admitted."""
    rate = 0.95 * at_target(CHAT)
    full = use(arrivals=rate, admitted=0.8 * rate, queued=True, waiting=9.0)
    assert load_of(full).called_for(TARGET) == 2
    assert load_of(replace(full, usage=replace(full.usage, queued=False))).called_for(TARGET) == 1
    # Far below the target a queue has other reasons.
    light = use(arrivals=rate / 2, admitted=rate / 2, queued=True, waiting=9.0)
    assert load_of(light).called_for(TARGET) == 1


def test_a_silent_engine_keeps_what_there_is_and_lets_more_come() -> None:
    idle, silent = use(0, arrivals=0.1), use(1)
    assert load_of(idle, use(2, arrivals=0.1)).called_for(TARGET) == 1
    assert load_of(idle, silent).called_for(TARGET) == 2
    assert load_of(idle, silent).silent == (1,)
    assert load_of(use(0, arrivals=5 * at_target(CHAT)), silent).called_for(TARGET) == 5
    assert not load_of(silent).known


def test_what_still_runs_holds_a_slot_and_adds_none() -> None:
    full = {"running": CHAT.most_admitted * CHAT.mean_output}
    after_a_surge = load_of(use(0, arrivals=0.1, **full), use(1, arrivals=0.1, **full))
    assert after_a_surge.called_for(TARGET) == 2


def test_groups_are_judged_apart() -> None:
    chat = replace(use(0, arrivals=2 * at_target(CHAT)), classes=frozenset({"chat"}))
    code = [replace(use(slot, arrivals=0.1), classes=frozenset({"code"})) for slot in (1, 2)]
    load = load_of(chat, *code)
    assert load.fullest.slots == {0}
    # What code could spare is no help to chat.
    assert load.called_for(TARGET) == 2 + 2
    calm = replace(use(0, arrivals=0.5 * at_target(CHAT)), classes=frozenset({"chat"}))
    assert load_of(calm, *code).called_for(TARGET) == 1 + 1


@pytest.mark.parametrize(("joined", "further"), [({"serving": False}, 0), ({"present": 0.5}, 0), ({}, 1)])
def test_a_slot_of_both_classes_is_coming_until_a_whole_window_shows_it(joined: dict[str, Any], further: int) -> None:
    both = frozenset({"chat", "code"})
    chat = use(0, arrivals=2 * at_target(CHAT), arrived=10_000.0)
    other = replace(use(1, **({} if "serving" in joined else {"arrivals": 0.1}) | joined), classes=both)
    grown = growth(load_of(chat, other), TARGET, on_their_way([chat, other]), lambda count: [both] * count, 4)
    assert (grown.slots, grown.stuck) == (further, None)


def test_without_lengths_what_is_in_use_counts() -> None:
    def plain(**usage: Any) -> SlotUse:
        return replace(use(0, engine=None, **usage), kv_peak=0.6)

    assert load_of(plain(running=10.0, arrivals=None)).share("kv") == pytest.approx(0.6)
    assert load_of(plain(running=100.0, waiting=100.0, arrivals=None, arrived=100.0)).called_for(TARGET) == 2


@given(
    st.floats(0, 200), st.floats(0, 200), st.integers(1, 20), st.floats(0, 5000), st.floats(0, 5000), st.floats(0.01, 9)
)
def test_more_load_never_calls_for_less(
    arrivals: float, more: float, count: int, waiting: float, longer: float, scale: float
) -> None:
    def slots(rate: float, queue: float) -> PoolLoad:
        members = [use(slot, arrivals=rate / count, waiting=queue / count) for slot in range(count)]
        return pool_load(members, TARGET, scale)

    before = slots(arrivals, waiting).called_for(TARGET)
    assert slots(arrivals + more, waiting).called_for(TARGET) >= before
    assert slots(arrivals, waiting + longer).called_for(TARGET) >= before


@given(st.floats(0, 100), st.integers(1, 20), st.floats(0, 300), st.floats(0.3, 1.0))
def test_survivors_stay_below_the_target(arrivals: float, count: int, running: float, target: float) -> None:
    members = [use(slot, arrivals=arrivals / count, running=running) for slot in range(count)]
    load = pool_load(members, target, 1.0)
    fewer = load.called_for(target)
    if fewer < count:
        worst = max(load.share(name) for name in RESOURCES)
        assert worst * count / fewer <= target


def test_a_slot_that_joined_doesn_t_count_the_load_twice() -> None:
    """Two slots had 6 requests a second each; since a third came, all have 4: that is 12 in all, not 16."""
    old = [Sample(at, 10.0, 0.0, 6.0 * at if at <= 45 else 270.0 + 4.0 * (at - 45), None) for at in range(0, 61, 15)]
    new = [Sample(45.0, 10.0, 0.0, 0.0, None), Sample(60.0, 10.0, 0.0, 60.0, None)]
    found = usages({"a": old, "b": old, "c": new}, 60.0, 90.0, 15.0)
    assert sum(usage.arrivals or 0.0 for usage in found.values()) == pytest.approx((45 * 12 + 15 * 12) / 60)
    assert found["c"].present == 0.25
    latest = usages(newest({"a": old, "b": old, "c": new}, 15.0), 60.0, 90.0, 15.0)
    assert [usage.arrivals for usage in latest.values()] == pytest.approx([4.0, 4.0, 4.0])


def test_what_is_stale_or_seen_once_is_unknown() -> None:
    samples = [Sample(at, 1.0, 0.0, at, None) for at in (0.0, 15.0)]
    assert usages({"a": samples}, 100.0, 90.0, 15.0)["a"].arrivals == 1.0
    assert usages({"a": samples}, 106.0, 90.0, 15.0) == {}
    assert usages({"a": samples[:1]}, 1.0, 90.0, 15.0) == {}


def test_the_wait_of_an_idle_engine_is_no_iteration_time() -> None:
    idle, busy = Sample(0.0, 3.0, 0.0, 0.0, 0.0), Sample(15.0, 40.0, 0.0, 40.0, 10.0)
    later = Sample(30.0, 40.0, 0.0, 100.0, 500.0)
    paces = usages({"a": [idle, busy, later]}, 30.0, 90.0, 15.0)["a"].paces
    assert paces == (Pace(40.0, 4.0, pytest.approx(490 / 15)),)
    # A queue means that it never was.
    assert len(usages({"a": [replace(idle, waiting=1.0), busy]}, 15.0, 90.0, 15.0)["a"].paces) == 1


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 1000)), min_size=1, max_size=60), st.floats(0, 400))
def test_the_window_s_highest_is_that_of_all_recommendations_in_it(
    steps: list[tuple[float, int]], window: float
) -> None:
    now, every, kept = 0.0, [], ()
    for pause, replicas in steps:
        now += pause
        every.append((now, replicas))
        kept = noted(kept, now, replicas, window)
        assert highest(kept, now - window) == max(count for at, count in every if at >= now - window)
    assert len(kept) <= 1000
