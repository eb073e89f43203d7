"""The processes of a demo: the cluster, the operator, a Prometheus. They end with the demo, however it ends."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from evenflow_devcluster.agent.agent import start_guard

STOP_SECONDS = 8.0


class ChildError(Exception):
    """A process didn't come up or ended early; the message carries the end of its log."""


class Child:
    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    def check(self) -> None:
        """Raise ChildError if the process has ended: nothing it was needed for can succeed any more."""
        if self.process.returncode is not None:
            raise ChildError(f"{self.name} ended with status {self.process.returncode}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    async def stop(self) -> None:
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Children:
    """Starts processes in sessions of their own, so that Ctrl-C reaches only the demo, which then ends them in order.

    A guard process outlives the demo by a moment: should the demo be killed, it ends what was started and removes
    `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._marker = f"EVENFLOW_DEMO={secrets.token_hex(16)}"
        self._started: list[Child] = []
        self._guard: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> "Children":
        self._guard = start_guard(self._marker, self._folder)
        return self

    async def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        key, _, value = self._marker.partition("=")
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **(environment or {}), key: value},
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._started.append(child)
        return child

    def check(self) -> None:
        for child in self._started:
            child.check()

    async def __aexit__(self, *_: object) -> None:
        for child in reversed(self._started):
            await child.stop()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            await asyncio.to_thread(self._guard.wait)
