"""`evenflow simulate` as people call it: output shapes, candidates, and what is refused with which words."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from evenflow_cli.main import app
from evenflow_cli.simulation.policies import candidate, operated_spec, static_config
from evenflow_cli.simulation.runs import engine_spec
from evenflow_operator.api.enums import AdmissionMode, SchedulingPolicy
from evenflow_operator.api.pool import LLMServingPool

ROW_KEYS = [
    "name",
    "requests",
    "completed",
    "evictions",
    "recomputed_tokens",
    "generated_tokens",
    "mean_latency_s",
    "p50_latency_s",
    "p99_latency_s",
    "mean_ttft_s",
    "latency_per_token_s",
    "kv_use_mean",
    "makespan_s",
]
ALL = "stock,watermark,SJF,OneBitSVF,SVF,evenflow"


def manifest(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.evenflow.dev/v1alpha1",
        "kind": "LLMServingPool",
        "metadata": {"name": "small"},
        "spec": {
            "model": {"name": "a/model", "maxModelLen": 4000},
            "replicas": 2,
            "engine": {"type": "Simulated", "kvCacheTokens": 8000, "maxNumBatchedTokens": 1024},
            "trafficClasses": [
                {"name": "chat", "promptTokens": 200, "outputTokens": 150},
                {"name": "document", "promptTokens": 1500, "outputTokens": 100},
            ],
            **spec,
        },
    }


@pytest.fixture
def pool_file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(manifest()))
    return path


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    for number in range(240):
        prompt = 1500 if number % 3 == 0 else 150 + number % 100
        lines.append(f"{number * 0.06:.2f},{prompt},{40 + 37 * number % 200}")
    path = tmp_path_factory.mktemp("trace") / "small.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def run(*arguments: object, jobs: int = 1) -> Any:
    return CliRunner().invoke(app, ["simulate", "--jobs", str(jobs), *map(str, arguments)])


def rows_of(result: Any) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)["rows"]}


def test_the_json_is_the_documented_one(pool_file: Path, trace_file: Path) -> None:
    result = run("-f", pool_file, "--trace", trace_file, "-o", "json")
    rows = rows_of(result)
    assert list(rows) == ALL.split(",")
    for row in rows.values():
        assert list(row) == ROW_KEYS
        assert row["requests"] == row["completed"] == 240
        assert row["generated_tokens"] == sum(40 + 37 * number % 200 for number in range(240))
        assert 0 < row["mean_ttft_s"] < row["mean_latency_s"] < row["p99_latency_s"] < row["makespan_s"]
    trace = json.loads(result.stdout)["trace"]
    assert trace["classes"] == {"chat": 160, "document": 80}
    assert (trace["requests"], trace["refused"], trace["files"]) == (240, 0, ["small.csv.gz"])
    assert rows["stock"]["evictions"] > 0
    assert rows["watermark"]["evictions"] < rows["stock"]["evictions"]
    assert rows["evenflow"]["mean_latency_s"] < 0.9 * rows["stock"]["mean_latency_s"]
    assert rows["evenflow"]["evictions"] < rows["SVF"]["evictions"]


def test_processes_seeds_and_order_change_nothing_that_they_should_not(pool_file: Path, trace_file: Path) -> None:
    common = ("-f", pool_file, "--trace", trace_file, "-o", "json", "--policies")
    alone = rows_of(run(*common, "evenflow,stock"))
    spread = rows_of(run(*common, "stock,evenflow", jobs=2))
    assert alone == spread
    assert rows_of(run(*common, "stock", "--seed", 5))["stock"] != alone["stock"]


def test_oracle_rate_and_slice_reach_the_simulation(pool_file: Path, trace_file: Path) -> None:
    common = ("-f", pool_file, "--trace", trace_file, "-o", "json", "--policies", "SJF")
    plain = rows_of(run(*common))["SJF"]
    oracle = rows_of(run(*common, "--oracle"))["SJF"]
    slow = rows_of(run(*common, "--rate-scale", 0.1))["SJF"]
    cut = rows_of(run(*common, "--seconds", 6))["SJF"]
    roomy = rows_of(run(*common, "--kv-tokens", 400_000))["SJF"]
    assert oracle["mean_latency_s"] < plain["mean_latency_s"]
    assert slow["mean_latency_s"] < plain["mean_latency_s"]
    assert slow["makespan_s"] > 140
    assert cut["requests"] == 100
    assert roomy["evictions"] == 0


def test_the_first_seconds_count_from_the_first_request(pool_file: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.csv"
    late.write_text("arrival_s,prompt_tokens,output_tokens\n500,10,5\n503,10,5\n509,10,5\n")
    common = ("-f", pool_file, "--trace", late, "-o", "json", "--policies", "stock", "--seconds", 5)
    assert rows_of(run(*common))["stock"]["requests"] == 2


def test_table_picture_and_every_candidate(pool_file: Path, trace_file: Path) -> None:
    names = "pool,prompt-volume,watermark=0.1,max-num-active-seqs=4,cap=0.9,count-cap=0.9"
    table = run("-f", pool_file, "--trace", trace_file, "--policies", names)
    assert table.exit_code == 0
    for name in names.split(","):
        assert name in table.stdout
    assert "240 requests" in table.stdout
    png = run("-f", pool_file, "--trace", trace_file, "--policies", "stock,evenflow", "-o", "png")
    assert png.exit_code == 0
    assert png.stdout_bytes.startswith(b"\x89PNG")


def test_classes_of_the_trace_and_of_its_files(pool_file: Path, tmp_path: Path) -> None:
    named = tmp_path / "named.jsonl"
    lines = [
        {"arrival_s": number, "prompt_tokens": 10, "output_tokens": 5, "class": name}
        for number, name in enumerate(("chat", "document", "batch", "chat"))
    ]
    named.write_text("\n".join(json.dumps(line) for line in lines))
    plain = tmp_path / "plain.csv"
    plain.write_text("arrival_s,prompt_tokens,output_tokens\n0.5,10,0\n")
    result = run(
        "-f", pool_file, "--trace", named, "--trace", f"document={plain}", "-o", "json", "--policies", "evenflow"
    )
    trace = json.loads(result.stdout)["trace"]
    assert trace["classes"] == {"chat": 2, "default": 1, "document": 2}
    assert "requests of classes that the pool lacks (batch): 1, counted as default" in result.stderr
    assert "requests without output: 1" in result.stderr
    assert rows_of(result)["evenflow"]["completed"] == 5


def test_requests_that_do_not_fit_are_counted_and_named(pool_file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,5000,10\n")
    result = run("-f", pool_file, "--trace", trace, "-o", "json", "--policies", "stock,evenflow")
    assert [row["completed"] for row in rows_of(result).values()] == [1, 1]
    assert json.loads(result.stdout)["trace"]["refused"] == 1
    assert "1 request is longer than spec.model.maxModelLen allows and was refused" in result.stderr


def test_prefix_caching_where_the_trace_names_blocks(pool_file: Path, trace_file: Path, tmp_path: Path) -> None:
    lines = ["arrival_s,prompt_tokens,output_tokens,hash_ids"]
    lines += [f"{number * 0.05},1600,40,1 2 3 {number + 10}" for number in range(100)]
    hashed = tmp_path / "hashed.csv"
    hashed.write_text("\n".join(lines))
    common = ("-f", pool_file, "--trace", hashed, "-o", "json", "--policies", "stock")
    found = {kind: rows_of(run(*common, "--prefix-caching", kind))["stock"] for kind in ("off", "lru", "ideal")}
    assert found["ideal"]["mean_latency_s"] <= found["lru"]["mean_latency_s"] < 0.7 * found["off"]["mean_latency_s"]
    refused = run("-f", pool_file, "--trace", trace_file, "--prefix-caching", "lru")
    assert refused.exit_code == 2
    assert "hash_ids" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "stock,best"], "--policies: found 'best'; choose from stock, watermark"),
        (["--policies", "stock,stock"], "name each policy once"),
        (["--policies", "cap=x"], "must be a number from"),
        (["--policies", "max-num-active-seqs=2.5"], "must be whole"),
        (["--policies", "SVF=1"], "choose from"),
        (["--rate-scale", "0"], "--rate-scale: found 0"),
        (["--rate-scale", "1e300"], "it must be a number from 0.001 to 1000"),
        (["--rate-scale", "nan"], "--rate-scale: found nan"),
        (["--seconds", "-1"], "--seconds: found -1"),
        (["--routing", "best"], "routing must be one of least-outstanding"),
        (["--prefix-caching", "some"], "choose off, lru or ideal"),
        (["--time-unit", "h"], "choose s, ms, us, ns, iso"),
        (["--column", "arrival_s"], "write FIELD=HEADER"),
        (["--column", "class=nope"], "column 'nope' is missing"),
        (["--kv-tokens", "128"], "spec.engine.kvCacheTokens: every request of the trace is longer than 128"),
    ],
)
def test_mistakes_are_one_line_and_status_two(
    pool_file: Path, trace_file: Path, arguments: list[str], words: str
) -> None:
    result = run("-f", pool_file, "--trace", trace_file, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n", "no requests"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,x\n", "t.csv:2: output_tokens is 'x'"),
        ("time,prompt_tokens,output_tokens\n5,1,1\n9,1,1\n", "declare the time unit"),
        (None, "can't be read"),
    ],
)
def test_traces_that_cannot_be_used(pool_file: Path, tmp_path: Path, text: str | None, words: str) -> None:
    trace = tmp_path / "t.csv"
    if text is not None:
        trace.write_text(text)
    result = run("-f", pool_file, "--trace", trace)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": 0}, "spec.replicas: found 0"),
        ({"replica": 3}, "did you mean"),
        ({"engine": {"kvCacheTokens": 1}}, "spec.engine.kvCacheTokens"),
        (None, "found 0 LLMServingPools"),
        (
            {
                "placement": {
                    "strategy": "Static",
                    "static": [{"slot": 0, "classes": ["chat"]}, {"slot": 1, "classes": ["chat"]}],
                }
            },
            "spec.placement.static: no slot serves document",
        ),
    ],
)
def test_pools_that_cannot_be_used(trace_file: Path, tmp_path: Path, spec: dict[str, Any] | None, words: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("" if spec is None else yaml.safe_dump(manifest(**spec)))
    result = run("-f", path, "--trace", trace_file)
    assert result.exit_code == 2
    assert words in result.stderr


def test_candidates_are_what_they_are_named_for() -> None:
    spec = LLMServingPool.parse(manifest(scheduling={"policy": "FCFS", "agingSeconds": 0}, mode="Paused")).spec
    stock = static_config(candidate("stock"), spec, 1.0)
    assert (stock.policy, stock.victim, stock.admission.mode) == ("FCFS", "LeastProgress", "Off")
    assert (stock.aging_seconds, stock.admission.watermark, stock.classes) == (0.0, 0.0, ("chat", "document"))
    assert static_config(candidate("watermark"), spec, 1.0).admission.watermark == 0.05
    bare = static_config(candidate("SVF"), spec, 1.0)
    assert (bare.policy, bare.aging_seconds, bare.admission.watermark) == ("SVF", 0.0, 0.0)
    assert static_config(candidate("OneBitSVF"), spec, 1.0).proxies is not None
    counted = static_config(candidate("count-cap=0.5"), spec, 3.0).admission
    assert (counted.unit, counted.per_iteration) == ("Requests", 1.5)
    operated = operated_spec(candidate("evenflow"), spec)
    assert operated.admission.mode is AdmissionMode.AUTO
    assert operated.scheduling.policy is SchedulingPolicy.SVF
    assert operated.scheduling.aging_seconds == 30
    assert operated_spec(candidate("pool"), spec) is spec
    assert engine_spec(spec).max_model_len == 4000
