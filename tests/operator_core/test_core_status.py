import json
from dataclasses import replace
from typing import Any

import pytest
from core_toy_cluster import CACHE, CHAT, CODE, ToyCluster, ready_cluster, spec_of

from evenflow_contract.worker_config import Admission
from evenflow_contract.worker_state import ClassLengths, WorkerLengths
from evenflow_model.lengths import LengthMix
from evenflow_model.severity import severity
from evenflow_operator.api.names import MAX_CLASSES, MAX_REPLICAS
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.api.status import LLMServingPoolStatus
from evenflow_operator.core.decide import decide
from evenflow_operator.core.status.figures import decimal
from evenflow_operator.core.status.throttle import throttled


def condition(cluster: ToyCluster, kind: str) -> dict[str, Any]:
    return next(entry for entry in cluster.status["conditions"] if entry["type"] == kind)


def work(cluster: ToyCluster, *, evictions: float = 0, completed: float = 100) -> None:
    for engine in cluster.engines.values():
        engine.evictions += evictions
        engine.completed += completed
        engine.admitted += completed
        engine.generated += 200 * completed
        engine.recomputed += 500 * evictions


def test_the_status_is_what_the_crd_accepts_and_selector_stands_there_from_the_first_write() -> None:
    cluster = ToyCluster(spec_of())
    cluster.decide()
    assert cluster.status["selector"] == "evenflow.dev/pool=llama"
    assert cluster.status["replicas"] == 0
    cluster.run(5)
    work(cluster, evictions=2)
    cluster.run(15)
    LLMServingPoolStatus.model_validate(cluster.status)
    assert len(cluster.status["conditions"]) == 12


@pytest.mark.parametrize(
    ("millionths", "text"), [(0, "0"), (1, "0.000001"), (13_000, "0.013"), (1_200_000, "1.2"), (20_000_000, "20")]
)
def test_severity_reads_as_a_decimal(millionths: int, text: str) -> None:
    assert decimal(millionths) == text
    LLMServingPoolStatus.model_validate({"severity": text})


def test_the_column_and_the_figure_say_the_same_and_are_absent_together() -> None:
    tiers = [{"name": f"t{n}", "promptTokens": 512, "outputTokens": n, "outputSpreadPercent": 0} for n in (128, 256)]
    cluster = ready_cluster(trafficClasses=tiers)
    assert float(cluster.status["severity"]) == cluster.status["severityMicro"] / 1e6 > 0.05
    cluster.change(trafficClasses=[])
    cluster.tick(61)
    cluster.decide()
    assert not {"severity", "severityMicro"} & set(cluster.status)


def test_a_severity_that_moves_waits_for_its_minute() -> None:
    cluster = ready_cluster()
    cluster.tick(61)
    cluster.decide()
    moved = {**cluster.status, "severityMicro": 77_000, "severity": "0.077"}
    assert throttled(moved, cluster.memory, cluster.memory.status_written_at + 59)[0] is None
    assert throttled(moved, cluster.memory, cluster.memory.status_written_at + 60)[0] == moved


def test_nothing_new_writes_nothing() -> None:
    cluster = ready_cluster()
    cluster.run(12, seconds=15)
    for _ in range(30):
        cluster.tick(15)
        assert cluster.decide().status is None


def test_measured_figures_are_written_once_a_minute_and_phases_at_once() -> None:
    cluster = ready_cluster()
    cluster.tick(61)
    cluster.decide()
    writes = []
    for _ in range(24):
        for engine in cluster.engines.values():
            engine.peak = 0.2 if engine.peak > 0.5 else 0.9
        cluster.tick(10)
        if cluster.decide().status is not None:
            writes.append(cluster.now)
    assert 3 <= len(writes) <= 5
    name = cluster.by_slot()[0][0].name
    cluster.pods[name] = replace(cluster.pods[name], ready=False)
    status = cluster.decide().status
    assert status is not None
    assert status["readyReplicas"] == 3


