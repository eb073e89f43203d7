"""One pod on one node, from the moment it is bound until its object is gone."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from evenflow_devcluster.agent.addresses import choose_address, port_is_free
from evenflow_devcluster.agent.container import ContainerRunner
from evenflow_devcluster.agent.events import EventRecorder
from evenflow_devcluster.agent.expansion import ConfigError
from evenflow_devcluster.agent.images import missing_images
from evenflow_devcluster.agent.pod_files import PodFiles, Preparation
from evenflow_devcluster.agent.pod_status import build_status, phase_of
from evenflow_devcluster.agent.probes import check_handlers
from evenflow_devcluster.agent.settings import AgentSettings
from evenflow_devcluster.kube import STRATEGIC_PATCH, KubeClient, KubeError

Json = dict[str, Any]

_DEFAULT_GRACE = 30.0
_RETRY_LIMIT = 10.0
_KILL_SECONDS = 5.0
_API_ERRORS = (KubeError, aiohttp.ClientError, TimeoutError, OSError)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodTools:
    """What all pods of one agent share: `taken` addresses, and the `marker` that every child's environment holds."""

    client: KubeClient
    settings: AgentSettings
    session: aiohttp.ClientSession
    events: EventRecorder
    now: Callable[[], datetime]
    rng: random.Random
    taken: set[str]
    marker: str


