"""The objects, their history and who listens: in memory, one global resourceVersion, one event loop.

A stored object is never changed in place: a write puts a new one in its stead. History and watchers share it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.errors import expired
from evenflow_devcluster.embedded.jsonvalues import Object, encoded

Key = tuple[str, str]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]

log = logging.getLogger(__name__)


class Record:
    """One version of one object, with its JSON made at most once."""

    __slots__ = ("_json", "object")

    def __init__(self, obj: Object) -> None:
        self.object = obj
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        if self._json is None:
            self._json = encoded(self.object)
        return self._json


@dataclass(frozen=True, slots=True)
class Change:
    """One committed write; `record` is the object after it (for DELETED: as it was, with the deletion's version)."""

    version: int
    type: EventType
    key: Key
    record: Record
    previous: Record | None


class Listener(Protocol):
    def push(self, change: Change) -> None: ...

    def end(self) -> None: ...


class Bucket:
    """All objects of one resource."""

    __slots__ = ("forgotten", "history", "listeners", "records")

    def __init__(self, history: int, version: int) -> None:
        self.records: dict[Key, Record] = {}
        self.history: deque[Change] = deque(maxlen=history)
        self.forgotten = version
        self.listeners: set[Listener] = set()

    def remember(self, change: Change) -> None:
        if len(self.history) == self.history.maxlen:
            self.forgotten = self.history[0].version
        self.history.append(change)


class Store:
    """`history` bounds the writes remembered per resource; a client further behind gets 410. `start` is the version
    of the empty store.
    """

    def __init__(self, history: int = 5_000, start: int = 1) -> None:
        self.version = start
        self._history = history
        self._buckets: dict[str, Bucket] = {}
        self._subscribers: list[Callable[[StoreEvent], None]] = []
        self._pending: deque[tuple[str, Change]] = deque()
        self._delivering = False

    def bucket(self, resource: str) -> Bucket:
        found = self._buckets.get(resource)
        if found is None:
            found = self._buckets[resource] = Bucket(self._history, self.version)
        return found

    def get(self, resource: str, key: Key) -> Record | None:
        return self.bucket(resource).records.get(key)

    def records(self, resource: str, namespace: str | None = None) -> Iterator[Record]:
        records = self.bucket(resource).records
        if namespace is None:
            yield from records.values()
        else:
            yield from (record for (space, _), record in records.items() if space == namespace)

    def put(self, resource: str, key: Key, obj: Object) -> Record:
        """Store a new object or a new version of one; stamps its resourceVersion."""
        bucket = self.bucket(resource)
        previous = bucket.records.get(key)
        record = Record(obj)
        self._stamp(obj)
        bucket.records[key] = record
        self._commit(resource, bucket, "MODIFIED" if previous else "ADDED", key, record, previous)
        return record

    def remove(self, resource: str, key: Key, last: Object | None = None) -> Record:
        """Take an object out; `last` is what it came to be with the write that let it go."""
        bucket = self.bucket(resource)
        previous = bucket.records.pop(key)
        last = last or previous.object
        last = {**last, "metadata": dict(last["metadata"])}
        self._stamp(last)
        record = Record(last)
        self._commit(resource, bucket, "DELETED", key, record, previous)
        return record

    def drop(self, resource: str) -> None:
        """Forget a resource whose definition is gone: its watches end."""
        bucket = self._buckets.pop(resource, None)
        for listener in list(bucket.listeners) if bucket else ():
            listener.end()

    def rewrite(self, resource: str, change: Callable[[Object], Object]) -> None:
        """Replace every object without a new version: what reading through a new schema does on a real server."""
        bucket = self.bucket(resource)
        bucket.records = {key: Record(change(record.object)) for key, record in bucket.records.items()}

    def _stamp(self, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)

    def _commit(
        self, resource: str, bucket: Bucket, kind: EventType, key: Key, record: Record, previous: Record | None
    ) -> None:
        change = Change(self.version, kind, key, record, previous)
        bucket.remember(change)
        for listener in list(bucket.listeners):
            listener.push(change)
        self._pending.append((resource, change))
        if self._delivering:
            return
        # A subscriber may write: its change waits here, so that every subscriber sees all changes in order.
        self._delivering = True
        try:
            while self._pending:
                source, due = self._pending.popleft()
                self._deliver(StoreEvent(due.type, source, due.record.object))
        finally:
            self._delivering = False

    def _deliver(self, event: StoreEvent) -> None:
        for receive in list(self._subscribers):
            try:
                receive(event)
            except Exception:
                log.exception("a subscriber failed on %s of %s", event.type, event.resource)

    def subscribe(self, receive: Callable[[StoreEvent], None]) -> Callable[[], None]:
        self._subscribers.append(receive)

        def unsubscribe() -> None:
            if receive in self._subscribers:
                self._subscribers.remove(receive)

        return unsubscribe

    def since(self, resource: str, version: int) -> list[Change]:
        """The changes after `version`. Raises 410 if some of them are forgotten."""
        bucket = self.bucket(resource)
        if version < bucket.forgotten:
            raise expired(f"too old resource version: {version} ({self.version})")
        return [change for change in bucket.history if change.version > version]

    def state_at(self, resource: str, version: int) -> dict[Key, Record]:
        """All objects as they were at `version`. Raises 410 if that is forgotten."""
        records = dict(self.bucket(resource).records)
        for change in reversed(self.since(resource, version)):
            if change.previous is None:
                records.pop(change.key, None)
            else:
                records[change.key] = change.previous
        return records

    def forget_history(self, resource: str | None = None) -> None:
        """Compact: every version before now is gone."""
        for name, bucket in self._buckets.items():
            if resource is None or name == resource:
                bucket.history.clear()
                bucket.forgotten = self.version

    def listen(self, resource: str, listener: Listener) -> Callable[[], None]:
        bucket = self.bucket(resource)
        bucket.listeners.add(listener)
        return lambda: bucket.listeners.discard(listener)

    def end_watches(self, resource: str | None = None) -> None:
        for name, bucket in self._buckets.items():
            if resource is None or name == resource:
                for listener in list(bucket.listeners):
                    listener.end()


def key_of(obj: Any) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
