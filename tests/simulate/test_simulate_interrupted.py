"""Ctrl-C while `evenflow simulate` starts its processes, and what it says where there is no terminal."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenflow_cli.simulation.progress import LINE_SECONDS, PlainProgress

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0


def in_group(group: int) -> list[int]:
    """Living processes of a process group; a zombie is none."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and fields[0] != "Z" and int(fields[2]) == group:
            found.append(int(entry.name))
    return found


def is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.cluster
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_an_interrupt_while_processes_start_ends_with_one_line() -> None:
    trace = ROOT / "examples" / "traces" / "mooncake_conversation.csv.gz"
    command = [sys.executable, "-c", "from evenflow_cli.main import main; main()", "simulate", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "-f", str(ROOT / "examples" / "pool.yaml"), "--trace", str(trace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + SECONDS
        while not any(is_worker(pid) for pid in in_group(process.pid)):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS)
        left = [pid for pid in in_group(process.pid) if is_worker(pid)]
    finally:
        for pid in in_group(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines() == ["evenflow simulate: interrupted, nothing is left running"]
    assert left == []


def test_a_plain_line_now_and_then() -> None:
    said: list[str] = []
    now = [100.0]
    progress = PlainProgress(2, 1500, said.append, lambda: now[0])
    progress.update(0, 10)
    assert said == []
    now[0] += LINE_SECONDS
    progress.update(1, 1200)
    progress.update(0, 20)
    now[0] += LINE_SECONDS
    progress.update(0, 1500)
    assert said == ["simulated 1,210 of 3,000 requests in 10 s", "simulated 2,700 of 3,000 requests in 20 s"]
