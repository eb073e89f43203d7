"""Groups of slots of which only one is overloaded: replicas come only where placement lets them help."""

from typing import Any

import pytest
from core_toy_cluster import CACHE, CHAT, ready_cluster, spec_of
from scaling_traffic import Traffic

from evenflow_operator.core.placement.assign import assign, classes_joining
from evenflow_operator.core.slots.survey import survey

ON_TARGET = 6.8
"""Requests per second of one slot."""


def grouped(later: list[tuple[int, str]], chat: float, code: float = 4.0, replicas: int = 4) -> Traffic:
    """Slots 0 and 1 serve chat, 2 and 3 code, and `later` ones what they list; others serve both."""
    listed = [(0, "chat"), (1, "chat"), (2, "code"), (3, "code"), *later]
    spec = spec_of(
        replicas=replicas,
        autoscaling={"minReplicas": 1, "maxReplicas": 8},
        trafficClasses=[CHAT, {**CHAT, "name": "code"}],
        placement={"strategy": "Static", "static": [{"slot": slot, "classes": [name]} for slot, name in listed]},
    )
    cluster = Traffic(spec, gpus=32, rates={"chat": ON_TARGET, "code": code})
    cluster.pass_time(120)
    assert cluster.written == []
    assert cluster.rates is not None
    cluster.rates["chat"] = chat
    return cluster


def test_slots_of_other_classes_are_not_added_and_the_condition_says_so() -> None:
    cluster = grouped([(slot, "code") for slot in range(4, 8)], chat=30.0)
    cluster.pass_time(150)
    assert cluster.written == []
    status, reason, message = cluster.limited()
    assert (status, reason) == ("True", "PlacementLimits")
    assert message.startswith("the slots of chat call for ")
    assert "none of the next 4 slots would serve it; give one of them the class in placement.static" in message
    cluster.rates = {"chat": 1.0, "code": 4.0}
    cluster.pass_time(600)
    assert cluster.limited()[1] != "PlacementLimits"


@pytest.mark.parametrize("starting", [False, True])
def test_a_slot_that_shares_the_class_is_enough_and_asked_for_once(starting: bool) -> None:
    cluster = grouped([], chat=16.0)
    cluster.starting = starting
    cluster.pass_time(600)
    assert cluster.written == [5]


def test_one_that_helps_is_reached_past_one_that_does_not() -> None:
    cluster = grouped([(4, "code"), (5, "chat"), (6, "code"), (7, "code")], chat=16.0)
    cluster.pass_time(200)
    assert cluster.written == [6]
    cluster.rates = {"chat": 40.0, "code": 4.0}
    cluster.pass_time(200)
    assert (cluster.written, cluster.limited()[1]) == ([6], "PlacementLimits")


def test_what_one_group_could_spare_hides_no_overload_of_another() -> None:
    cluster = grouped([], chat=16.0, code=0.5)
    cluster.pass_time(200)
    assert cluster.written == [5]


@pytest.mark.parametrize(
    "placement",
    [
        {"strategy": "All"},
        {"maxClassesPerReplica": 1},
        {"strategy": "Static", "static": [{"slot": 1, "classes": ["chat"]}, {"slot": 5, "classes": ["code"]}]},
    ],
)
def test_what_further_slots_would_serve_is_what_they_serve_then(placement: dict[str, Any]) -> None:
    cluster = ready_cluster(placement=placement, trafficClasses=[CHAT, {**CHAT, "name": "code", "weight": 40}])
    snapshot = cluster.snapshot()
    assert snapshot.pool is not None
    situation = survey(snapshot, snapshot.pool.spec)
    assignment = assign(situation, frozenset(), snapshot.memory.observed, CACHE)
    expected = classes_joining(situation, assignment, frozenset(), 3)
    cluster.change(replicas=7)
    cluster.settle()
    assert expected == tuple(cluster.by_slot()[slot][0].classes for slot in (4, 5, 6))


def test_where_placement_separates_the_classes_slots_come_for_the_overloaded_one() -> None:
    spec = spec_of(
        replicas=4,
        autoscaling={"minReplicas": 1, "maxReplicas": 8},
        trafficClasses=[CHAT, {**CHAT, "name": "code", "weight": 40}],
        placement={"maxClassesPerReplica": 1},
    )
    cluster = Traffic(spec, gpus=32, rates={"chat": ON_TARGET, "code": 4.0})
    cluster.pass_time(120)
    assert [pod.classes for pods in cluster.by_slot().values() for pod in pods].count(frozenset({"chat"})) == 2
    cluster.rates = {"chat": 16.0, "code": 4.0}
    cluster.pass_time(600)
    assert cluster.written == [5]
    assert [pod.classes for pods in cluster.by_slot().values() for pod in pods].count(frozenset({"chat"})) == 3
