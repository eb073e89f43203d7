import gc
import weakref
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from core_toy_cluster import CACHE, CHAT, CODE, ToyCluster, ready_cluster, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_operator.core.placement.search import (
    Demand,
    Problem,
    best,
    candidates,
    changed_slots,
    everything,
    figures_of,
    is_valid,
    slot_counts,
)
from evenflow_operator.core.placement.severity_cache import ClassLaw, SeverityCache

TWELVE = (64, 80, 100, 125, 128, 160, 200, 250, 256, 320, 400, 512)


def tier(output: int, **more: Any) -> dict[str, Any]:
    return {"name": f"t{output}", "promptTokens": 512, "outputTokens": output, "outputSpreadPercent": 0, **more}


def problem_of(lengths: tuple[int, ...], slots: int, limit: int, spread: float = 0.0) -> Problem:
    return Problem(
        demands={f"t{n}": Demand(f"t{n}", 1 / len(lengths), ClassLaw(512.0, float(n), spread), 1) for n in lengths},
        kv_tokens=dict.fromkeys(range(slots), 430_000),
        block_sizes=dict.fromkeys(range(slots), 16),
        max_classes=limit,
        max_output=131_072,
    )


def classes_of(cluster: ToyCluster) -> dict[str, list[str]]:
    return {slot["name"]: slot["classes"] for slot in cluster.status["slots"]}


def condition(cluster: ToyCluster, kind: str) -> dict[str, str]:
    return next(entry for entry in cluster.status["conditions"] if entry["type"] == kind)


@pytest.mark.parametrize("strategy", ["Balanced", "All"])
def test_every_class_on_every_slot_is_the_start(strategy: str) -> None:
    cluster = ready_cluster(replicas=3, placement={"strategy": strategy})
    assert classes_of(cluster) == {f"llama-{slot}": ["chat", "code"] for slot in range(3)}


def test_static_is_as_listed_and_unlisted_slots_serve_everything() -> None:
    placement = {"strategy": "Static", "static": [{"slot": 1, "classes": ["code"]}]}
    cluster = ready_cluster(replicas=2, placement=placement)
    assert classes_of(cluster) == {"llama-0": ["chat", "code"], "llama-1": ["code"]}


def test_a_slot_that_serves_no_class_any_more_is_told_and_so_is_its_return() -> None:
    cluster = ready_cluster(replicas=2)
    told = []
    static = {"strategy": "Static", "static": [{"slot": 1, "classes": []}]}
    for placement in (static, {"strategy": "Balanced"}):
        cluster.change(placement=placement)
        told += [(one.reason, one.message) for one in cluster.decide().decisions if one.type == "Place"]
        cluster.run(5)
    assert told[0] == ("StrategyChanged", "slot 1: serve no class")
    assert [(reason, message[:26]) for reason, message in told[1:]] == [
        ("StrategyChanged", "slot 1: serve chat, code (")
    ]


def test_a_class_that_static_gives_to_nobody_is_reported() -> None:
    placement = {"strategy": "Static", "static": [{"slot": 0, "classes": ["code"]}]}
    cluster = ready_cluster(replicas=1, placement=placement)
    assert condition(cluster, "SpecValid")["reason"] == "PlacementInfeasible"
    assert condition(cluster, "Ready")["reason"] == "ClassUnserved"


def test_the_limit_of_classes_is_kept_with_two_slots_for_each() -> None:
    cluster = ready_cluster(replicas=4, trafficClasses=[tier(n) for n in TWELVE], placement={"maxClassesPerReplica": 6})
    found = classes_of(cluster)
    assert all(len(names) <= 6 for names in found.values())
    for length in TWELVE:
        assert sum(f"t{length}" in names for names in found.values()) >= 2


def test_too_few_slots_serve_everything_all_the_same_and_say_so() -> None:
    cluster = ready_cluster(replicas=1, trafficClasses=[tier(n) for n in TWELVE], placement={"maxClassesPerReplica": 6})
    assert len(classes_of(cluster)["llama-0"]) == 12
    assert condition(cluster, "SpecValid")["reason"] == "PlacementInfeasible"
    assert condition(cluster, "RebalanceBlocked")["reason"] == "Infeasible"


def test_tiers_that_nothing_desynchronises_stay_and_the_message_names_gcd_and_cure() -> None:
    cluster = ready_cluster(replicas=4, trafficClasses=[tier(128), tier(256), tier(512)])
    assert all(len(names) == 3 for names in classes_of(cluster).values())
    verdict = condition(cluster, "LengthsDesynchronized")
    assert verdict["status"] == "False"
    assert "gcd 128" in verdict["message"]
    assert "trim 128 to 127" in verdict["message"]
    assert condition(cluster, "RebalanceBlocked")["reason"] == "TooLittleGain"


