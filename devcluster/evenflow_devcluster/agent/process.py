"""One local process that plays a container: its own session and process group, its output in a log."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenflow_devcluster.agent.guard import kill_marked
from evenflow_devcluster.agent.logs import LogFile, pump

# Only what a program needs to start at all; never credentials or a kubeconfig of the person who runs the cluster.
_INHERITED = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DRAIN_SECONDS = 1.0
_OUTPUT_BYTES = 1024
_RUN = "EVENFLOW_CONTAINER_RUN"


class StartError(Exception):
    """The program could not be started; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: an exit code, or 128 + the signal that ended it."""

    code: int
    signal: int | None = None


def program_path(python: str) -> str:
    """Where a container's program is looked for unless it sets PATH."""
    return f"{os.path.dirname(python)}:{_SYSTEM_PATH}"


def base_environment(inherited: Mapping[str, str], *, python: str, home: str, hostname: str) -> dict[str, str]:
    """What every container starts from. PATH begins with this interpreter's folder: `python`, `evenflow` are ours."""
    result = {name: inherited[name] for name in _INHERITED if name in inherited}
    result["PATH"] = program_path(python)
    result["HOME"] = home
    result["HOSTNAME"] = hostname
    return result


def resolve_program(name: str, *, python: str, path: str) -> str:
    """The file to execute. Raises StartError when there is none."""
    if name in ("python", "python3"):
        return python
    found = shutil.which(name, path=path)
    if found is None:
        raise StartError(
            f"exec: {name!r}: executable file not found in $PATH ({path}); this node agent runs local programs"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Started:
    process: asyncio.subprocess.Process
    output: asyncio.StreamReader
    pipe: asyncio.ReadTransport


async def _spawn(command: Sequence[str], *, environment: Mapping[str, str], folder: Path, python: str) -> _Started:
    """Start a program in a session of its own, standard output and error in one pipe. Raises StartError."""
    program = resolve_program(command[0], python=python, path=environment["PATH"])
    # A pipe of our own: with asyncio's, waiting for the process may wait for whoever else holds the other end.
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
    )
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *command[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        transport.close()
        raise StartError(f"exec: {command[0]!r}: {error.strerror or error}") from error
    except BaseException:
        transport.close()
        raise
    finally:
        os.close(write_end)
    return _Started(process, reader, transport)


class ContainerProcess:
    """A started process. `wait` returns its Exit once the process has ended and its whole group is gone."""

    def __init__(self, started: _Started, log: LogFile, marker: str) -> None:
        self._process = started.process
        self._pipe = started.pipe
        self._marker = marker
        self._log = log
        self._pump = asyncio.create_task(pump(started.output, log))
        self._ended = asyncio.create_task(self._end())

    @classmethod
    async def start(
        cls, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: LogFile, python: str
    ) -> "ContainerProcess":
        run = secrets.token_hex(16)
        started = await _spawn(command, environment={**environment, _RUN: run}, folder=folder, python=python)
        return cls(started, log, f"{_RUN}={run}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _end(self) -> Exit:
        code = await self._process.wait()
        # A container ends with its first process; what that has left ends too, also outside its group.
        self.signal_group(signal.SIGKILL)
        await asyncio.to_thread(kill_marked, self._marker)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._pump, _DRAIN_SECONDS)
        self._pipe.close()
        self._log.close()
        return Exit(128 - code, -code) if code < 0 else Exit(code)

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    def signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def stop(self, *, grace_seconds: float) -> Exit:
        """SIGTERM to the first process alone, as container runtimes do; SIGKILL to the group after the grace period."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(asyncio.shield(self._ended), grace_seconds)
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> Exit:
        self.signal_group(signal.SIGKILL)
        return await self.wait()


async def run_command(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, python: str, timeout: float
) -> tuple[int, str]:
    """Run an exec probe or hook: exit code and end of its output. Raises StartError; TimeoutError, after killing it."""
    started = await _spawn(command, environment=environment, folder=folder, python=python)
    process = started.process
    reading = asyncio.create_task(_last(started.output))
    try:
        code = await asyncio.wait_for(process.wait(), timeout)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading), _DRAIN_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        started.pipe.close()
        reading.cancel()
    return code, (reading.result() if reading.done() and not reading.cancelled() else "")


async def _last(reader: asyncio.StreamReader) -> str:
    kept = b""
    while data := await reader.read(_OUTPUT_BYTES):
        kept = (kept + data)[-_OUTPUT_BYTES:]
    return kept.decode(errors="replace").strip()
