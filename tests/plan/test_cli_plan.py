"""`evenflow plan` as people call it: what it says about pools, and what it refuses with which words."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from plan_kit import ROOT, advice, manifest, planned, run_plan, tier, trace_of, wide, written

from evenflow_cli.lint import Finding, lint_pool

TOPICS = ["memory", "placement", "admission", "watermark", "trims", "replicas"]


def test_wide_lengths_need_nothing() -> None:
    document = planned(ROOT / "examples" / "pool.yaml")
    (slots,) = document["admission"]
    assert document["placement"]["severity"] < 0.005
    assert (slots["capMultiple"], slots["capBounds"], slots["watermarkPercent"]) == (2.5, [0.5, 2.5], 5)
    assert document["trims"] == []
    assert [one["topic"] for one in document["advice"]] == TOPICS
    for topic in ("placement", "admission", "watermark", "trims"):
        act, text = advice(document, topic)
        assert not act
        assert text.startswith(("Nothing to", "Leave every class on every slot"))


def test_tiers_need_a_cap_and_no_trim_cures_them() -> None:
    document = planned(ROOT / "examples" / "pool-tiers.yaml")
    (slots,), (trims,) = document["admission"], document["trims"]
    assert document["placement"]["severity"] == pytest.approx(0.546, abs=0.001)
    assert (slots["capMultiple"], slots["watermarkPercent"]) == (1, 1)
    assert slots["evictionFreeWatermarkPercent"] == pytest.approx(18.0, abs=0.1)
    # docs/theory.md §5: one token makes the gcd 1 and changes nothing; a random cap of 16.2 % ends the rhythm.
    assert trims["joint"]["tokens"] == 1
    assert trims["joint"]["severity"] == pytest.approx(0.545, abs=0.001)
    assert trims["pairwise"]["tokens"] == 2
    assert not trims["trimsCure"]
    assert trims["randomCap"]["widthPercent"] == pytest.approx(16.2, abs=0.05)
    assert trims["randomCap"]["severity"] == 0
    assert advice(document, "trims")[1].startswith("Don't trim tiers: 128 to 127")
    assert "starts the cap at 1.00 x*" in advice(document, "admission")[1]


def test_measures_go_from_nothing_to_the_cap() -> None:
    (slots,) = planned(ROOT / "examples" / "pool-tiers.yaml")["admission"]
    measures = {one["name"]: one for one in slots["measures"]}
    evictions = [one["evictionsPerCompletion"] for one in slots["measures"]]
    assert evictions == sorted(evictions, reverse=True)
    # docs/theory.md §5: 18 % ends the waves at 91.7 % of x*, the cap at x* does so with 1 %.
    assert measures["watermark 18.1%"]["evictionsPerCompletion"] == 0
    assert measures["watermark 18.1%"]["throughputRatio"] == pytest.approx(0.917, abs=0.001)
    assert measures["cap 1.0 x*, watermark 1%"]["throughputRatio"] == 1
    assert measures["watermark 5%"]["evictionsPerCompletion"] == pytest.approx(0.417, abs=0.001)


def test_the_watermark_that_is_enough_is_written_in_one_form() -> None:
    text = " ".join(run_plan(ROOT / "examples" / "pool-tiers.yaml").stdout.split())
    assert set(re.findall(r"\b1[78](?:\.\d+)? ?%", text)) == {"18.1%"}


def test_an_output_that_there_is_not_is_refused_in_plain_words() -> None:
    result = run_plan(ROOT / "examples" / "pool.yaml", "-o", "yaml")
    assert result.exit_code == 2
    assert "found 'yaml'; choose table, json, png" in result.stderr
    assert "Value error" not in result.stderr


def test_x_star_is_exact() -> None:
    document = planned(ROOT / "examples" / "pool-tiers.yaml")
    by_name = {one["name"]: one for one in document["classes"]}
    # M / (s o + o (o + 1) / 2), and the same with whole blocks of 16.
    assert by_name["tier-128"]["evictionFreeRate"] == pytest.approx(60_000 / 73_792, rel=1e-5)
    assert by_name["tier-128"]["evictionFreeRateBlocks"] == pytest.approx(
        60_000 / sum(16 * -(-(512 + step) // 16) for step in range(1, 129)), rel=1e-5
    )


def test_a_limit_that_keeps_classes_apart_is_named(tmp_path: Path) -> None:
    lengths = (64, 80, 100, 125, 128, 160, 200, 250, 256, 320, 400, 512)
    document = planned(written(tmp_path, manifest([tier(length) for length in lengths], replicas=8)))
    by_name = {one["name"]: one for one in document["placements"]}
    assert not by_name["All"]["feasible"]
    assert by_name["All"]["severity"] < 0.005 < document["placement"]["severity"]
    act, text = advice(document, "placement")
    assert act
    assert "maxClassesPerReplica to 12" in text


def test_static_that_synchronises_is_advised_against(tmp_path: Path) -> None:
    placement = {"strategy": "Static", "static": [{"slot": slot, "classes": ["t100"]} for slot in (0, 1)]}
    pool = written(tmp_path, manifest([tier(100), tier(125)], placement=placement))
    document = planned(pool)
    assert [one["name"] for one in document["placements"]] == ["All", "Balanced", "Static", "one class per slot"]
    assert document["placement"]["slots"][0] == {"slot": 0, "classes": ["t100"]}
    assert document["placement"]["name"] == "Static"
    act, text = advice(document, "placement")
    assert act
    assert "spec.placement.strategy to Balanced" in text


@pytest.mark.parametrize(
    ("admission", "classes", "act", "words"),
    [
        ({"mode": "Off"}, [tier(100), tier(125)], True, "spec.admission.mode to Auto"),
        ({"mode": "Off"}, [wide()], False, "cause no waves"),
        ({"mode": "Fixed", "capMicro": 2_500_000}, [tier(100), tier(125)], True, "too loose"),
        ({"mode": "Fixed", "capMicro": 1_000_000}, [tier(100), tier(125)], False, "about x*"),
        ({"mode": "Fixed", "capMicro": 700_000}, [wide()], True, "leaves memory unused"),
        ({"mode": "Fixed", "capMicro": 2_000_000}, [wide()], False, "loose enough"),
        ({"mode": "Auto", "unit": "Requests"}, [wide()], True, "unit to Volume"),
    ],
)
def test_admission_is_judged(
    tmp_path: Path, admission: dict[str, Any], classes: list[dict[str, Any]], act: bool, words: str
) -> None:
    found = advice(planned(written(tmp_path, manifest(classes, admission=admission))), "admission")
    assert found[0] is act
    assert words in found[1]


@pytest.mark.parametrize(
    ("admission", "act", "words"),
    [
        ({"watermarkPercent": 20}, True, "Lower watermarkPercent"),
        ({"mode": "Off"}, True, "watermarkPercent to 5"),
        ({}, False, "5%, set by mode Auto"),
    ],
)
def test_watermark_is_judged(tmp_path: Path, admission: dict[str, Any], act: bool, words: str) -> None:
    found = advice(planned(written(tmp_path, manifest([wide()], admission=admission))), "watermark")
    assert found[0] is act
    assert words in found[1]


def test_where_memory_does_not_bind_nothing_is_advised(tmp_path: Path) -> None:
    engine = {"kvCacheTokens": 430_000, "maxNumSeqs": 64}
    document = planned(written(tmp_path, manifest([tier(256), tier(512)], engine=engine)))
    assert document["placement"]["severity"] > 0.05
    assert document["capacity"]["bindingResource"] == "sequences"
    for topic in ("placement", "admission", "watermark", "trims"):
        act, text = advice(document, topic)
        assert not act
        assert "KV memory doesn't bind" in text


def test_short_prompts_are_cured_by_a_trim(tmp_path: Path) -> None:
    classes = [tier(3, 32), tier(9, 32)]
    document = planned(written(tmp_path, manifest(classes, engine={"kvCacheTokens": 2_000})))
    assert document["trims"][0]["trimsCure"]
    assert advice(document, "trims") == (True, "Trim 9 to 8: severity falls from 0.099 to 0.")


@pytest.mark.parametrize(
    ("replicas", "extra", "act", "words"),
    [
        (1, {}, True, "Run 3 replicas (3 GPUs)"),
        (3, {}, False, "3 replicas are right"),
        (9, {}, False, "3 replicas would do"),
        (3, {"autoscaling": {"minReplicas": 2, "maxReplicas": 2}}, True, "maxReplicas from 2 to 3"),
        (3, {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}, False, "within spec.autoscaling"),
    ],
)
def test_replicas_for_the_declared_rate(
    tmp_path: Path, replicas: int, extra: dict[str, Any], act: bool, words: str
) -> None:
    pool = manifest([wide(requestsPerMinute=900)], replicas=replicas, **extra)
    document = planned(written(tmp_path, pool))
    found = advice(document, "replicas")
    assert found[0] is act
    assert words in found[1]
    capacity = document["capacity"]
    assert capacity["replicasNeeded"] == 3
    assert max(capacity["loadPercentNeeded"].values()) <= 75
    assert capacity["loadPercent"]["kv"] * replicas == pytest.approx(capacity["loadPercentNeeded"]["kv"] * 3, rel=1e-4)
    assert 2 * capacity["replicaAtTarget"] < 900 <= 3 * capacity["replicaAtTarget"]


def test_more_replicas_than_a_pool_may_have(tmp_path: Path) -> None:
    document = planned(written(tmp_path, manifest([wide(requestsPerMinute=9_000_000)])))
    assert document["capacity"]["replicasNeeded"] is None
    assert advice(document, "replicas")[1].startswith("Split the pool")


@pytest.mark.parametrize(
    ("engine", "spec", "tokens", "source", "act"),
    [
        ({"kvCacheTokens": 50_007}, {}, 50_000, "spec.engine.kvCacheTokens", False),
        # Expected on A100-80GB: 435-450k for 8B on one GPU, 1.38-1.43M for 70B on eight.
        ({}, {}, 444_992, "the dimensions of", False),
        (
            {},
            {"model": {"name": "meta-llama/Llama-3.3-70B-Instruct"}, "accelerator": {"parallelism": {"tensor": 8}}},
            1_385_504,
            "the dimensions of",
            False,
        ),
        ({}, {"model": {"name": "somebody/else-8b"}}, 430_000, "the default", True),
        ({}, {"model": {"name": "x/Llama-3.1-8B-AWQ"}}, 430_000, "the default", True),
        ({}, {"accelerator": {"products": ["Unheard-Of"]}}, 430_000, "the default", True),
        ({"type": "Simulated"}, {}, 430_000, "the default", False),
    ],
)
def test_memory_comes_from_what_is_known(
    tmp_path: Path, engine: dict[str, Any], spec: dict[str, Any], tokens: int, source: str, act: bool
) -> None:
    document = planned(written(tmp_path, manifest([wide()], engine=engine, **spec)))
    assert document["memory"]["usableKvTokens"] == tokens
    assert document["memory"]["source"].startswith(source)
    assert advice(document, "memory")[0] is act


def test_the_step_time_model_follows_the_model_or_says_so(tmp_path: Path) -> None:
    big = {"model": {"name": "meta-llama/Llama-3-70B"}, "accelerator": {"parallelism": {"tensor": 8}}}
    assert planned(written(tmp_path, manifest([wide()], **big)))["capacity"]["stepTimeModel"] == "A100-70B"
    other = planned(written(tmp_path, manifest([wide()], model={"name": "a/b"})))
    assert any("iteration times of a/b aren't known" in note for note in other["notes"])


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ({}, ["--kv-tokens", "-5"], r"--kv-tokens: found -5; give .* from 32"),
        ({}, ["--kv-tokens", "500"], r"spec.trafficClasses\[0\]: found 1,200 tokens .* 496 tokens of KV memory"),
        ({"replicas": 0}, [], r"spec.replicas: found 0; .* at least 1"),
        ({"trafficClasses": []}, [], r"spec.trafficClasses: found none.*--trace"),
        ({}, ["--trace", "nowhere.csv"], r"nowhere.csv: can't be read \(No such file or directory\)"),
        ({}, ["--column", "x", "--trace", "t.csv"], r"--column: found 'x'; write FIELD=HEADER"),
        ({}, ["--time-unit", "h", "--trace", "t.csv"], r"--time-unit: found 'h'; choose s"),
        (
            {"model": {"name": "meta-llama/Llama-3-70B"}, "engine": {}},
            [],
            r"spec.accelerator.parallelism: found 1 GPUs .* raise tensor",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(
    tmp_path: Path, spec: dict[str, Any], options: list[str], words: str
) -> None:
    result = run_plan(written(tmp_path, manifest([wide()], **spec)), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(words, result.stderr), result.stderr


def test_an_invalid_pool_gets_the_messages_of_lint(tmp_path: Path) -> None:
    document = manifest([{**wide(), "promtTokens": 3}], replicas=-1)
    path = written(tmp_path, document)
    result = run_plan(path)
    wanted = [Finding(str(path), 1, fault.path, fault.message).line(several=False) for fault in lint_pool(document)]
    assert len(wanted) == 2
    assert (result.exit_code, result.stdout, result.stderr.splitlines()) == (2, "", wanted)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    result = run_plan(tmp_path / "none.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none.yaml:(document): can't be read" in result.stderr


def test_a_trace_without_the_columns_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "bad.csv"
    trace.write_text("a,b\n1,2\n")
    result = run_plan(written(tmp_path, manifest([wide()])), "--trace", str(trace))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "bad.csv:1: column 'arrival_s' is missing" in result.stderr


def test_a_trace_in_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [(0, 70_000, 10, "chat"), (1, 70_000, 10, "chat")])
    result = run_plan(written(tmp_path, manifest([wide()])), "--trace", str(trace))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "every request is longer than 60,000 tokens" in result.stderr


def test_a_table_fits_and_has_no_colour_in_a_file(tmp_path: Path) -> None:
    pool = manifest([tier(length, requestsPerMinute=30) for length in range(100, 420, 10)], replicas=12)
    for path in (written(tmp_path, pool), ROOT / "examples" / "pool-tiers.yaml", ROOT / "examples" / "pool.yaml"):
        result = run_plan(path)
        assert result.exit_code == 0, result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 100
        assert "\x1b" not in result.stdout
        assert [line.split()[1] for line in result.stdout.splitlines() if line[:3] in ("-  ", "!  ")] == TOPICS


def test_a_picture_is_a_png_alone(tmp_path: Path) -> None:
    result = run_plan(written(tmp_path, manifest([tier(100), wide()])), "-o", "png")
    assert result.exit_code == 0, result.stderr
    assert result.stdout_bytes.startswith(b"\x89PNG\r\n\x1a\n")
    assert result.stdout_bytes.rstrip().endswith(b"IEND\xaeB`\x82")


def test_without_matplotlib_a_picture_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run_plan(written(tmp_path, manifest([wide()])), "-o", "png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "pip install 'evenflow[plot]'" in result.stderr