def test_the_status_of_the_largest_pool_can_be_stored() -> None:
    classes = [
        {"name": f"class-of-requests-{number:04d}", "promptTokens": 1000, "outputTokens": 200 + number}
        for number in range(MAX_CLASSES)
    ]
    placement = {"maxClassesPerReplica": MAX_CLASSES}
    cluster = ToyCluster(spec_of(replicas=MAX_REPLICAS, trafficClasses=classes, placement=placement), gpus=0)
    cluster.decide()
    for name, pod in cluster.pods.items():
        cluster.pods[name] = replace(pod, unschedulable="kein Platz für " + "ü" * 500)
    cluster.decide()
    assert len(cluster.status["slots"]) == MAX_REPLICAS
    assert all(slot["message"].startswith("kein Platz") for slot in cluster.status["slots"])
    # etcd's limit is 1.5 MiB, and the spec and managed fields stand in the object, too.
    assert len(json.dumps(cluster.status, ensure_ascii=False).encode()) < 1_450_000


def test_one_slot_that_is_not_there_yet_is_said_in_the_singular() -> None:
    cluster = ready_cluster()
    name = cluster.by_slot()[0][0].name
    cluster.pods[name] = replace(cluster.pods[name], ready=False)
    cluster.decide()
    assert condition(cluster, "Progressing")["message"] == "not serving yet: slot 0"


def test_every_spec_change_is_observed_even_when_nothing_else_follows() -> None:
    cluster = ready_cluster()
    cluster.change(metrics={"intervalSeconds": 14})
    cluster.decide()
    assert cluster.status["observedGeneration"] == 2
    assert {entry["observedGeneration"] for entry in cluster.status["conditions"]} == {2}


def test_the_transition_time_moves_only_when_the_status_flips() -> None:
    cluster = ready_cluster(replicas=2)
    since = condition(cluster, "Ready")["lastTransitionTime"]
    cluster.tick(100)
    cluster.change(metrics={"intervalSeconds": 14})
    cluster.decide()
    assert condition(cluster, "Ready")["lastTransitionTime"] == since
    name = cluster.by_slot()[0][0].name
    cluster.pods[name] = replace(cluster.pods[name], ready=False)
    cluster.decide()
    assert condition(cluster, "Ready")["lastTransitionTime"] != since
    assert condition(cluster, "Ready")["reason"] == "SomeSlotsReady"


def test_evictions_are_counted_per_thousand_completions_of_a_whole_minute() -> None:
    cluster = ready_cluster(replicas=2)
    for _ in range(9):
        work(cluster, evictions=2, completed=100)
        cluster.tick(15)
        cluster.decide()
    assert cluster.status["evictionsPerThousand"] == 20
    assert cluster.status["slots"][0]["evictionsPerThousand"] == 20
    assert cluster.status["slots"][0]["recomputedTokensPerThousand"] == 50
    assert condition(cluster, "EvictionFree")["reason"] == "EvictionsObserved"


def test_unmeasured_is_absent_and_unknown_never_zero() -> None:
    cluster = ready_cluster(replicas=1)
    assert "evictionsPerThousand" not in cluster.status
    assert condition(cluster, "EvictionFree")["status"] == "Unknown"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("silent", "MetricsStale"),
        ("nan", "MetricsInvalid"),
        ("source", "SourceUnavailable"),
        ("never", "MetricsMissing"),
    ],
)
def test_what_is_wrong_with_metrics_is_said(fault: str, reason: str) -> None:
    cluster = ready_cluster(replicas=1)
    engine = cluster.engines[cluster.by_slot()[0][0].uid]
    if fault == "nan":
        engine.evictions = float("nan")
    elif fault == "source":
        cluster.source_problem = "HTTP 500"
    else:
        engine.silent = True
        cluster.last = cluster.last if fault == "silent" else {}
    cluster.tick(100)
    cluster.decide()
    assert condition(cluster, "MetricsAvailable")["status"] == "False"
    assert condition(cluster, "MetricsAvailable")["reason"] == reason


def test_an_engine_that_waits_without_iterating_leaves_its_services_until_it_moves() -> None:
    cluster = ready_cluster(replicas=2)
    pod = cluster.by_slot()[0][0]
    engine = cluster.engines[pod.uid]
    engine.frozen, engine.waiting = True, 5
    for _ in range(5):
        cluster.tick(15)
        cluster.decide()
    assert not cluster.pods[pod.name].serving
    assert cluster.status["slots"][0]["phase"] == "Stalled"
    assert condition(cluster, "Degraded")["reason"] == "EngineStalled"
    cluster.restart_operator()
    cluster.tick(15)
    cluster.decide()
    assert not cluster.pods[pod.name].serving, "a restart forgets no stall"
    engine.frozen = False
    cluster.tick(15)
    cluster.tick(15)
    cluster.run(2)
    assert cluster.pods[pod.name].serving


