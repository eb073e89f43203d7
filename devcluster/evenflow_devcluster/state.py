"""Where clusters of this computer keep their files, and what those say about them. Standard library only.

Folder `<home>/clusters/<name>` holds everything of a cluster and goes away with it. Home is EVENFLOW_HOME, else
`$XDG_STATE_HOME/evenflow`, else `~/.local/state/evenflow`.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What is known of a running cluster. `started` is the process's start time: a reused pid isn't taken for it."""

    name: str
    pid: int
    started: int
    ready: bool
    kubeconfig: Path
    url: str
    nodes: int

    @property
    def folder(self) -> Path:
        return self.kubeconfig.parent

    def alive(self) -> bool:
        return process_start(self.pid) == self.started


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def home_folder() -> Path:
    configured = os.environ.get("EVENFLOW_HOME")
    if configured:
        return Path(configured).absolute()
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base).absolute() / "evenflow"


def cluster_folder(name: str, *, home: Path | None = None) -> Path:
    """Raises ValueError for a name that can't be a folder's."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"cluster name {name!r}: use 1 to 40 lower-case letters, digits and dashes, a letter first")
    return (home or home_folder()) / "clusters" / name


def find_state(name: str, *, home: Path | None = None) -> ClusterState | None:
    """The cluster as its folder tells it, running or not; None without a readable state file."""
    try:
        document = json.loads((cluster_folder(name, home=home) / "state.json").read_text())
        return ClusterState(**{**document, "kubeconfig": Path(document["kubeconfig"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_state(name: str, *, home: Path | None = None) -> ClusterState | None:
    """The cluster if it runs and is ready, else None."""
    state = find_state(name, home=home)
    return state if state is not None and state.ready and state.alive() else None


def write_state(state: ClusterState) -> None:
    file = state.folder / "state.json"
    fresh = file.with_suffix(".tmp")
    fresh.write_text(json.dumps({**asdict(state), "kubeconfig": str(state.kubeconfig)}))
    fresh.replace(file)


def claim(name: str) -> Path:
    """An empty folder for a new cluster, in place of what a dead one left. Raises FileExistsError if one is running."""
    folder = cluster_folder(name)
    state = find_state(name)
    if state is not None and state.alive() and state.pid != os.getpid():
        raise FileExistsError(f"cluster {name!r} is running (pid {state.pid}); stop it with: evenflow cluster down")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    return folder
