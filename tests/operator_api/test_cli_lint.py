"""`evenflow lint`: one line for each fault, and the exit status."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenflow_cli.lint import MAX_FILE_BYTES, lint_command

GOOD: dict[str, Any] = {
    "apiVersion": "serving.evenflow.dev/v1alpha1",
    "kind": "LLMServingPool",
    "metadata": {"name": "llama-8b"},
    "spec": {
        "model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 16384},
        "replicas": 4,
        "trafficClasses": [{"name": "chat", "promptTokens": 1024, "outputTokens": 220, "minReplicas": 2}],
    },
}


def named(name: str, *classes: str, namespace: str | None = None) -> dict[str, Any]:
    listed = [{"name": one, "promptTokens": 100, "outputTokens": 10} for one in classes]
    metadata = {"name": name, **({} if namespace is None else {"namespace": namespace})}
    return {**GOOD, "metadata": metadata, "spec": {**GOOD["spec"], "trafficClasses": listed}}


def changed(**spec: Any) -> str:
    return yaml.safe_dump({**GOOD, "spec": {**GOOD["spec"], **spec}})


@pytest.fixture
def lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(text: str | bytes, output: str = "table") -> tuple[int, list[str], str]:
        file = tmp_path / "pool.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        status = lint_command([file], output)
        captured = capsys.readouterr()
        return status, [line.replace(str(file), "FILE") for line in captured.out.splitlines()], captured.err

    return run


def test_a_clean_file_gets_a_short_line_and_status_0(lint: Any) -> None:
    assert lint(yaml.safe_dump(GOOD)) == (0, ["FILE: OK, 1 LLMServingPool"], "")


def test_the_example_of_the_design_is_clean(lint: Any) -> None:
    status, _, _ = lint(
        changed(
            mode="Active",
            engine={"type": "VLLM", "vllm": {"extraArgs": [], "gpuMemoryUtilizationPercent": 90}, "maxNumSeqs": 256},
            accelerator={"products": ["NVIDIA-A100-SXM4-80GB"], "parallelism": {"tensor": 1, "pipeline": 1}},
            scheduling={"policy": "SVF", "victim": "LargestVolume", "predictor": {"type": "ClassPrior"}},
            placement={"strategy": "Balanced", "rebalance": {"enabled": True}},
            admission={"mode": "Auto", "unit": "Volume"},
            autoscaling={"minReplicas": 2, "maxReplicas": 8, "targetLoadPercent": 75},
            metrics={"source": "Auto", "staleAfterSeconds": 90},
            podTemplate={"spec": {"tolerations": [{"operator": "Exists"}]}},
        )
    )
    assert status == 0


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"replica": 4}, "spec.replica", "did you mean replicas?"),
    ({"modle": {"name": "m"}}, "spec.modle", "did you mean model?"),
    ({"engine": {"max_num_seqs": 3}}, "spec.engine.max_num_seqs", "did you mean maxNumSeqs?"),
    ({"engine": {"vllm": {"zzz": 3}}}, "spec.engine.vllm.zzz", "known here: extraArgs, gpuMemory"),
    ({"engine": {"kvCacheTokens": "80GB"}}, "spec.engine.kvCacheTokens", "write a whole number of tokens"),
    (
        {"engine": {"vllm": {"gpuMemoryUtilizationPercent": 0.9}}},
        "spec.engine.vllm.gpuMemoryUtilizationPercent",
        "found 0.9; write whole percent, for example 90",
    ),
    (
        {"engine": {"vllm": {"gpuMemoryUtilizationPercent": "90%"}}},
        "spec.engine.vllm.gpuMemoryUtilizationPercent",
        "for example 90",
    ),
    ({"scheduling": {"agingSeconds": "30s"}}, "spec.scheduling.agingSeconds", "for example 30"),
    ({"scheduling": {"agingSeconds": "soon"}}, "spec.scheduling.agingSeconds", "write whole seconds without a unit"),
    ({"admission": {"mode": "Fixed", "capMicro": 0.8}}, "spec.admission.capMicro", "for example 800000"),
    ({"mode": "active"}, "spec.mode", "write one of 'Active', 'Advisory' or 'Paused'"),
    ({"autoscaling": {"minReplicas": 9, "maxReplicas": 3}}, "spec.autoscaling.minReplicas", "lower minReplicas"),
    (
        {"engine": {"vllm": {"extraArgs": ["--data-parallel-size", "2"]}}},
        "spec.engine.vllm.extraArgs[0]",
        "raise spec.replicas instead",
    ),
]


@pytest.mark.parametrize(("spec", "path", "says"), CASES)
def test_each_fault_is_one_line_with_path_finding_and_remedy(
    lint: Any, spec: dict[str, Any], path: str, says: str
) -> None:
    status, lines, _ = lint(changed(**spec))
    assert status == 1
    (line,) = lines
    assert line.startswith(f"FILE:{path}: found ")
    assert says in line
    assert "; " in line


CLASS = {"name": "chat", "promptTokens": 1024, "outputTokens": 220}


@pytest.mark.parametrize(
    ("classes", "path", "says"),
    [
        ([CLASS, CLASS], "spec.trafficClasses[1].name", 'found "chat" a second time'),
        ([{**CLASS, "name": "default"}], "spec.trafficClasses[0].name", "choose another name"),
        ([{**CLASS, "name": "Chat"}], "spec.trafficClasses[0].name", "must match"),
        ([{**CLASS, "name": "c" * 23}], "spec.trafficClasses[0].name", "found 23 characters; at most 22"),
        ([{**CLASS, "promptTokens": 17000}], "spec.trafficClasses[0]", "above model.maxModelLen 16384"),
    ],
)
def test_faults_of_classes(lint: Any, classes: list[Any], path: str, says: str) -> None:
    status, (line,), _ = lint(changed(trafficClasses=classes))
    assert status == 1
    assert line.startswith(f"FILE:{path}: ")
    assert says in line


def test_a_class_larger_than_a_pods_memory(lint: Any) -> None:
    status, (line,), _ = lint(changed(engine={"kvCacheTokens": 1000}))
    assert status == 1
    assert line.startswith("FILE:spec.trafficClasses[0]: found promptTokens + outputTokens = 1244")


def test_all_faults_of_a_file_are_shown_at_once(lint: Any) -> None:
    status, lines, _ = lint(
        changed(replicas="4", trafficClasses=[CLASS, {**CLASS, "outputTokens": 2.5}], admission={"mode": "Fixed"}, x=1)
    )
    assert status == 1
    assert {line.split(": ")[0] for line in lines} == {
        "FILE:spec.x",
        "FILE:spec.replicas",
        "FILE:spec.trafficClasses[1].name",
        "FILE:spec.trafficClasses[1].outputTokens",
        "FILE:spec.admission.capMicro",
    }


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"apiVersion": "serving.evenflow.dev/v1"}, "apiVersion"),
        ({"metadata": {"name": "a" * 41}}, "metadata.name"),
        ({"metadata": {"name": "Llama"}}, "metadata.name"),
        ({"metadata": {}}, "metadata.name"),
        ({"metadata": {"name": "a", "lables": {}}}, "metadata.lables"),
        ({"spec": None}, "spec"),
        ({"specs": {}}, "specs"),
    ],
)
def test_faults_outside_the_spec(lint: Any, change: dict[str, Any], path: str) -> None:
    status, lines, _ = lint(yaml.safe_dump({**GOOD, **change}))
    assert status == 1
    assert [line.split(": ")[0] for line in lines] == [f"FILE:{path}"]


def test_a_status_in_the_file_is_ignored(lint: Any) -> None:
    assert lint(yaml.safe_dump({**GOOD, "status": {"slots": "broken"}}))[0] == 0


def test_other_kinds_are_skipped_with_a_note(lint: Any) -> None:
    text = yaml.safe_dump_all([{"apiVersion": "v1", "kind": "Namespace"}, GOOD])
    status, lines, notes = lint(text)
    assert (status, lines) == (0, ["FILE: OK, 1 LLMServingPool"])
    assert 'document 1: skipped, kind "Namespace"' in notes


def test_faults_of_a_later_document_name_it(lint: Any) -> None:
    text = yaml.safe_dump(named("other")) + "---\n" + changed(replicas=-1)
    status, (line,), _ = lint(text)
    assert status == 1
    assert line == "FILE:spec.replicas: found -1; must be at least 0 (document 2)"


def test_the_items_of_a_list_are_checked(lint: Any) -> None:
    status, (line,), _ = lint(
        yaml.safe_dump({"kind": "List", "items": [named("other"), yaml.safe_load(changed(replicas=-1))]})
    )
    assert status == 1
    assert line.endswith("(document 2)")


def test_a_class_minimum_above_the_replicas_is_a_warning_only(lint: Any) -> None:
    status, _, notes = lint(changed(replicas=1))
    assert status == 0
    assert "warning: spec.trafficClasses[0].minReplicas: found 2" in notes


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"accelerator": {"products": []}}, "warning: spec.accelerator.products: found []"),
        ({"engine": {"simulated": {"timeScale": 5}}}, "warning: spec.engine.simulated: found settings that type VLLM"),
        ({"engine": {"type": "Simulated", "simulated": {"timeScale": 5}}}, ""),
        ({"engine": {"simulated": {"timeScale": 1}}}, ""),
    ],
)
def test_what_is_probably_not_meant_is_a_warning_only(lint: Any, spec: dict[str, Any], says: str) -> None:
    status, lines, notes = lint(changed(**spec))
    assert (status, lines) == (0, ["FILE: OK, 1 LLMServingPool"])
    assert says in notes if says else notes == ""


def lint_files(folder: Path, contents: dict[str, list[dict[str, Any]]], *targets: str) -> int:
    for name, documents in contents.items():
        (folder / name).write_text(yaml.safe_dump_all(documents))
    return lint_command([folder / target for target in targets], "table")


def test_a_folder_and_files_are_checked_once_each_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {"b.yaml": [named("b")], "a.yml": [named("a")], "c.yaml": [{"kind": "Service"}], "d.txt": [named("a")]}
    assert lint_files(tmp_path, contents, ".", "b.yaml", "./../" + tmp_path.name + "/a.yml") == 0
    lines = [line.replace(f"{tmp_path}/", "") for line in capsys.readouterr().out.splitlines()]
    assert lines == ["a.yml: OK, 1 LLMServingPool", "b.yaml: OK, 1 LLMServingPool", "c.yaml: OK, 0 LLMServingPools"]


def test_one_mistake_among_several_files_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert lint_files(tmp_path, {"a.yaml": [named("a")]}, "a.yaml", "none.yaml", "empty") == 1
    ok, missing, empty = capsys.readouterr().out.splitlines()
    assert ok.endswith("a.yaml: OK, 1 LLMServingPool")
    assert "none.yaml:(document): can't be read" in missing
    assert "found no *.yaml or *.yml in this folder" in empty


def test_a_folder_without_any_pool_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_files(tmp_path, {"a.yaml": [{"kind": "Service"}]}, ".") == 1
    assert f"{tmp_path}:(document): found no LLMServingPool" in capsys.readouterr().out


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(yaml.safe_dump(GOOD).encode())))
    assert lint_command([Path("-"), Path("-")], "table") == 0
    assert capsys.readouterr().out == "<stdin>: OK, 1 LLMServingPool\n"


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (named("llama"), named("llama"), 'metadata.name: found "default/llama" a second time, first in a.yaml'),
        (named("llama"), named("llama", namespace="default"), 'found "default/llama" a second time'),
        (named("llama"), named("llama", namespace="other"), ""),
        (named("llama", "chat"), named("llama-chat"), 'metadata.name: found Service "llama-chat" a second time, pool'),
        (
            named("llama-chat"),
            named("llama", "code", "chat"),
            'spec.trafficClasses[1].name: found Service "llama-chat"',
        ),
        (named("llama-a", "b"), named("llama", "a-b"), 'spec.trafficClasses[0].name: found Service "llama-a-b"'),
        (named("llama-chat"), named("llama", "chat", namespace="other"), ""),
    ],
)
@pytest.mark.parametrize("files", [1, 2])
def test_pools_that_clash(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: dict[str, Any],
    second: dict[str, Any],
    says: str,
    files: int,
) -> None:
    contents = {"a.yaml": [first, second]} if files == 1 else {"a.yaml": [first], "b.yaml": [second]}
    assert lint_files(tmp_path, contents, *contents) == (1 if says else 0)
    lines = [line.replace(f"{tmp_path}/", "") for line in capsys.readouterr().out.splitlines() if "OK," not in line]
    assert len(lines) == (1 if says else 0)
    assert all(f"{'a' if files == 1 else 'b'}.yaml:" in line and says in line and "rename" in line for line in lines)


@pytest.mark.parametrize("metadata", [None, "x", {"name": 3}, {"name": None, "namespace": []}])
def test_a_manifest_without_a_name_clashes_with_none(lint: Any, metadata: Any) -> None:
    status, lines, _ = lint(yaml.safe_dump_all([{**GOOD, "metadata": metadata}] * 2))
    assert "second time" not in "".join(lines)
    assert status in (0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: b\n  c: d\n", "FILE:line 2, column 4: not YAML: mapping values are not allowed here"),
        ("spec:\n  replicas: 1\n  replicas: 2\n", "FILE:line 3, column 3: not YAML: the key 'replicas' stands twice"),
        ("a: &x [*x]\n", "an alias inside itself"),
        (
            "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 1}]\n" for n in range(12)),
            "aliases written out",
        ),
        ("", "found no LLMServingPool"),
        ("# only a comment\n---\n", "found no LLMServingPool"),
        ("kind: Pod\n", "found no LLMServingPool"),
        ("just words\n", 'found "just words"; write a Kubernetes object'),
        ("[1, 2]\n", "found [1, 2]; write a Kubernetes object"),
        ("a: !!python/object:os.system {}\n", "not YAML"),
        (b"a: \xff\n", "isn't UTF-8"),
        (b"a: \x07\n", "not YAML"),
        (b"x" * (MAX_FILE_BYTES + 1), "split the file"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_what_is_no_manifest_is_an_error_of_one_line(lint: Any, text: str | bytes, says: str) -> None:
    status, lines, _ = lint(text)
    assert status == 1
    assert len(lines) == 1
    assert says in lines[0]


def test_an_unquoted_time_is_a_string_as_for_kubectl(lint: Any) -> None:
    text = yaml.safe_dump(GOOD) + "  rollout: {restartedAt: 2026-11-30T00:00:00Z}\n"
    assert lint(text)[0] == 0


def test_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_command([tmp_path / "none.yaml"], "table") == 1
    assert "No such file" in capsys.readouterr().out


def test_json_carries_the_same(lint: Any) -> None:
    status, lines, _ = lint(changed(replicas=-1), "json")
    (report,) = json.loads("\n".join(lines))["files"]
    assert status == 1
    assert (report["ok"], report["pools"]) == (False, 1)
    (fault,) = report["errors"]
    assert (fault["path"], fault["message"]) == ("spec.replicas", "found -1; must be at least 0")
    assert json.loads("\n".join(lint(yaml.safe_dump(GOOD), "json")[1]))["ok"] is True


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(changed(replicas=-1).encode())))
    assert lint_command([Path("-")], "table") == 1
    assert capsys.readouterr().out.startswith("<stdin>:spec.replicas: found -1")
