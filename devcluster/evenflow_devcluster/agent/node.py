"""One node of the agent: its Node object and heartbeat, and the pods bound to it."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp

from evenflow_devcluster.agent.pod_status import stamp
from evenflow_devcluster.agent.pod_worker import PodTools, PodWorker
from evenflow_devcluster.agent.settings import NodeShape
from evenflow_devcluster.kube import STRATEGIC_PATCH, Informer, KubeError

Json = dict[str, Any]

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_DEFAULT_TOLERATION = 300.0
_API_ERRORS = (KubeError, aiohttp.ClientError, TimeoutError, OSError)

log = logging.getLogger(__name__)


def node_object(name: str, shape: NodeShape) -> Json:
    """The Node as the agent registers it."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.product": shape.gpu_product,
        "nvidia.com/gpu.count": str(shape.gpus),
        "nvidia.com/gpu.present": "true",
        **shape.labels,
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}}


def node_status(name: str, shape: NodeShape, *, host_ip: str, port: int, ready: bool, now: str, since: str) -> Json:
    """The status that goes with it. A lost node's Ready is Unknown, as the node controller writes it."""
    reason, message = ("KubeletReady", "the node agent is running") if ready else ("NodeStatusUnknown", "no heartbeat")
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [
        {"type": kind, "status": "False" if ready else "Unknown", "reason": "NodeAgent" if ready else reason}
        for kind in pressures
    ]
    conditions.append({"type": "Ready", "status": "True" if ready else "Unknown", "reason": reason, "message": message})
    beat = {"lastHeartbeatTime": now, "lastTransitionTime": since}
    return {
        "capacity": shape.resources(),
        "allocatable": shape.resources(),
        "conditions": [{**item, **beat} for item in conditions],
        "addresses": [{"type": "InternalIP", "address": host_ip}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "local://1",
            "kernelVersion": "",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.37.2",
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "local processes",
            "systemUUID": "",
        },
    }


def toleration_seconds(pod: Json, key: str) -> float | None:
    """How long the pod outlives a NoExecute taint `key`: Kubernetes' 300 s by default, None for ever."""
    for item in pod["spec"].get("tolerations") or []:
        matches_key = item.get("key") in (key, None, "")
        if matches_key and item.get("effect") in ("NoExecute", None, "") and item.get("operator", "Equal") == "Exists":
            seconds = item.get("tolerationSeconds")
            return None if seconds is None else float(seconds)
    return _DEFAULT_TOLERATION


