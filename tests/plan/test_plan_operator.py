"""The plan is the operator's own: same placement, same caps; its rates are those of the simulated pool."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plan_kit import ROOT, advice, manifest, planned, tier, trace_of, wide, written

from evenflow_cli.pool_file import read_pool_file
from evenflow_cli.simulation.operator_loop import OperatorLoop
from evenflow_cli.simulation.policies import candidate
from evenflow_cli.simulation.runs import Load, simulate
from evenflow_model.fleet.records import EngineRequest

TWELVE = (64, 80, 100, 125, 128, 160, 200, 250, 256, 320, 400, 512)
POOLS = [
    manifest([tier(length) for length in TWELVE], replicas=8),
    manifest([tier(100), tier(125)], admission={"mode": "Fixed", "capMicro": 900_000}),
    manifest([tier(100), wide()], admission={"mode": "Auto", "unit": "Requests", "watermarkPercent": 3}),
    manifest([tier(16, 300), tier(24, 300), wide("long", 4000, 300)], placement={"maxClassesPerReplica": 2}),
    manifest([wide(), wide("code", 2000, 30)], admission={"mode": "Off"}),
    manifest([tier(5, 300), tier(10, 300)], engine={"kvCacheTokens": 5_000}),
]


@pytest.mark.parametrize("number", range(len(POOLS)))
def test_placement_and_admission_are_the_operators(tmp_path: Path, number: int) -> None:
    path = written(tmp_path, POOLS[number])
    document, loop = planned(path), OperatorLoop(read_pool_file(path))
    placed = {one["slot"]: one["classes"] for one in document["placement"]["slots"]}
    by_slot = {slot: one for one in document["admission"] for slot in one["slots"]}
    for slot, config in enumerate(loop.configs):
        assert placed[slot] == sorted(config.classes)
        found = by_slot[slot]
        assert (found["mode"], found["unit"]) == (config.admission.mode, config.admission.unit)
        assert found["watermarkPercent"] == pytest.approx(100 * config.admission.watermark)
        if config.admission.per_iteration is None:
            assert found["perIteration"] is None
        else:
            assert found["perIteration"] == pytest.approx(config.admission.per_iteration, rel=1e-5)
            rate = next(
                group["evictionFreeRateBlocks"]
                for one in document["placements"]
                if one["name"] == document["placement"]["name"]
                for group in one["groups"]
                if slot in group["slots"]
            )
            unit = 1 if found["unit"] == "Volume" else rate
            assert found["capMultiple"] == pytest.approx(config.admission.per_iteration / unit, rel=1e-3)


def tiers_trace(folder: Path, count: int = 3000) -> Path:
    draw = random.Random(3)
    rows = [(0.2 * i, 512, length, f"t{length}") for i in range(count) for length in [draw.choice((128, 256, 512))]]
    return trace_of(folder, rows)


def test_lengths_of_the_trace_replace_the_declared_ones(tmp_path: Path) -> None:
    pool = written(tmp_path, manifest([wide(f"t{length}", 512, 200) for length in (128, 256, 512)]))
    declared, observed = planned(pool), planned(pool, "--trace", str(tiers_trace(tmp_path)))
    assert declared["placement"]["severity"] < 0.005
    assert observed["placement"]["severity"] == pytest.approx(0.55, abs=0.02)
    assert [(one["outputTokens"], one["source"]) for one in observed["classes"]] == [
        (128, "trace"),
        (256, "trace"),
        (512, "trace"),
    ]
    assert observed["admission"][0]["capMultiple"] == 1
    assert observed["trims"][0]["tiers"] == [128, 256, 512]
    assert observed["capacity"]["rateSource"] == "trace"
    assert observed["capacity"]["requestsPerMinute"] == pytest.approx(300, rel=0.01)


def test_a_class_with_few_requests_keeps_its_declared_lengths(tmp_path: Path) -> None:
    rows = [(i / 10, 500, 60, "chat") for i in range(600)] + [(i, 700, 70, "rare") for i in range(60)]
    pool = written(tmp_path, manifest([wide(), wide("rare", 2000, 300)]))
    document = planned(pool, "--trace", str(trace_of(tmp_path, rows)))
    by_name = {one["name"]: one for one in document["classes"]}
    assert (by_name["chat"]["promptTokens"], by_name["chat"]["source"]) == (500, "trace")
    assert (by_name["rare"]["promptTokens"], by_name["rare"]["source"]) == (2000, "declared")
    assert any(note.startswith("rare: the trace has 60 requests") for note in document["notes"])


def test_without_a_class_column_the_nearest_prompt_decides(tmp_path: Path) -> None:
    rows = [(i / 10, 400 if i % 2 else 5000, 90, "") for i in range(1200)]
    path = trace_of(tmp_path, rows)
    path.write_text(re.sub(r",(class)?$", "", path.read_text(), flags=re.MULTILINE))
    document = planned(written(tmp_path, manifest([wide(), wide("long", 4000, 300)])), "--trace", str(path))
    assert {one["name"]: one["requestsObserved"] for one in document["classes"]} == {"chat": 600, "long": 600}


def test_requests_of_no_class_are_on_every_slot(tmp_path: Path) -> None:
    rows = [(i / 10, 500, 60, "chat") for i in range(600)] + [(i / 10, 800, 90, "else") for i in range(600)]
    document = planned(written(tmp_path, manifest([wide()])), "--trace", str(trace_of(tmp_path, rows)))
    assert [one["name"] for one in document["classes"]] == ["chat", "default"]
    assert document["placements"][0]["groups"][0]["classes"] == ["chat", "default"]
    unnamed = planned(written(tmp_path, manifest([])), "--trace", str(trace_of(tmp_path, rows)))
    assert [one["name"] for one in unnamed["classes"]] == ["default"]


def test_the_declared_rate_wins_and_a_surprise_is_said(tmp_path: Path) -> None:
    pool = written(tmp_path, manifest([wide("t128", requestsPerMinute=40)]))
    rows = [(i / 10, 512, 100 + i % 50, "t128") for i in range(900)]
    document = planned(pool, "--trace", str(trace_of(tmp_path, rows)))
    assert document["capacity"]["requestsPerMinute"] == 40
    assert any("the pool declares 40" in note for note in document["notes"])


def test_requests_beyond_max_model_len_count_for_nothing(tmp_path: Path) -> None:
    model = {"name": "a/b", "maxModelLen": 4000}
    rows = [(i / 10, 5000 if i % 10 == 0 else 512, 100 + i % 50, "chat") for i in range(900)]
    document = planned(written(tmp_path, manifest([wide()], model=model)), "--trace", str(trace_of(tmp_path, rows)))
    assert (document["trace"]["requests"], document["trace"]["refused"]) == (810, 90)
    assert document["classes"][0]["promptTokens"] == 512


@pytest.mark.parametrize(
    ("classes", "engine"),
    [
        ([wide("chat", 1000, 200)], {"kvCacheTokens": 60_000}),
        ([wide("short", 300, 60), wide("long", 6000, 250)], {"kvCacheTokens": 120_000}),
        ([wide("chat", 500, 150)], {"kvCacheTokens": 430_000, "maxNumSeqs": 48}),
        ([wide("document", 30_000, 150)], {"kvCacheTokens": 430_000, "maxNumBatchedTokens": 8192}),
        ([wide("code", 2000, 20)], {"kvCacheTokens": 430_000}),
    ],
)
def test_the_rate_of_a_replica_is_what_the_simulation_completes(
    tmp_path: Path, classes: list[dict[str, Any]], engine: dict[str, Any]
) -> None:
    path = written(tmp_path, manifest(classes, engine=engine, replicas=1))
    rate = planned(path)["capacity"]["replicaSustains"] / 60
    run = simulate(Load(read_pool_file(path), tuple(_burst(classes, 1500))), candidate("watermark"))
    assert rate == pytest.approx(run.result.completed / run.result.makespan_s, rel=0.12)


def _burst(classes: list[dict[str, Any]], count: int) -> Iterator[EngineRequest]:
    draw = random.Random(5)
    for number in range(count):
        one = classes[number % len(classes)]
        # Gamma with shape 1/.6²: the default spread of 60 %.
        output = max(1, round(draw.gammavariate(2.78, one["outputTokens"] / 2.78)))
        yield EngineRequest(
            request_id=str(number),
            prompt_tokens=one["promptTokens"],
            output_tokens=output,
            max_tokens=output,
            traffic_class=one["name"],
            arrival_s=0.0,
        )


def _keys(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _keys(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, f"{path}[]")
        return
    if path and not isinstance(value, dict):
        yield path


def test_every_json_key_is_documented_and_no_other(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "plan.md").read_text()
    documented = set(re.findall(r"^\| `([\w.\[\]]+)` \|", text[text.index("## JSON") :], flags=re.MULTILINE))
    placement = {"strategy": "Static", "static": [{"slot": 1, "classes": []}, {"slot": 0, "classes": ["t100"]}]}
    static = manifest(
        [tier(100, requestsPerMinute=60), tier(125, requestsPerMinute=60)], replicas=2, placement=placement
    )
    pools = [written(tmp_path, static), ROOT / "examples" / "pool-tiers.yaml", ROOT / "examples" / "pool.yaml"]
    outputs = [planned(pool) for pool in pools]
    outputs.append(planned(pools[0], "--trace", str(tiers_trace(tmp_path, 600))))
    assert outputs[0]["placement"]["unplaced"] == ["t125"]
    assert advice(outputs[0], "placement")[0]
    found = {key for output in outputs for key in _keys(output)}
    assert found - documented == set()
    # No mix of these is beyond every random cap, so that null never stands there.
    assert documented - found == {"trims[].randomCap"}


def test_classes_of_a_pool_are_named_in_its_order() -> None:
    names = [one["name"] for one in planned(ROOT / "examples" / "pool-azure.yaml")["classes"]]
    assert names == ["conversation", "code"]