def test_stock_scheduling_is_reported_and_no_stall() -> None:
    """The worker's count of iterations stays at zero there, because nothing counts."""
    cluster = ready_cluster(replicas=2)
    pod = cluster.by_slot()[0][0]
    engine = cluster.engines[pod.uid]
    engine.stock, engine.waiting = True, 5
    for _ in range(6):
        cluster.tick(15)
        cluster.decide()
    assert cluster.pods[pod.name].serving
    assert condition(cluster, "SchedulerActive")["reason"] == "StockScheduler"


def test_an_idle_engine_is_not_stalled() -> None:
    cluster = ready_cluster(replicas=1)
    engine = cluster.engines[cluster.by_slot()[0][0].uid]
    engine.frozen = True
    for _ in range(10):
        cluster.tick(15)
        assert cluster.decide().commands == ()


def test_a_spec_that_cannot_be_read_keeps_everything_and_says_so() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.generation += 1
    cluster.spec_problem = "spec.replicas: found -1, must be at least 0"
    plan = cluster.decide()
    assert plan.commands == ()
    assert condition(cluster, "SpecValid")["reason"] == "Invalid"
    assert "spec.replicas" in condition(cluster, "SpecValid")["message"]
    assert cluster.status["observedGeneration"] == 2
    assert {entry["observedGeneration"] for entry in cluster.status["conditions"]} == {2}
    assert len(cluster.status["slots"]) == 2
    assert cluster.decide().status is None
    LLMServingPoolStatus.model_validate(cluster.status)


def test_a_lost_write_before_a_spec_that_cannot_be_read_loses_nothing_of_the_status() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.memory = cluster.memory.status_lost()
    cluster.spec_problem = "spec.replicas: found -1, must be at least 0"
    before = cluster.status
    cluster.decide()
    assert cluster.status["slots"] == before["slots"]
    assert condition(cluster, "Ready")["status"] == "True"


def test_a_refused_create_of_a_slot_that_is_no_longer_wanted_is_no_news() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change(replicas=3)
    refused = replace(cluster.snapshot(), create_refusals={2: "exceeded quota"})
    status = decide(refused, CACHE).status
    assert status is not None
    assert "CreateRefused" in [entry["reason"] for entry in status["conditions"]]
    cluster.change(replicas=2)
    status = decide(replace(cluster.snapshot(), create_refusals={2: "exceeded quota"}), CACHE).status
    assert status is not None
    assert "CreateRefused" not in [entry["reason"] for entry in status["conditions"]]


def test_a_pool_that_never_had_a_valid_spec_has_a_status_too() -> None:
    cluster = ToyCluster(spec_of())
    cluster.spec_problem = "spec.model.name: missing; name a model"
    assert cluster.decide().commands == ()
    assert condition(cluster, "Ready")["reason"] == "SpecInvalid"
    assert cluster.status["selector"] == "evenflow.dev/pool=llama"
    LLMServingPoolStatus.model_validate(cluster.status)


def test_advisory_decides_and_shows_but_touches_nothing() -> None:
    cluster = ToyCluster(spec_of(mode="Advisory", replicas=2))
    plan = cluster.decide()
    assert plan.commands == ()
    assert all(one.message.startswith("would: ") for one in plan.decisions)
    assert any(record["type"] == "CreatePod" for record in cluster.status["decisions"])
    cluster.tick()
    assert cluster.decide().decisions == (), "the same advice is given once"
    for number in range(30):
        cluster.change(scheduling={"agingSeconds": number})
        assert cluster.decide().decisions == (), "no pods, so nothing new to advise"


def test_advice_that_no_longer_fits_the_record_is_not_repeated() -> None:
    cluster = ready_cluster(replicas=24)
    for number, pod in enumerate(list(cluster.pods.values())):
        assert pod.worker_config is not None
        cap = Admission("Limited", "Volume", 0.5 + number / 100, 0.05)
        cluster.pods[pod.name] = replace(pod, worker_config=replace(pod.worker_config, admission=cap))
    cluster.memory = replace(cluster.memory, caps={})
    cluster.change(mode="Advisory", admission={"mode": "Fixed", "capMicro": 2_000_000})
    assert len(cluster.decide().decisions) > 20
    assert cluster.decide().decisions == ()
    assert cluster.decide().decisions == ()