class PodWorker:
    """Made for a bound pod: `start` it, `update` it with every version seen, `forget` it when the object is gone."""

    def __init__(self, pod: Json, tools: PodTools) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.done = asyncio.Event()
        self._tools = tools
        self._files = PodFiles(pod, tools.client, tools.settings, marker=tools.marker)
        self._policy: str = pod["spec"].get("restartPolicy") or "Always"
        self._started_at = tools.now()
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._dirty = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._killer: asyncio.TimerHandle | None = None
        self._grace: float | None = None
        self._refused = ""
        self._written: Json = {}
        self._conditions: list[Json] = (pod.get("status") or {}).get("conditions") or []
        before = {item["name"]: item for item in (pod.get("status") or {}).get("containerStatuses") or []}
        once = "Never" if self._policy == "Never" else "OnFailure"
        spec = pod["spec"]
        self._init = [ContainerRunner(item, self, restart_policy=once) for item in spec.get("initContainers") or []]
        self._main = [
            ContainerRunner(item, self, restart_policy=self._policy, before=before.get(item["name"]))
            for item in spec["containers"]
        ]

    # what containers see of their pod (container.Surroundings)

    @property
    def settings(self) -> AgentSettings:
        return self._tools.settings

    @property
    def session(self) -> aiohttp.ClientSession:
        return self._tools.session

    @property
    def pod_ip(self) -> str:
        return self._files.pod_ip

    @property
    def now(self) -> Callable[[], datetime]:
        return self._tools.now

    @property
    def grace_seconds(self) -> float:
        seconds = self.pod["spec"].get("terminationGracePeriodSeconds")
        return _DEFAULT_GRACE if seconds is None else float(seconds)

    async def prepare(self, container: Json) -> Preparation:
        return await self._files.prepare(container, self.pod)

    def log_path(self, container: str, run: int) -> Path:
        return self._files.log_path(container, run)

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._tools.events.record({"kind": "Pod", **self.pod}, reason, message, warning=warning)

    def changed(self) -> None:
        self._dirty.set()

    # what the agent tells it

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._live()), asyncio.create_task(self._write_status())]
        if self._files.reads_objects:
            self._tasks.append(asyncio.create_task(self._refresh()))
        self.update(self.pod)

    def update(self, pod: Json) -> None:
        """A newer version of the pod: annotations and labels reach its files, a deletion begins its end."""
        self.pod = pod
        if self._files.pod_ip:
            try:
                self._files.publish_fields(pod)
            except (ConfigError, OSError) as error:
                self.event("FailedMount", str(error), warning=True)
        self._dirty.set()
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            seconds = _DEFAULT_GRACE if grace is None else float(grace)
            if self._grace is None or seconds < self._grace:
                self._grace = seconds
                if self._killer is not None:
                    self._killer.cancel()
                self._killer = asyncio.get_running_loop().call_later(seconds, self._kill)
            self._stop.set()

    def forget(self) -> None:
        """The object is gone from the API server: end at once, and write nothing more."""
        self._gone.set()
        self._kill()
        self._stop.set()

    async def shut_down(self, *, leave_running: bool = False) -> None:
        """The agent ends (or its node is lost): no API call; processes are killed unless `leave_running`."""
        for runner in self._runners:
            if leave_running:
                runner.abandon()
            else:
                runner.kill()
        if self._killer is not None:
            self._killer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not leave_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_SECONDS):
                    await asyncio.gather(*(runner.ended() for runner in self._runners))
        self._tools.taken.discard(self.pod_ip)

    def runner(self, container: str) -> ContainerRunner | None:
        return next((item for item in self._runners if item.name == container), None)

    @property
    def _runners(self) -> list[ContainerRunner]:
        return [*self._init, *self._main]

    def _kill(self) -> None:
        for runner in self._runners:
            runner.kill()

    # its life

    async def _live(self) -> None:
        body = asyncio.create_task(self._body())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({body, stop}, return_when=asyncio.FIRST_COMPLETED)
            if body.done() and (error := body.exception()) is not None:
                log.error("pod %s failed", self.pod["metadata"]["name"], exc_info=error)
                self._refuse(f"internal error of the node agent: {error!r}")
            await stop
            grace = 0.0 if self._gone.is_set() else self._grace or 0.0
            # Init containers that haven't been reached are never started: their stop flag is set first.
            await asyncio.gather(*(runner.stop(grace) for runner in self._runners))
            await asyncio.wait({body})
        finally:
            for task in (body, stop):
                task.cancel()
            await asyncio.gather(body, stop, return_exceptions=True)
        if self._killer is not None:
            self._killer.cancel()
        await self._confirm()
        self._tools.taken.discard(self.pod_ip)
        await self._files.remove()
        self.done.set()

    async def _body(self) -> None:
        try:
            self._check()
            self._files.pod_ip = self._address()
        except (ConfigError, OSError) as error:
            self._refuse(str(error))
            return
        missing = missing_images(self.pod["spec"], python=self.settings.python)
        if missing:
            await self._wait_for_images(missing)
            return
        await self._mount()
        self._dirty.set()
        for runner in self._init:
            if self._stop.is_set():
                return
            await runner.run()
            ended = runner.status.state
            if getattr(ended, "exit_code", 1) != 0:
                return
        if not self._stop.is_set():
            await asyncio.gather(*(runner.run() for runner in self._main))

    async def _wait_for_images(self, missing: Mapping[str, str]) -> None:
        """As a kubelet shows it, but tried once: what this agent can't run it can't run later either."""
        for runner in self._runners:
            runner.hold("ErrImagePull", missing[runner.name])
        for message in dict.fromkeys(missing.values()):
            self.event("Failed", f"Failed to pull image: {message}", warning=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), self.settings.crash_delay(2))
        for runner in self._runners:
            runner.hold("ImagePullBackOff", missing[runner.name])

    def _refuse(self, message: str) -> None:
        self._refused = message
        self.event("Failed", message, warning=True)
        self._dirty.set()

    def _check(self) -> None:
        for item in self.pod["spec"].get("initContainers") or []:
            if item.get("restartPolicy") == "Always":
                raise ConfigError(
                    f"initContainers[{item['name']}].restartPolicy: Always isn't supported by this node agent; "
                    "make it an ordinary container"
                )
        for runner in self._runners:
            check_handlers(runner.container)

    def _address(self) -> str:
        ports = [int(port["containerPort"]) for runner in self._main for port in runner.container.get("ports") or []]
        taken = self._tools.taken
        # After a restart of the agent the pod keeps its address, so that nobody has to learn a new one.
        kept: str = (self.pod.get("status") or {}).get("podIP") or ""
        network = self.settings.pod_network
        if kept.startswith(f"{network}.") and kept not in taken and all(port_is_free(kept, port) for port in ports):
            address = kept
        else:
            address = choose_address(network, ports, taken, self._tools.rng)
        taken.add(address)
        return address

    async def _mount(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                await self._files.publish(self.pod)
                return
            except (ConfigError, OSError) as error:
                self.event("FailedMount", str(error), warning=True)
                failures += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self.settings.crash_delay(failures + 1))

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self.settings.object_refresh)
            if self._files.pod_ip and not self._stop.is_set():
                try:
                    await self._files.publish(self.pod)
                except (ConfigError, OSError) as error:
                    self.event("FailedMount", str(error), warning=True)

    # what it writes

    def _status(self) -> Json:
        init = [item.status for item in self._init]
        main = [item.status for item in self._main]
        return build_status(
            pod=self.pod,
            before=self._conditions,
            init=init,
            main=main,
            phase="Failed" if self._refused else phase_of(init, main, self._policy),
            pod_ip=self.pod_ip,
            host_ip=self.settings.host_ip,
            started_at=self._started_at,
            now=self.now(),
            reason="UnsupportedPod" if self._refused else "",
            message=self._refused,
        )

    async def _write_status(self) -> None:
        failures = 0
        while not self._gone.is_set():
            await self._dirty.wait()
            # Changes come in bursts: the start of a container alone makes three.
            await asyncio.sleep(0.01)
            self._dirty.clear()
            try:
                await self._put_status()
                failures = 0
            except _API_ERRORS as error:
                if isinstance(error, KubeError) and error.status == 404:
                    return
                failures += 1
                log.info("status of pod %s not written: %s", self.pod["metadata"]["name"], error)
                await asyncio.sleep(min(_RETRY_LIMIT, 0.1 * 2**failures) * self._tools.rng.uniform(0.5, 1.0))
                self._dirty.set()

    async def _put_status(self) -> None:
        status = self._status()
        if status == self._written:
            return
        body = {**status, "podIPs": [{"$patch": "replace"}, *status.get("podIPs", [])]}
        await self._tools.client.patch(
            f"{self._path}/status", {"metadata": {"uid": self.uid}, "status": body}, content_type=STRATEGIC_PATCH
        )
        self._written = status
        self._conditions = status["conditions"]

    @property
    def _path(self) -> str:
        meta = self.pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    async def _confirm(self) -> None:
        """All has ended: write the last status and take the object away, for only now is its GPU free."""
        failures = 0
        while not self._gone.is_set():
            try:
                await self._put_status()
                await self._tools.client.delete(self._path, uid=self.uid, grace_seconds=0)
                return
            except _API_ERRORS as error:
                if isinstance(error, KubeError) and error.status == 404:
                    return
                failures += 1
                log.info("end of pod %s not confirmed: %s", self.pod["metadata"]["name"], error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._gone.wait(), min(_RETRY_LIMIT, 0.1 * 2**failures) * self._tools.rng.uniform(0.5, 1.0)
                    )