class AgentNode:
    """Register it, then `start`: from then on API failures are retried, and its pods run on meanwhile."""

    def __init__(self, name: str, shape: NodeShape, tools: PodTools, *, port: int) -> None:
        self.name = name
        self.workers: dict[str, PodWorker] = {}
        self._shape = shape
        self._tools = tools
        self._port = port
        self._since = stamp(tools.now())
        self._tasks: list[asyncio.Task[None]] = []
        self._evictions: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._left: list[PodWorker] = []
        self.informer: Informer | None = None

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    async def register(self) -> None:
        """Create or update the Node object, free of taints that only a missing agent explains. Raises KubeError."""
        try:
            await self._tools.client.create("/api/v1/nodes", node_object(self.name, self._shape))
        except KubeError as error:
            if error.status != 409:
                raise
            labels = node_object(self.name, self._shape)["metadata"]["labels"]
            await self._tools.client.patch(self.path, {"metadata": {"labels": labels}})
        await self._write_status(ready=True)
        await self._set_taints(drop={NOT_READY, UNREACHABLE})

    async def _write_status(self, *, ready: bool) -> None:
        now = stamp(self._tools.now())
        status = node_status(
            self.name,
            self._shape,
            host_ip=self._tools.settings.host_ip,
            port=self._port,
            ready=ready,
            now=now,
            since=self._since,
        )
        await self._tools.client.patch(f"{self.path}/status", {"status": status}, content_type=STRATEGIC_PATCH)

    async def _set_taints(self, *, drop: set[str], add: tuple[Mapping[str, str], ...] = ()) -> None:
        node = await self._tools.client.get(self.path)
        old = (node.get("spec") or {}).get("taints") or []
        taints = [item for item in old if item["key"] not in drop] + [dict(item) for item in add]
        if taints != old:
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints or None}}
            await self._tools.client.patch(self.path, body)

    def start(self) -> None:
        self.informer = Informer(
            self._tools.client,
            "/api/v1/pods",
            self._on_pod,
            rng=self._tools.rng,
            fieldSelector=f"spec.nodeName={self.name}",
        )
        self._tasks = [asyncio.create_task(self.informer.run()), asyncio.create_task(self._heartbeat())]

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._tools.settings.heartbeat * self._tools.rng.uniform(0.8, 1.0))
            try:
                await self._write_status(ready=True)
            except KubeError as error:
                if error.status != 404:
                    log.info("heartbeat of %s: %s", self.name, error)
                    continue
                try:
                    await self.register()
                except _API_ERRORS as again:
                    log.info("node %s was deleted and can't be registered yet: %s", self.name, again)
            except _API_ERRORS as error:
                log.info("heartbeat of %s: %s", self.name, error)

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        pod = new or old
        assert pod is not None
        uid = pod["metadata"]["uid"]
        worker = self.workers.get(uid)
        if new is None:
            if worker is not None:
                worker.forget()
            return
        if worker is not None:
            worker.update(new)
            return
        ended = (new.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if ended and not new["metadata"].get("deletionTimestamp"):
            return
        worker = PodWorker(new, self._tools)
        self.workers[uid] = worker
        worker.start()
        task = asyncio.create_task(self._bury(uid, worker))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _bury(self, uid: str, worker: PodWorker) -> None:
        await worker.done.wait()
        await worker.shut_down()
        self.workers.pop(uid, None)

    async def stop(self, *, leave_running: bool = False) -> None:
        """End all of it; no API call is made, and processes are killed unless `leave_running`."""
        tasks = [*self._tasks, *self._evictions, *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._evictions = [], []
        workers = [*self.workers.values(), *self._left]
        await asyncio.gather(*(worker.shut_down(leave_running=leave_running) for worker in workers))
        self._left = workers if leave_running else []
        self.workers.clear()

    async def lose(self, *, leave_running: bool) -> None:
        """Play a node that is cut off: silence from here, and what the control plane does about it.

        Ready turns Unknown, the `unreachable` taints appear, its pods turn not ready, and each is deleted when its
        toleration runs out; the objects then stay, Terminating, for nobody confirms their end.
        """
        pods = [worker.pod for worker in self.workers.values()]
        await self.stop(leave_running=leave_running)
        self._since = stamp(self._tools.now())
        await self._write_status(ready=False)
        taints = [{"key": UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        await self._set_taints(drop={NOT_READY, UNREACHABLE}, add=tuple(taints))
        for pod in pods:
            await self._mark_not_ready(pod)
            self._evictions.append(asyncio.create_task(self._evict(pod)))

    async def _mark_not_ready(self, pod: Json) -> None:
        condition = {
            "type": "Ready",
            "status": "False",
            "reason": "NodeStatusUnknown",
            "message": "the node is unreachable",
            "lastTransitionTime": stamp(self._tools.now()),
        }
        await self._ignore_missing(
            self._tools.client.patch(
                f"{_pod_path(pod)}/status",
                {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [condition]}},
                content_type=STRATEGIC_PATCH,
            )
        )

    async def _evict(self, pod: Json) -> None:
        seconds = toleration_seconds(pod, UNREACHABLE)
        if seconds is not None:
            await asyncio.sleep(seconds)
            await self._ignore_missing(self._tools.client.delete(_pod_path(pod), uid=pod["metadata"]["uid"]))

    @staticmethod
    async def _ignore_missing(call: Any) -> None:
        try:
            await call
        except KubeError as error:
            if error.status not in (404, 409):
                raise


def _pod_path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