def test_paused_counts_and_reports_but_decides_nothing() -> None:
    cluster = ready_cluster(replicas=2)
    cluster.change(mode="Paused", replicas=1)
    plan = cluster.decide()
    assert (plan.commands, plan.decisions) == ((), ())
    assert cluster.status["readyReplicas"] == 2
    assert condition(cluster, "Progressing")["reason"] == "Paused"


def test_a_pool_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    cluster = ready_cluster(replicas=2)
    snapshot = cluster.snapshot()
    assert snapshot.pool is not None
    document = {
        "metadata": {"name": "llama", "namespace": "ns", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": cluster.spec,
    }
    plan = decide(replace(snapshot, pool=LLMServingPool.parse(document)), CACHE)
    assert (plan.commands, plan.status) == ((), None)


def test_a_class_too_large_for_what_an_engine_reports_is_named() -> None:
    large = {**CHAT, "promptTokens": 440_000}
    cluster = ready_cluster(replicas=1, trafficClasses=[large, CODE], engine={"type": "VLLM", "kvCacheTokens": 500_000})
    assert condition(cluster, "SpecValid")["reason"] == "ClassTooLarge"
    assert "trafficClasses[0]" in condition(cluster, "SpecValid")["message"]


def observed(outputs: dict[int, float], completed: int = 1000, prompt: float = 1000.0) -> WorkerLengths:
    return WorkerLengths({"chat": ClassLengths(completed, outputs, prompt, {})})


def test_observed_lengths_count_from_five_hundred_requests_on() -> None:
    cluster = ready_cluster(replicas=1)
    uid = cluster.by_slot()[0][0].uid
    for completed, gcd, reason in ((400, 1, "TooFewRequests"), (600, 128, "Drifted")):
        cluster.lengths[uid] = WorkerLengths(
            {
                "chat": ClassLengths(completed, {128: 0.5, 256: 0.5}, 1000.0, {}),
                "code": ClassLengths(completed, {512: 1.0}, 2000.0, {}),
            }
        )
        cluster.tick(61)
        cluster.decide()
        cluster.tick(61)
        cluster.decide()
        assert cluster.status["slots"][0]["lengthGcd"] == gcd
        assert condition(cluster, "ClassLengthDrift")["reason"] == reason
    row = next(entry for entry in cluster.status["classes"] if entry["name"] == "code")
    assert (row["observedOutputTokens"], row["observedPromptTokens"]) == (510, 2000)


def test_small_noise_in_observed_lengths_is_the_same_law() -> None:
    cluster = ready_cluster(replicas=1)
    uid = cluster.by_slot()[0][0].uid
    cluster.lengths[uid] = observed(dict.fromkeys(range(100, 400), 1.0))
    cluster.tick(61)
    cluster.decide()
    before = cluster.memory.observed["chat"]
    cluster.lengths[uid] = observed({length: 1.0 + (length % 7) * 1e-4 for length in range(100, 400)})
    cluster.tick(61)
    cluster.decide()
    assert cluster.memory.observed["chat"].digest == before.digest
    assert before.output_tokens == pytest.approx(249.5)


@pytest.mark.parametrize(("low", "high"), [(50, 1200), (200, 400), (240, 360), (255, 345), (300, 303)])
def test_quantised_lengths_have_the_severity_of_the_exact_ones(low: int, high: int) -> None:
    cluster = ready_cluster(replicas=1, trafficClasses=[CHAT])
    uid = cluster.by_slot()[0][0].uid
    histogram = dict.fromkeys(range(low, high), 1.0)
    cluster.lengths[uid] = observed(histogram, prompt=512.0)
    cluster.run(6, seconds=61)
    exact = severity(LengthMix.from_histogram([(1.0, 510.0, histogram)]), 430_000, 4300).value
    assert cluster.status["slots"][0]["severityMicro"] / 1e6 == pytest.approx(exact, abs=0.02)


def test_decisions_are_kept_to_twenty_and_those_on_several_slots_are_one() -> None:
    cluster = ready_cluster(replicas=4)
    for number in range(30):
        cluster.change(scheduling={"agingSeconds": number})
        cluster.decide()
    assert len(cluster.status["decisions"]) == 20
    assert cluster.status["decisions"][-1]["message"].startswith("slots 0,1,2,3: aging 28 s")


def test_a_lost_write_of_the_status_is_made_up_for() -> None:
    cluster = ready_cluster(replicas=1)
    assert cluster.decide().status is None
    cluster.memory = cluster.memory.status_lost()
    status = cluster.decide().status
    assert status is not None
    assert status["decisions"] == cluster.status["decisions"]
