"""`make setup`: short when all goes well, and the reason with the place of the log when it doesn't."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs_module import ROOT

PIP = """#!/bin/sh
for number in 1 2 3; do
  echo "Collecting package$number==1.0"
  echo "  Downloading package$number-1.0-py3-none-any.whl (3.1 kB)"
done
echo "Installing collected packages: package1, package2, package3"
"""
FAILURE = """echo "ERROR: No matching distribution found for package3==1.0" >&2
exit 1
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile beside a virtual environment whose Python is the stand-in that a test writes."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    return tmp_path


def stand_in(checkout: Path, script: str) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(script)
    python.chmod(0o755)


def make(checkout: Path, **streams: int) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "setup", f"PYTHON={sys.executable}"]
    return subprocess.run(command, cwd=checkout, text=True, timeout=30, check=False, **streams)


def test_a_setup_that_works_says_one_line_and_the_next_one_nothing(checkout: Path) -> None:
    stand_in(checkout, PIP)
    done = make(checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["Installing evenflow and its dependencies into .venv (a minute or two, once)"]
    assert make(checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout == ""


def test_a_setup_that_fails_shows_the_reason_names_the_log_and_is_tried_again(checkout: Path) -> None:
    stand_in(checkout, PIP + FAILURE)
    for _ in range(2):
        failed = make(checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert failed.returncode != 0
        assert "No matching distribution found for package3" in failed.stderr
        assert ".venv/install.log" in failed.stderr
        log = (checkout / ".venv" / "install.log").read_text().splitlines()
        assert len(log) == 8
        assert "  Downloading package1-1.0-py3-none-any.whl (3.1 kB)" in log
        assert "ERROR: No matching distribution found for package3==1.0" in log


def test_a_terminal_sees_one_line_of_progress_that_is_gone_in_the_end(checkout: Path) -> None:
    stand_in(checkout, PIP)
    screen, terminal = pty.openpty()
    try:
        assert make(checkout, stdout=terminal, stderr=terminal).returncode == 0
        seen = os.read(screen, 65536).decode()
    finally:
        os.close(terminal)
        os.close(screen)
    steps = [step.strip() for step in seen.partition("\n")[2].split("\r\x1b[K")]
    assert steps[1:] == [
        "package 1: package1==1.0",
        "package 2: package2==1.0",
        "package 3: package3==1.0",
        "installing 3 packages",
        "",
    ]
