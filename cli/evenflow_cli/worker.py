"""`evenflow worker install`: the worker, as any vLLM image can load it."""

import json
import os
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, metadata, version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("evenflow_worker", "evenflow_contract", "evenflow_model")
DEPENDENCIES = ("numpy", "aiohttp", "prometheus-client")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


class InstallError(Exception):
    """Nothing was installed; says why and what to do."""


def install_command(target: Path, output: str) -> int:
    """Copy the packages to `target` and say how to use them. Returns the exit status."""
    try:
        release = install(target)
    except (InstallError, OSError) as error:
        print(f"evenflow worker install: {error}", file=sys.stderr)
        return 1
    where = target.resolve()
    if output == "json":
        print(json.dumps({"target": str(where), "version": release, "packages": list(PACKAGES)}))
    else:
        print(
            f"evenflow worker {release} is in {where}. Start vLLM with\n"
            f"  PYTHONPATH={where} vllm serve MODEL \\\n"
            "    --scheduler-cls evenflow_worker.vllm.make_scheduler \\\n"
            "    --middleware evenflow_worker.vllm.TrafficClassMiddleware"
        )
    return 0


def install(target: Path) -> str:
    """Copy worker, contract and model as they are installed here; returns the version.

    Raises InstallError if they aren't, or if `target` holds something else under one of the names, OSError if it can't
    be written.
    """
    release = _version()
    copy(target, release)
    return release


def copy(target: Path, release: str) -> None:
    """Copy the packages that this Python imports, with a dist-info that says `release`; each is swapped in whole."""
    if target.exists() and not target.is_dir():
        raise InstallError(f"{target} is not a directory; name one, it is made if it is missing")
    target.mkdir(parents=True, exist_ok=True)
    names = [*PACKAGES, f"evenflow-{release}.dist-info"]
    # All of them before the first is swapped: nothing may be left half done.
    for place in [target / name for name in names] + list(target.glob("evenflow-*.dist-info")):
        if place.is_symlink() or place.is_file():
            raise InstallError(f"{place} is not a directory of an earlier install; remove it")
    with tempfile.TemporaryDirectory(prefix=".evenflow-", dir=target) as staging:
        stage = Path(staging)
        for name in PACKAGES:
            shutil.copytree(_source(name), stage / name, ignore=IGNORED)
        _dist_info(stage, names[-1], release)
        for old in target.glob("evenflow-*.dist-info"):
            shutil.rmtree(old)
        for name in names:
            _swap(stage / name, target / name, stage / f"{name}.old")
        # The init container runs as root, vLLM often doesn't.
        os.chmod(target, 0o755)


def _swap(new: Path, place: Path, aside: Path) -> None:
    if place.exists():
        place.rename(aside)
    new.rename(place)


def _source(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise InstallError(f"{name} is not installed here; run in its repository: pip install '.[worker]'")
    return Path(next(iter(spec.submodule_search_locations)))


def _version() -> str:
    try:
        return version("evenflow")
    except PackageNotFoundError as error:
        raise InstallError("evenflow has no metadata here; run in its repository: pip install '.[worker]'") from error


def _dist_info(stage: Path, name: str, release: str) -> None:
    """Metadata that names only what vLLM's image has already: nothing has to be installed with it."""
    folder = stage / name
    folder.mkdir()
    needed = sorted({line for line in _requirements() if line.startswith(DEPENDENCIES)})
    lines = ["Metadata-Version: 2.1", "Name: evenflow", f"Version: {release}", "Summary: evenflow's worker inside vLLM"]
    lines += [f"Requires-Dist: {one}" for one in needed]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    (folder / "INSTALLER").write_text("evenflow worker install\n")
    (folder / "top_level.txt").write_text("\n".join(PACKAGES) + "\n")
    files = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, f"{name}/RECORD"]))


def _requirements() -> list[str]:
    found: list[str] = []
    try:
        lines = metadata("evenflow").get_all("Requires-Dist") or []
    except PackageNotFoundError:
        return found
    for line in lines:
        requirement, _, marker = str(line).partition(";")
        if not marker or "worker" in marker:
            found.append(requirement.strip())
    return found
