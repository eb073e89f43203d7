"""Ends what a dead parent leaves behind: run as its own process, it waits for its standard input to close.

Started as `python -I -S guard.py MARKER [PATH …]`. When the pipe on its standard input closes, because the parent
ended or was killed, every process of this user whose environment holds MARKER (`NAME=VALUE`, unguessable) is killed,
and the PATHs are removed. Standard library only and no import of ours, so that it starts in milliseconds.
"""

import os
import shutil
import signal
import sys
import time

_ROUNDS = 50
_PAUSE_SECONDS = 0.02


def marked_processes(marker: str) -> list[int]:
    """Ids of this user's live processes, this one excepted, that were started with `marker` in their environment."""
    wanted = marker.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(name))
    return found


def kill_marked(marker: str) -> int:
    """Kill them all, those started meanwhile too. Returns how many there were; waits at most a second."""
    killed: set[int] = set()
    empty = 0
    for _ in range(_ROUNDS):
        found = marked_processes(marker)
        # Twice, because a process that was forked just now has its parent's environment until it executes its program.
        empty = 0 if found else empty + 1
        if empty == 2:
            break
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except ProcessLookupError:
                pass
        time.sleep(_PAUSE_SECONDS)
    return len(killed)


def main() -> None:
    marker, paths = sys.argv[1], sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    kill_marked(marker)
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)


if __name__ == "__main__":
    main()
