"""A level-triggered loop over keys: events only say what to look at again."""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from evenflow_devcluster.embedded.controller_api import ControllerApi, StoreEvent
from evenflow_devcluster.embedded.controllers.mirror import Mirror

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
MAX_RETRIES = 10
LONG_BATCH_SECONDS = 0.002
MAX_PAUSE_SECONDS = 0.5

Key = TypeVar("Key", bound=Hashable)


class ControlLoop(ABC, Generic[Key]):
    watched: ClassVar[tuple[str, ...]] = ()
    """Resources whose objects `self.mirror` holds."""

    def __init__(self, api: ControllerApi) -> None:
        self.api = api
        self.mirror = Mirror(self.watched)
        self._dirty: dict[Key, None] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._working = False

    @abstractmethod
    def touched(self, event: StoreEvent, before: Mapping[str, Any] | None) -> list[Key]:
        """Keys that this write may concern; `before` is the object as the mirror had it, if it holds the resource."""

    @abstractmethod
    def initial(self) -> list[Key]:
        """Keys to look at when the loop starts; the mirror is filled."""

    @abstractmethod
    def reconcile(self, key: Key) -> None:
        """Bring one key to its desired state; raising asks for another try."""

    def mark(self, keys: list[Key]) -> None:
        for key in keys:
            self._dirty[key] = None
        if keys:
            self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether every key that events have marked is seen to (retries after an error apart)."""
        return not self._dirty and not self._working

    async def run(self) -> None:
        unsubscribe = self.api.subscribe(self._receive)
        try:
            for resource in self.watched:
                self.mirror.fill(resource, self.api.list(resource))
            self.mark(self.initial())
            while True:
                await self._wake.wait()
                self._wake.clear()
                batch, self._dirty = self._dirty, {}
                self._working = True
                spent = 0.0
                for key in batch:
                    began = time.monotonic()
                    self._try(key)
                    spent += time.monotonic() - began
                    await asyncio.sleep(0)
                self._working = False
                # Events that come meanwhile are one batch: however large the objects, half the loop is left to others.
                if spent > LONG_BATCH_SECONDS:
                    await asyncio.sleep(min(spent, MAX_PAUSE_SECONDS))
        finally:
            unsubscribe()

    def _receive(self, event: StoreEvent) -> None:
        self.mark(self.touched(event, self.mirror.apply(event)))

    def _try(self, key: Key) -> None:
        try:
            self.reconcile(key)
        except Exception as error:
            failures = self._failures.get(key, 0) + 1
            if failures > MAX_RETRIES:
                self._failures.pop(key, None)
                log.exception("%s gives up on %s until its next event", type(self).__name__, key)
                return
            self._failures[key] = failures
            log.debug("%s tries %s again: %s", type(self).__name__, key, error)
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().call_later(RETRY_SECONDS * failures, self.mark, [key])
        else:
            self._failures.pop(key, None)
