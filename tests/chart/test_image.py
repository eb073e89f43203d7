"""The image, as far as it can be checked without a container engine: its Dockerfile is read, its commands are run."""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from helm_tool import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from evenflow_operator.core.pods.render import USER_ID
from evenflow_operator.core.pods.volumes import WORKER_SOURCE

EXTRAS = ("operator", "worker")
BUILD_SECONDS = 600


def instructions() -> list[tuple[str, str]]:
    """(instruction, argument), continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def needed(distribution: str, extras: tuple[str, ...], seen: set[str]) -> set[str]:
    """What a distribution needs here, its own needs included."""
    for line in requires(distribution) or ():
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        wanted = any(requirement.marker is None or requirement.marker.evaluate({"extra": one}) for one in ("", *extras))
        if wanted and name not in seen:
            seen.add(name)
            needed(name, tuple(requirement.extras), seen)
    return seen


def test_the_image_pins_exactly_what_it_needs() -> None:
    assert set(pins()) - {"setuptools"} == needed("evenflow", EXTRAS, set())


def test_the_pins_are_what_the_distribution_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in EXTRAS:
        asked += project["project"]["optional-dependencies"][extra]
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)]), requirement


def test_the_image_runs_as_a_number_from_a_pinned_base_and_starts_the_operator() -> None:
    found = instructions()
    base, _ = [argument for name, argument in found if name == "ARG"]
    assert re.fullmatch(r"PYTHON=python:3\.\d+-slim-\w+", base)
    assert [argument for name, argument in found if name == "FROM"] == ["${PYTHON} AS build", "${PYTHON}"]
    assert ("USER", f"{USER_ID}:{USER_ID}") in found
    assert json.loads(dict(found)["ENTRYPOINT"]) == ["evenflow"]
    assert json.loads(dict(found)["CMD"]) == ["operator"]
    assert "HEALTHCHECK" not in dict(found), "Kubernetes has probes"


def test_the_context_is_what_the_build_needs_and_nothing_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = {line[1:] for line in rules if line.startswith("!")}
    assert all((ROOT / one).exists() for one in kept)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = project["tool"]["setuptools"]["packages"]["find"]["where"]
    assert {one for one in kept if "/" in one} == {f"{folder}/evenflow_{folder}" for folder in folders}


def context(target: Path) -> None:
    """What `docker build .` would send of a fresh clone: the files git knows, less those that .dockerignore names."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in names:
        if any(name == one or name.startswith(f"{one}/") for one in kept) and (ROOT / name).is_file():
            assert not fnmatch.fnmatch(name, "*__pycache__*")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


@pytest.mark.slow
def test_the_commands_of_the_build_make_what_pods_run(tmp_path: Path) -> None:
    """`/src` and `/opt/evenflow` are folders of this test; everything else is as the Dockerfile says."""
    source, root = tmp_path / "src", tmp_path / "root"
    source.mkdir()
    context(source)
    (tmp_path / "bin").mkdir()
    # `python` is the base image's: one with pip, without what the tests' environment has.
    (tmp_path / "bin" / "python").symlink_to(os.environ.get("EVENFLOW_TEST_IMAGE_PYTHON") or sys._base_executable)  # type: ignore[attr-defined]
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def moved(text: str) -> str:
        return re.sub(r"(?<![\w.])/src\b", str(source), text).replace("/opt/evenflow", f"{root}/opt/evenflow")

    (root / "opt").mkdir(parents=True)
    build = instructions()
    build = build[: next(i for i, (name, rest) in enumerate(build) if name == "FROM" and "AS" not in rest)]
    for name, argument in build:
        if name == "ENV":
            environment |= dict(pair.split("=", 1) for pair in shlex.split(moved(argument)))
        if name == "RUN":
            done = subprocess.run(
                ["/bin/sh", "-ec", moved(argument)],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    # From here on: the second stage, another folder to work in, nothing but the image's own environment.
    venv = root / "opt" / "evenflow" / "venv"
    empty = tmp_path / "empty"
    empty.mkdir()
    inside = {"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(empty)}

    def run(*command: str, code: int = 0) -> str:
        done = subprocess.run(command, cwd=empty, env=inside, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    installed = dict(line.split("==") for line in run("python", "-c", FREEZE).splitlines())
    assert {canonicalize_name(name): version for name, version in installed.items() if name != "evenflow"} == {
        name: version for name, version in pins().items() if name != "setuptools"
    }
    assert "--leader-election" in run("evenflow", "operator", "--help")
    assert "no way to reach a cluster" in run("evenflow", "operator", code=2)
    assert "--kv-tokens" in run("python", "-m", "evenflow_worker.simulated", "--help")
    assert yaml.safe_load(run("evenflow", "crd"))["kind"] == "CustomResourceDefinition"

    # What the init container does, and what vLLM's Python then finds.
    target = tmp_path / "worker"
    target.mkdir()
    run("cp", "-r", f"{root}{WORKER_SOURCE}/.", str(target))
    names = sorted(path.name.partition("-")[0] for path in target.iterdir())
    assert names == ["evenflow", "evenflow_contract", "evenflow_model", "evenflow_worker"]
    assert "evenflow_worker" in run(
        "python", "-I", "-S", "-c", f"import sys; sys.path = [{str(target)!r}, *sys.path]; {FIND}"
    )

    # On a read-only root nothing is compiled at the start: the byte code is there, and does not look at time stamps.
    (compiled,) = venv.glob("lib/python3*/site-packages/evenflow_operator/__pycache__/main.*.pyc")
    assert int.from_bytes(compiled.read_bytes()[4:8], "little") == 1


FREEZE = "import importlib.metadata as m; [print(f'{d.name}=={d.version}') for d in m.distributions()]"
FIND = "import evenflow_worker.vllm as found; print(found.__file__)"
