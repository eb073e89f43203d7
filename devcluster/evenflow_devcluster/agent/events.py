"""Kubernetes Events, posted in the background: repeated ones are counted, and a flood is dropped rather than queued."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp

from evenflow_devcluster.agent.pod_status import stamp
from evenflow_devcluster.kube import KubeClient, KubeError

Json = dict[str, Any]

_QUEUE = 1000
_REMEMBERED = 1000
# One write per event and interval, however often it repeats: a failing probe must not keep the API server busy.
_REPEAT_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    name: str
    count: int
    written: float


class EventRecorder:
    """`record` never blocks and never raises; `run` posts."""

    def __init__(
        self, client: KubeClient, now: Callable[[], datetime], clock: Callable[[], float], *, component: str
    ) -> None:
        self._client = client
        self._now = now
        self._clock = clock
        self._component = component
        self._queue: asyncio.Queue[tuple[Json, str, str, str]] = asyncio.Queue(_QUEUE)
        self._seen: OrderedDict[tuple[str, str, str], _Seen] = OrderedDict()
        self._serial = 0

    def record(self, target: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """An event about `target`, an object with apiVersion, kind and metadata."""
        try:
            self._queue.put_nowait((target, reason, message[:1000], "Warning" if warning else "Normal"))
        except asyncio.QueueFull:
            log.warning("event dropped, %d are waiting: %s %s", _QUEUE, reason, message)

    async def run(self) -> None:
        while True:
            target, reason, message, kind = await self._queue.get()
            try:
                await self._post(target, reason, message, kind)
            except (KubeError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.info("event %s about %s not posted: %s", reason, target["metadata"].get("name"), error)

    async def _post(self, target: Json, reason: str, message: str, kind: str) -> None:
        meta = target["metadata"]
        namespace = meta.get("namespace") or "default"
        path = f"/api/v1/namespaces/{namespace}/events"
        key = (meta.get("uid") or meta["name"], reason, message)
        seen = self._seen.get(key)
        now = stamp(self._now())
        if seen is not None:
            seen.count += 1
            if self._clock() - seen.written < _REPEAT_SECONDS:
                return
            seen.written = self._clock()
            try:
                await self._client.patch(f"{path}/{seen.name}", {"count": seen.count, "lastTimestamp": now})
                return
            except KubeError as error:
                if error.status != 404:
                    raise
        self._serial += 1
        name = f"{meta['name'][:200]}.{int(self._now().timestamp() * 1e6):x}{self._serial:x}"
        self._seen[key] = _Seen(name, 1, self._clock())
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        reference = {
            "apiVersion": target.get("apiVersion", "v1"),
            "kind": target.get("kind", "Pod"),
            "name": meta["name"],
            "uid": meta.get("uid", ""),
            **({"namespace": namespace} if meta.get("namespace") else {}),
        }
        await self._client.create(
            path,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": reference,
                "reason": reason,
                "message": message,
                "type": kind,
                "source": {"component": self._component},
                "reportingComponent": self._component,
                "reportingInstance": self._component,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )
