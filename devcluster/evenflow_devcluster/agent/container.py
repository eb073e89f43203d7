"""Runs one container of a pod: start, probes, restarts with back-off, orderly end."""

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from evenflow_devcluster.agent.expansion import ConfigError, Mount, rewrite
from evenflow_devcluster.agent.logs import LogFile, drop_logs
from evenflow_devcluster.agent.pod_status import ContainerState, Running, Terminated, Waiting
from evenflow_devcluster.agent.probes import Target, Verdict, probe_loop, run_hook, still_starting
from evenflow_devcluster.agent.process import ContainerProcess, Exit, StartError, run_command
from evenflow_devcluster.agent.settings import AgentSettings

Json = dict[str, Any]


class Prepared(Protocol):
    """What a container is started with."""

    @property
    def command(self) -> list[str]: ...
    @property
    def environment(self) -> dict[str, str]: ...
    @property
    def mounts(self) -> tuple[Mount, ...]: ...
    @property
    def folder(self) -> Path: ...


class Surroundings(Protocol):
    """What a container needs of its pod."""

    @property
    def settings(self) -> AgentSettings: ...
    @property
    def session(self) -> aiohttp.ClientSession: ...
    @property
    def pod_ip(self) -> str: ...
    @property
    def grace_seconds(self) -> float: ...
    @property
    def now(self) -> Callable[[], datetime]: ...
    async def prepare(self, container: Json) -> Prepared: ...
    def log_path(self, container: str, run: int) -> Path: ...
    def event(self, reason: str, message: str, *, warning: bool = False) -> None: ...
    def changed(self) -> None: ...


class ContainerRunner:
    """One container, from its first start to its last end. `status` is always current."""

    def __init__(
        self, container: Json, around: Surroundings, *, restart_policy: str, before: Json | None = None
    ) -> None:
        self.container = container
        self._around = around
        self._policy = restart_policy
        self._stopping = asyncio.Event()
        self._process: ContainerProcess | None = None
        self._log: LogFile | None = None
        self._probes: list[asyncio.Task[None]] = []
        self._restarting: asyncio.Task[None] | None = None
        self._crashes = 0
        self._abandoned = False
        self.status = ContainerState(container["name"], container.get("image") or "", Waiting("ContainerCreating"))
        restarts = int((before or {}).get("restartCount") or 0)
        if before is not None and before.get("state", {}).keys() & {"running", "terminated"}:
            now = around.now()
            ended = Terminated(137, "Error", now, now, signal=9, message="ended when the node agent was restarted")
            self.status = replace(self.status, restarts=restarts + 1, previous=ended)
        else:
            self.status = replace(self.status, restarts=restarts)

    @property
    def name(self) -> str:
        return str(self.container["name"])

    @property
    def log_open(self) -> bool:
        return self._log is not None and not self._log.closed

    def hold(self, reason: str, message: str) -> None:
        """Say why this container, which hasn't been started, waits."""
        self._set(self.status.with_state(Waiting(reason, message)))

    async def run(self) -> None:
        """Until the container has ended for good: stopped, or not to be restarted under its policy."""
        while not self._stopping.is_set():
            try:
                if not await self._run_once():
                    return
            except ConfigError as error:
                self._around.event("Failed", f"Error: {error}", warning=True)
                self._set(self.status.with_state(Waiting("CreateContainerConfigError", str(error))))
                self._crashes += 1
                await self._pause(self._around.settings.crash_delay(self._crashes + 1))
                continue
            self._crashes += 1
            delay = self._around.settings.crash_delay(self._crashes)
            ended = self.status.state if isinstance(self.status.state, Terminated) else self.status.previous
            if delay:
                text = f"back-off {delay:g}s restarting failed container={self.name}"
                self._around.event("BackOff", f"Back-off restarting failed container {self.name}", warning=True)
                self._set(replace(self.status.with_state(Waiting("CrashLoopBackOff", text)), previous=ended))
                await self._pause(delay)
            if self._stopping.is_set():
                if ended is not None:
                    self._set(self.status.with_state(ended))
                return
            if ended is not None:
                self._set(replace(self.status, previous=ended, restarts=self.status.restarts + 1))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _run_once(self) -> bool:
        """One run of the container. Returns whether it is to be restarted."""
        started = self._around.now()
        try:
            process, prepared = await self._start()
        except StartError as error:
            self._around.event("Failed", f"Error: {error}", warning=True)
            self._set(
                self.status.with_state(Terminated(128, "StartError", started, self._around.now(), message=str(error)))
            )
            return self._policy != "Never"
        self._process = process
        self._around.event("Started", f"Started container {self.name}")
        no_startup = "startupProbe" not in self.container
        ready = no_startup and "readinessProbe" not in self.container
        state = self.status.with_state(Running(started))
        self._set(replace(state, started=no_startup, ready=ready, process_id=process.pid))
        if self._stopping.is_set():
            process.signal_group(signal.SIGKILL)
        self._start_probes(prepared)
        try:
            exited = await process.wait()
        except asyncio.CancelledError:
            if not self._abandoned:
                process.signal_group(signal.SIGKILL)
            raise
        finally:
            self._stop_probes()
        self._process = None
        self._set(self.status.with_state(self._terminated(exited, started)))
        if self._around.now().timestamp() - started.timestamp() > 2 * self._around.settings.crash_backoff_limit:
            self._crashes = 0
        return self._policy == "Always" or (self._policy == "OnFailure" and exited.code != 0)

    async def _start(self) -> tuple[ContainerProcess, Prepared]:
        prepared = await self._around.prepare(self.container)
        path = self._around.log_path(self.name, self.status.restarts)
        drop_logs(self._around.log_path(self.name, self.status.restarts - 2))
        self._log = LogFile(path, self._around.now)
        try:
            process = await ContainerProcess.start(
                prepared.command,
                environment=prepared.environment,
                folder=prepared.folder,
                log=self._log,
                python=self._around.settings.python,
            )
        except StartError:
            self._log.close()
            raise
        return process, prepared

    def _terminated(self, ended: Exit, started: datetime) -> Terminated:
        reason = "Completed" if ended.code == 0 else "Error"
        return Terminated(ended.code, reason, started, self._around.now(), signal=ended.signal)

    def _set(self, status: ContainerState) -> None:
        if status != self.status:
            self.status = status
            self._around.changed()

    # probes

    def _target(self, prepared: Prepared) -> Target:
        async def run(command: list[str], timeout: float) -> tuple[int, str]:
            return await run_command(
                [rewrite(word, prepared.mounts) for word in command],
                environment=prepared.environment,
                folder=prepared.folder,
                python=self._around.settings.python,
                timeout=timeout,
            )

        return Target(self.container, self._around.pod_ip, self._around.session, run)

    def _start_probes(self, prepared: Prepared) -> None:
        self._probe_target = self._target(prepared)
        if "startupProbe" in self.container:
            self._spawn("startupProbe", False, self._on_startup)
        else:
            self._after_startup()

    def _after_startup(self) -> None:
        if "readinessProbe" in self.container:
            self._spawn("readinessProbe", False, self._on_readiness)
        elif not self._stopping.is_set():
            self._set(replace(self.status, ready=True))
        if "livenessProbe" in self.container:
            self._spawn("livenessProbe", True, self._on_liveness)

    def _spawn(self, kind: str, passing: bool, on_verdict: Callable[[Verdict, str | None], bool]) -> None:
        probe = self.container[kind]
        self._probes.append(
            asyncio.create_task(probe_loop(probe, self._probe_target, passing=passing, on_verdict=on_verdict))
        )

    def _stop_probes(self) -> None:
        for task in self._probes:
            task.cancel()
        self._probes.clear()

    def _unhealthy(self, kind: str, problem: str | None) -> None:
        if problem is not None:
            self._around.event("Unhealthy", f"{kind} probe failed: {problem}", warning=True)

    def _on_startup(self, verdict: Verdict, problem: str | None) -> bool:
        state = self.status.state
        running = (self._around.now() - state.started_at).total_seconds() if isinstance(state, Running) else math.inf
        if not still_starting(self.container["startupProbe"], running):
            self._unhealthy("Startup", problem)
        if verdict.passing:
            self._set(replace(self.status, started=True))
            self._after_startup()
            return False
        return not self._give_up("startupProbe", verdict)

    def _on_readiness(self, verdict: Verdict, problem: str | None) -> bool:
        self._unhealthy("Readiness", problem)
        self._set(replace(self.status, ready=verdict.passing))
        return True

    def _on_liveness(self, verdict: Verdict, problem: str | None) -> bool:
        if self._stopping.is_set():
            return False
        self._unhealthy("Liveness", problem)
        return not self._give_up("livenessProbe", verdict)

    def _give_up(self, kind: str, verdict: Verdict) -> bool:
        """End this run when the probe has failed for good, so that the container is restarted."""
        probe = self.container[kind]
        failures = int(probe.get("failureThreshold") or 3)
        if verdict.last is not False or verdict.streak < failures or self._process is None:
            return False
        self._around.event(
            "Killing", f"Container {self.name} failed {kind.removesuffix('Probe')} probe, will be restarted"
        )
        grace = probe.get("terminationGracePeriodSeconds")
        seconds = self._around.grace_seconds if grace is None else float(grace)
        self._restarting = asyncio.create_task(self._end(self._process, seconds))
        return True

    # end

    async def stop(self, grace_seconds: float) -> None:
        """preStop, SIGTERM, SIGKILL when the grace period is over. Returns when the process has ended."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        self._around.event("Killing", f"Stopping container {self.name}")
        await self._end(process, grace_seconds)

    def kill(self) -> None:
        """At once, and for good."""
        self._stopping.set()
        if self._process is not None:
            self._process.signal_group(signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until no process of this container runs any more."""
        if self._process is not None:
            await self._process.wait()

    def abandon(self) -> None:
        """Leave the process alone when the task of `run` is cancelled: its node is lost, not stopped."""
        self._abandoned = True

    async def _end(self, process: ContainerProcess, grace_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        hook = (self.container.get("lifecycle") or {}).get("preStop")
        if hook is not None and grace_seconds > 0:
            hooked = asyncio.create_task(run_hook(hook, self._probe_target, grace_seconds))
            ended = asyncio.create_task(process.wait())
            try:
                await asyncio.wait({hooked, ended}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
                if hooked.done() and (problem := hooked.result()) is not None:
                    self._around.event(
                        "FailedPreStopHook", f"PreStop hook of {self.name} failed: {problem}", warning=True
                    )
            finally:
                hooked.cancel()
                ended.cancel()
        await process.stop(grace_seconds=max(0.0, deadline - loop.time()))
