"""`evenflow cluster up|down|status`: a cluster that stays when the command has ended."""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO

from evenflow_devcluster import state as states
from evenflow_devcluster.state import ClusterState

START_SECONDS = 60.0
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.05


def up(*, name: str, nodes: int, foreground: bool, output: str) -> int:
    """Start a cluster; one of the same name that runs already is fine. Returns the exit status."""
    if (problem := _name_problem(name)) is not None:
        return _fail(problem)
    if foreground:
        return _up_here(name, nodes, output)
    with _only_one():
        state = states.read_state(name)
        if state is not None:
            _show(state, output, f"Cluster {name!r} is already running.")
            return 0
        return _up_detached(name, nodes, output)


def _up_here(name: str, nodes: int, output: str) -> int:
    from evenflow_devcluster import local  # takes half a second, which the other commands don't need to spend

    try:
        asyncio.run(
            local.serve(name, nodes, lambda state: _show(state, output, f"Cluster {name!r} is up; Ctrl-C ends it."))
        )
    except FileExistsError as error:
        return _fail(str(error))
    return 0


def _up_detached(name: str, nodes: int, output: str) -> int:
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "evenflow_devcluster.local", name, str(nodes)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while (state := states.read_state(name)) is None:
                if child.poll() is not None:
                    return _fail(f"cluster {name!r} didn't start:\n{_tail(log)}")
                if time.monotonic() > deadline:
                    _end(child.pid)
                    return _fail(f"cluster {name!r} wasn't ready after {START_SECONDS:g} s:\n{_tail(log)}")
                time.sleep(_POLL_SECONDS)
        except BaseException:
            _end(child.pid)
            raise
    _show(state, output, f"Cluster {name!r} is up: {nodes} A100 nodes with 8 GPUs each.")
    return 0


def down(*, name: str, output: str) -> int:
    """Stop a cluster and remove its files; fine if there is none. Returns the exit status."""
    if (problem := _name_problem(name)) is not None:
        return _fail(problem)
    with _only_one():
        state = states.find_state(name)
        running = state is not None and state.alive()
        if state is not None and running and not _stop(state):
            return _fail(f"cluster {name!r} (pid {state.pid}) doesn't end")
        shutil.rmtree(states.cluster_folder(name), ignore_errors=True)
    if output == "json":
        print(json.dumps({"name": name, "running": False, "stopped": running}))
    else:
        print(f"Cluster {name!r} is stopped." if running else f"Cluster {name!r} wasn't running.")
    return 0


def status(*, name: str, output: str) -> int:
    """Say whether a cluster runs. Returns 0 if it does, else 1."""
    if (problem := _name_problem(name)) is not None:
        return _fail(problem)
    state = states.read_state(name)
    if state is not None:
        _show(state, output, f"Cluster {name!r} is running (pid {state.pid}, {state.nodes} nodes).")
        return 0
    if output == "json":
        print(json.dumps({"name": name, "running": False}))
    else:
        print(f"Cluster {name!r} isn't running; start it with: evenflow cluster up{_option(name)}")
    return 1


def _name_problem(name: str) -> str | None:
    try:
        states.cluster_folder(name)
    except ValueError as error:
        return str(error)
    return None


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """One `up` or `down` at a time: two at once could both find no cluster. The folder itself is locked, no file."""
    folder = states.home_folder() / "clusters"
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _stop(state: ClusterState) -> bool:
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.pid, number)
        deadline = time.monotonic() + seconds
        while state.alive():
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        else:
            return True
    return False


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-15:])


def _option(name: str) -> str:
    return "" if name == "evenflow" else f" --name {name}"


def _show(state: ClusterState, output: str, headline: str) -> None:
    if output == "json":
        document = {
            "name": state.name,
            "running": True,
            "pid": state.pid,
            "kubeconfig": str(state.kubeconfig),
            "url": state.url,
            "nodes": state.nodes,
        }
        print(json.dumps(document), flush=True)
        return
    print(
        f"{headline}\n\n"
        f"  export KUBECONFIG={state.kubeconfig}\n\n"
        "Then, for example:\n"
        "  evenflow operator --no-leader-election &  # the operator, against this cluster\n"
        "  kubectl apply -f examples/pool.yaml\n"
        "  kubectl get llmpool -w\n"
        f"  evenflow cluster down{_option(state.name)}",
        flush=True,
    )


def _fail(message: str) -> int:
    print(f"evenflow: {message}", file=sys.stderr)
    return 1
