"""The Events port: core v1 Events about pools, repeats counted up, never more than the API server can bear."""

import asyncio
import contextlib
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from evenflow_operator.adapters.kube import MERGE_PATCH, KubeClient
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.core.times import rfc3339
from evenflow_operator.ports import ApiError, Clock, PoolRecord

QUEUE = 1000
REMEMBERED = 4096
REPEAT_SECONDS = 3600.0
"""The API server forgets an Event after an hour: later repeats are new Events."""
COUNT_UP_SECONDS = 10.0
"""A repeat within this time is counted here and written with the next one."""
BURST = 50.0
REFILL_PER_SECOND = 0.2
MAX_MESSAGE = 1024

log = logging.getLogger(__name__)

_Fingerprint = tuple[str, str, str]


@dataclass(slots=True)
class _Seen:
    name: str
    count: int
    first: float
    last: float
    written: float


@dataclass(slots=True)
class _Budget:
    tokens: float
    at: float


@dataclass(frozen=True, slots=True)
class _Item:
    pool: PoolRecord
    warning: bool
    reason: str
    message: str
    at: float


class KubeEvents:
    """Queue in, one writer task out. An Event is a courtesy: what can't be posted is dropped and counted."""

    def __init__(self, client: KubeClient, clock: Clock, component: str, instance: str) -> None:
        self._client = client
        self._clock = clock
        self._component = component
        self._instance = instance
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(QUEUE)
        self._seen: OrderedDict[_Fingerprint, _Seen] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self.dropped = 0

    def post(self, pool: PoolRecord, *, warning: bool, reason: str, message: str) -> None:
        try:
            self._queue.put_nowait(_Item(pool, warning, reason, message[:MAX_MESSAGE], self._clock.now()))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            item = await self._queue.get()
            try:
                await self._write(item)
            except ApiError as error:
                self.dropped += 1
                log.debug("event %s about %s/%s not written: %s", item.reason, *item.pool.key, error)
            except Exception:
                self.dropped += 1
                log.exception("event %s about %s/%s not written", item.reason, *item.pool.key)
            finally:
                self._queue.task_done()

    async def flush(self, timeout: float) -> None:
        """Wait, at most `timeout` seconds, until what is queued has been written."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), timeout)

    async def _write(self, item: _Item) -> None:
        fingerprint = (item.pool.uid, item.reason, item.message)
        seen = self._seen.get(fingerprint)
        if seen is not None and item.at - seen.first < REPEAT_SECONDS:
            seen.count += 1
            seen.last = item.at
            if item.at - seen.written < COUNT_UP_SECONDS or await self._count_up(item, seen):
                return
        if not self._allowed(item):
            self.dropped += 1
            return
        name = f"{item.pool.name}.{uuid.uuid4().hex[:16]}"
        await self._client.request(
            "POST", f"/api/v1/namespaces/{item.pool.namespace}/events", body=self._manifest(name, item)
        )
        _remember(self._seen, fingerprint, _Seen(name, 1, item.at, item.at, item.at))

    async def _count_up(self, item: _Item, seen: _Seen) -> bool:
        body = {"count": seen.count, "lastTimestamp": rfc3339(seen.last)}
        path = f"/api/v1/namespaces/{item.pool.namespace}/events/{seen.name}"
        try:
            await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        seen.written = item.at
        return True

    def _allowed(self, item: _Item) -> bool:
        budget = self._budgets.get(item.pool.uid)
        if budget is None:
            budget = _Budget(BURST, item.at)
            _remember(self._budgets, item.pool.uid, budget)
        budget.tokens = min(BURST, budget.tokens + max(0.0, item.at - budget.at) * REFILL_PER_SECOND)
        budget.at = item.at
        if budget.tokens < 1.0:
            return False
        budget.tokens -= 1.0
        return True

    def _manifest(self, name: str, item: _Item) -> dict[str, Any]:
        moment = rfc3339(item.at)
        pool = item.pool
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pool.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": pool.namespace,
                "name": pool.name,
                "uid": pool.uid,
                "resourceVersion": pool.resource_version,
            },
            "type": "Warning" if item.warning else "Normal",
            "reason": item.reason,
            "message": item.message,
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def _remember(store: "OrderedDict[Any, Any]", key: Any, value: Any) -> None:
    store[key] = value
    store.move_to_end(key)
    while len(store) > REMEMBERED:
        store.popitem(last=False)
