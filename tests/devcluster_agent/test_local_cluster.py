"""`evenflow cluster up|down|status` as a user runs them, with a home folder of the test's own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenflow_cli import cluster as command
from evenflow_devcluster.state import ClusterState, claim, find_state, process_start, read_state

pytestmark = pytest.mark.cluster

PATIENCE = 30.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EVENFLOW_HOME", str(tmp_path))
    yield tmp_path
    cluster("down")


def cluster(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("evenflow")), "cluster", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while process_start(pid) is not None:
        assert time.monotonic() < deadline, f"process {pid} still runs"
        os.sched_yield()


def up() -> dict[str, Any]:
    done = cluster("up", "--nodes", "1", "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_up_twice_status_down_twice(home: Path) -> None:
    first = up()
    assert Path(first["kubeconfig"]).is_relative_to(home)
    assert Path(first["kubeconfig"]).stat().st_mode & 0o077 == 0
    again = cluster("up")
    assert again.returncode == 0
    assert "already running" in again.stdout
    assert f"export KUBECONFIG={first['kubeconfig']}" in again.stdout
    told = cluster("status", "-o", "json")
    assert told.returncode == 0
    assert json.loads(told.stdout)["pid"] == first["pid"]
    assert cluster("down").returncode == 0
    assert process_start(first["pid"]) is None
    assert not list((home / "clusters").iterdir())
    assert cluster("status").returncode == 1
    assert cluster("down").returncode == 0


def test_a_killed_cluster_leaves_nothing_and_can_be_started_again(home: Path) -> None:
    first = up()
    os.kill(first["pid"], signal.SIGKILL)
    wait_until_dead(first["pid"])
    assert cluster("status").returncode == 1
    second = up()
    assert second["pid"] != first["pid"]
    assert read_state("evenflow") is not None


def test_ctrl_c_ends_a_cluster_in_the_foreground(home: Path) -> None:
    words = [str(Path(sys.executable).with_name("evenflow")), "cluster", "up", "--foreground", "--nodes", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "is up" in process.stdout.readline()
        assert read_state("evenflow", home=home) is not None
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert not list((home / "clusters").iterdir())


def test_a_reused_pid_is_not_taken_for_the_cluster(home: Path) -> None:
    folder = claim("evenflow")
    state = {
        "name": "evenflow",
        "pid": os.getppid(),
        "started": 1,
        "ready": True,
        "kubeconfig": str(folder / "kubeconfig"),
        "url": "",
        "nodes": 1,
    }
    (folder / "state.json").write_text(json.dumps(state))
    found = find_state("evenflow")
    assert isinstance(found, ClusterState)
    assert not found.alive()
    assert read_state("evenflow") is None
    assert "wasn't running" in cluster("down").stdout
    assert not folder.exists()


def test_damaged_state_is_no_state(home: Path) -> None:
    folder = claim("evenflow")
    for text in ("", "[]", '{"name": "evenflow"}'):
        (folder / "state.json").write_text(text)
        assert find_state("evenflow") is None


@pytest.mark.parametrize("name", ["", "A", "../x", "a" * 41, "-a"])
def test_names_that_cannot_be_a_folder_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.up(name=name, nodes=1, foreground=False, output="table") == 1
    assert command.down(name=name, output="table") == 1
    assert command.status(name=name, output="table") == 1
    assert capsys.readouterr().err.count("lower-case letters") == 3
