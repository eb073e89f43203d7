"""Bringing a worker config to its worker early: in the background, one push per pod at a time, the newest wins.

A push only hurries: the annotation is the truth and arrives anyway, so a failure is recorded and never retried here.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.engine.readings import Readings
from evenflow_operator.ports import Clock, Key, PoolRecord, Tokens, TokenUnavailable, WorkerAdmin, WorkerError

REFUSED_PAUSE_SECONDS = 60.0
"""After a 401 or 403 the worker takes no pushes from us: asking more often changes nothing."""
MAX_REMEMBERED = 50_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Push:
    record: PoolRecord
    uid: str
    ip: str
    config: WorkerConfig


class Pusher:
    """`changed` is called with the pool's key when a worker has answered."""

    def __init__(
        self,
        admin: WorkerAdmin,
        tokens: Tokens,
        readings: Readings,
        clock: Clock,
        changed: Callable[[Key], None],
        count: Callable[[str], None],
    ) -> None:
        self._admin = admin
        self._tokens = tokens
        self._readings = readings
        self._clock = clock
        self._changed = changed
        self._count = count
        self._next: dict[str, _Push] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused_until: dict[str, float] = {}

    def submit(self, record: PoolRecord, uid: str, ip: str, config: WorkerConfig) -> None:
        if self._refused_until.get(uid, 0.0) > self._clock.monotonic():
            return
        self._next[uid] = _Push(record, uid, ip, config)
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._drain(uid), name=f"push to {uid}")

    async def token_problem(self, record: PoolRecord) -> str | None:
        """Why this pool's admin token can't be had; None when it can, or when none is asked for."""
        try:
            await self._token(record)
        except TokenUnavailable as error:
            return str(error)
        return None

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, uid: str) -> None:
        try:
            while (push := self._next.pop(uid, None)) is not None:
                result = await self._push(push)
                self._count(result)
                self._changed(push.record.key)
        finally:
            # In the same step as the last look: what is submitted from now on starts a task of its own.
            self._tasks.pop(uid, None)

    async def _push(self, push: _Push) -> str:
        try:
            generation = await self._admin.push(push.ip, push.config, await self._token(push.record))
        except TokenUnavailable:
            return "no_token"
        except WorkerError as error:
            log.warning("pool %s/%s: push to %s: %s", *push.record.key, push.ip, error)
            if error.status in (401, 403):
                if len(self._refused_until) >= MAX_REMEMBERED:
                    self._refused_until.clear()
                self._refused_until[push.uid] = self._clock.monotonic() + REFUSED_PAUSE_SECONDS
                return "refused"
            return "conflict" if error.status == 409 else "failed"
        self._readings.applied(push.record.key, push.uid, push.config, generation)
        return "applied"

    async def _token(self, record: PoolRecord) -> str | None:
        reference = record.pool.spec.admin_token_secret_ref if record.pool else None
        if reference is None:
            return None
        return await self._tokens.admin_token(record.namespace, reference.name, reference.key)
