"""One watch: which changes it sees, in what order, and when it ends. `http.streams` sends it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from evenflow_devcluster.embedded.store.memory import Change, Record, Store
from evenflow_devcluster.embedded.syntax.selectors import Predicate

WatchType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: WatchType
    record: Record


class Watcher:
    """A bounded queue of the events of one watch. A reader too slow for it is cut off and has to start again."""

    def __init__(self, namespace: str | None, predicate: Predicate | None, capacity: int) -> None:
        self._namespace = namespace
        self._predicate = predicate
        self._capacity = capacity
        self._queue: deque[WatchEvent] = deque()
        self._wake = asyncio.Event()
        self.ended = False

    def push(self, change: Change) -> None:
        if self._namespace is not None and change.key[0] != self._namespace:
            return
        event = self._seen(change)
        if event is None or self.ended:
            return
        if len(self._queue) >= self._capacity:
            self.end()
            return
        self._queue.append(event)
        self._wake.set()

    def _seen(self, change: Change) -> WatchEvent | None:
        if self._predicate is None:
            return WatchEvent(change.type, change.record)
        before = change.previous is not None and self._predicate(change.previous.object)
        if change.type == "DELETED":
            return WatchEvent("DELETED", change.record) if before else None
        now = self._predicate(change.record.object)
        if now:
            return WatchEvent("MODIFIED" if before else "ADDED", change.record)
        if before and change.previous is not None:
            return WatchEvent("DELETED", _reversioned(change.previous, change.version))
        return None

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    def take(self) -> list[WatchEvent]:
        """What is due now; clears the wake-up, so read it all."""
        events = list(self._queue)
        self._queue.clear()
        self._wake.clear()
        return events

    async def wait(self, timeout: float) -> bool:
        """Whether something is due (or the watch has ended) within `timeout` seconds."""
        if self._queue or self.ended:
            return True
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            return False
        return True


def _reversioned(record: Record, version: int) -> Record:
    metadata: dict[str, Any] = {**record.object["metadata"], "resourceVersion": str(version)}
    return Record({**record.object, "metadata": metadata})


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """A watch with what it starts with: the events due at once, and the version at which the initial state stands."""

    watcher: Watcher
    initial: list[WatchEvent]
    version: int
    close: Callable[[], None]


def open_watch(
    store: Store,
    resource: str,
    *,
    namespace: str | None,
    predicate: Predicate | None,
    since: int | None,
    capacity: int,
) -> OpenWatch:
    """Start with the whole state (`since` None) or with the changes after a version (410 if they are forgotten)."""
    watcher = Watcher(namespace, predicate, capacity)
    initial: list[WatchEvent] = []
    if since is None:
        records = sorted(store.bucket(resource).records.items())
        for (space, _), record in records:
            if (namespace is None or space == namespace) and (predicate is None or predicate(record.object)):
                initial.append(WatchEvent("ADDED", record))
    else:
        missed = store.since(resource, since)
        replay = Watcher(namespace, predicate, len(missed) + 1)
        for change in missed:
            replay.push(change)
        initial = replay.take()
    return OpenWatch(watcher, initial, store.version, store.listen(resource, watcher))