def moved_pool(**rebalance: Any) -> ToyCluster:
    """A pool whose classes lie apart, although together they would be less synchronised."""
    placement = {
        "strategy": "Static",
        "static": [{"slot": slot, "classes": [f"t{n}" for n in TWELVE[slot // 2 :: 2]]} for slot in range(4)],
    }
    cluster = ready_cluster(replicas=4, trafficClasses=[tier(n) for n in TWELVE], placement=placement)
    cluster.change(placement={"maxClassesPerReplica": 12, "rebalance": rebalance})
    return cluster


def test_a_synchronised_placement_moves_and_no_class_ever_falls_below_its_minimum() -> None:
    cluster = moved_pool()
    least = 9
    for _ in range(20):
        cluster.decide()
        counts = slot_counts({slot: pods[0].classes for slot, pods in cluster.by_slot().items() if slot is not None})
        least = min(least, *(counts[f"t{n}"] for n in TWELVE))
        cluster.tick()
    assert least >= 2
    assert all(len(names) == 12 for names in classes_of(cluster).values())
    reasons = [record["reason"] for record in cluster.status["decisions"]]
    assert "SeverityReduced" in reasons


@pytest.mark.parametrize(
    ("rebalance", "reason"),
    [
        ({"enabled": False}, "Disabled"),
        ({"maxMovesPerHour": 0}, "BudgetExhausted"),
    ],
)
def test_what_holds_a_move_back_is_said(rebalance: dict[str, Any], reason: str) -> None:
    cluster = moved_pool(**rebalance)
    cluster.run(6)
    assert condition(cluster, "RebalanceBlocked")["reason"] == reason
    assert all(len(names) == 6 for names in classes_of(cluster).values())


def test_the_budget_of_moves_survives_a_restart_and_frees_after_an_hour() -> None:
    cluster = moved_pool(maxMovesPerHour=2)
    cluster.run(4)
    cluster.restart_operator()
    cluster.run(4)
    assert sum(len(names) == 12 for names in classes_of(cluster).values()) == 2
    cluster.tick(3700)
    cluster.run(6)
    assert sum(len(names) == 12 for names in classes_of(cluster).values()) == 4


def test_the_budget_of_moves_survives_many_other_decisions() -> None:
    cluster = moved_pool(maxMovesPerHour=2)
    cluster.run(4)
    for number in range(25):
        cluster.change(scheduling={"agingSeconds": 40 + number})
        cluster.run(2)
    cluster.restart_operator()
    cluster.run(8)
    assert len(cluster.status["decisions"]) == 20
    assert sum(len(names) == 12 for names in classes_of(cluster).values()) == 2


def test_advice_to_move_spends_no_budget() -> None:
    cluster = moved_pool(maxMovesPerHour=2)
    cluster.change(mode="Advisory")
    cluster.run(4)
    assert any(record["message"].startswith("would: ") for record in cluster.status["decisions"])
    cluster.change(mode="Active")
    cluster.run(4)
    assert sum(len(names) == 12 for names in classes_of(cluster).values()) == 2


def test_a_failed_slot_keeps_its_classes() -> None:
    placement = {"strategy": "Static", "static": [{"slot": 1, "classes": ["code"]}]}
    cluster = ready_cluster(replicas=3, placement=placement)
    cluster.fail(cluster.by_slot()[1][0].name)
    cluster.decide()
    assert classes_of(cluster)["llama-1"] == ["code"]


def test_a_new_class_is_served_everywhere_at_once_and_a_removed_one_nowhere() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change(trafficClasses=[CHAT, tier(100)])
    cluster.settle()
    assert all(pods[0].classes == {"chat", "t100"} for pods in cluster.by_slot().values())


def test_a_class_comes_to_the_config_before_it_comes_to_the_labels() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change(trafficClasses=[CHAT, CODE, tier(100)])
    cluster.decide()
    for pods in cluster.by_slot().values():
        assert pods[0].worker_config is not None
        assert "t100" in pods[0].worker_config.classes
        assert "t100" not in pods[0].classes
    cluster.decide()
    assert all("t100" in pods[0].classes for pods in cluster.by_slot().values())


def test_a_class_stays_where_it_is_until_the_others_are_ready_for_it() -> None:
    placement = {"strategy": "Static", "static": [{"slot": 0, "classes": ["code"]}, {"slot": 1, "classes": ["chat"]}]}
    cluster = ready_cluster(replicas=2, placement=placement)
    swapped = [{"slot": 0, "classes": ["chat"]}, {"slot": 1, "classes": ["code"]}]
    cluster.change(placement={"strategy": "Static", "static": swapped})
    for _ in range(8):
        cluster.decide()
        served = set().union(*(pods[0].classes for pods in cluster.by_slot().values()))
        assert served == {"chat", "code"}
        cluster.tick()
    assert [pods[0].classes for _, pods in sorted(cluster.by_slot().items())] == [{"chat"}, {"code"}]


def test_a_pool_without_classes_serves_the_default_class() -> None:
    cluster = ready_cluster(replicas=1, trafficClasses=[])
    assert cluster.by_slot()[0][0].serving
    assert condition(cluster, "Ready")["status"] == "True"
    assert condition(cluster, "LengthsDesynchronized")["reason"] == "NoClasses"


def test_the_best_placement_is_no_worse_than_any_partition_of_a_small_pool() -> None:
    problem = problem_of((64, 100, 128, 200), 4, 2)
    names = sorted(problem.demands)
    chosen, score = best(problem, {}, CACHE)
    assert is_valid(problem, chosen)
    reachable = []
    for groups in product((0, 1), repeat=4):
        sets = [frozenset(name for name, group in zip(names, groups, strict=True) if group == g) for g in (0, 1)]
        if all(len(one) == 2 for one in sets):
            placement = {slot: sets[slot // 2] for slot in range(4)}
            worst = max(figures.severity for figures in figures_of(problem, placement, CACHE).values())
            reachable.append(worst)
    assert score.severity <= max(reachable)


@settings(max_examples=60)
@given(st.lists(st.integers(5, 600), min_size=1, max_size=16, unique=True), st.integers(1, 12), st.integers(1, 16))
def test_candidates_are_valid_whenever_a_placement_can_be(lengths: list[int], slots: int, limit: int) -> None:
    problem = problem_of(tuple(lengths), slots, limit)
    found = candidates(problem, {})
    for placement in found:
        counts = slot_counts(placement)
        assert all(counts.get(name, 0) >= 1 for name in problem.demands)
        assert set(placement) == set(range(slots))
    if len(lengths) <= slots * limit:
        roomy = all(len(names) <= limit for placement in found for names in placement.values())
        assert roomy


def test_an_unchanged_problem_keeps_its_placement() -> None:
    problem = problem_of(TWELVE, 6, 6)
    first, _ = best(problem, {}, CACHE)
    again, _ = best(problem, first, CACHE)
    assert changed_slots(first, again) == 0


def test_everything_counts_one_mix_for_equal_slots() -> None:
    cache = SeverityCache()
    problem = problem_of((100, 125), 8, 8)
    figures_of(problem, everything(problem), cache)
    figures_of(problem, everything(problem), cache)
    assert cache.misses == 1


def test_a_full_cache_forgets_the_oldest() -> None:
    cache = SeverityCache(capacity=1)
    one, two = (((1.0, ClassLaw(512.0, float(n), 0.0)),) for n in (100, 101))
    for mix in (one, two, one):
        cache.figures(mix, 430_000, 16, 131_072)
    assert cache.misses == 3


def test_the_slots_of_a_scale_down_are_placed_among_those_that_stay() -> None:
    cluster = ToyCluster(
        spec_of(replicas=6, trafficClasses=[tier(n) for n in TWELVE], placement={"maxClassesPerReplica": 6})
    )
    cluster.settle()
    cluster.change(replicas=4)
    cluster.settle(rounds=80)
    found = classes_of(cluster)
    assert all(sum(f"t{n}" in names for names in found.values()) >= 2 for n in TWELVE)
    assert replace(cluster.memory, caps={}).slots == frozenset(int(name[-1]) for name in found)


class Histogram(dict[int, float]):
    """One whose end can be seen."""


def test_remembered_figures_keep_no_histograms() -> None:
    """4,096 mixes with theirs would be more memory than an operator pod has."""
    cache = SeverityCache()

    def ask(histogram: Histogram) -> None:
        law = ClassLaw(512.0, 150.0, 0.0, "digest", histogram)
        cache.figures(((1.0, law),), 430_000, 16, 131_072)

    histogram = Histogram(dict.fromkeys(range(100, 200), 1.0))
    kept = weakref.ref(histogram)
    ask(histogram)
    del histogram
    gc.collect()
    assert kept() is None
    ask(Histogram({150: 1.0}))
    assert cache.misses == 1, "it is found again by the digest"
