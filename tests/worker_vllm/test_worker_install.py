"""`evenflow worker install`: what lands in the directory is all that another Python needs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evenflow_cli import worker
from evenflow_cli.main import app


def run_in_a_bare_python(target: Path, code: str) -> str:
    """-I and -S: nothing of this environment, only the directory."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(target)!r}); {code}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_the_packages_and_their_metadata(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "worker"
    result = CliRunner().invoke(app, ["worker", "install", "--target", str(target)])
    assert result.exit_code == 0, result.output
    assert "--scheduler-cls evenflow_worker.vllm.make_scheduler" in result.output
    release = worker.install(target)
    names = sorted(path.name for path in target.iterdir())
    assert names == [f"evenflow-{release}.dist-info", "evenflow_contract", "evenflow_model", "evenflow_worker"]
    assert not list(target.rglob("__pycache__"))
    code = (
        "import evenflow_worker.vllm as v, evenflow_contract.names; from importlib.metadata import version, requires; "
        "print(v.__file__, version('evenflow'), *sorted(requires('evenflow')))"
    )
    found = run_in_a_bare_python(target, code).split()
    assert found[0].startswith(str(target))
    assert found[1] == release
    assert [line.split(">")[0] for line in found[2:]] == ["aiohttp", "numpy", "prometheus-client"]


def test_a_second_install_replaces_the_first(tmp_path: Path) -> None:
    worker.copy(tmp_path, "0.0.1")
    (tmp_path / "evenflow_worker" / "stale.py").write_text("")
    worker.copy(tmp_path, "0.0.2")
    assert not (tmp_path / "evenflow_worker" / "stale.py").exists()
    assert [path.name for path in tmp_path.glob("*.dist-info")] == ["evenflow-0.0.2.dist-info"]


def test_what_is_not_ours_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker.copy(tmp_path, "0.0.1")
    shutil.rmtree(tmp_path / "evenflow_model")
    (tmp_path / "evenflow_model").write_text("somebody else's")
    (tmp_path / "evenflow_worker" / "earlier.py").write_text("")
    assert worker.install_command(tmp_path, "table") == 1
    assert (tmp_path / "evenflow_worker" / "earlier.py").exists(), "all or nothing"
    assert [path.name for path in tmp_path.glob("*.dist-info")] == ["evenflow-0.0.1.dist-info"]
    assert "evenflow_model is not a directory" in capsys.readouterr().err
    file = tmp_path / "file"
    file.write_text("")
    assert worker.install_command(file, "table") == 1
    assert "is not a directory" in capsys.readouterr().err
