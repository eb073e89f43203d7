"""The bridge from the watches' thread into the engine's loop: the newest of each object, so bounded by their number."""

import asyncio
import threading
from dataclasses import dataclass

from evenflow_operator.engine.cache import Cache
from evenflow_operator.ports import Kind, Record


@dataclass(frozen=True, slots=True)
class _News:
    record: Record | None
    """None: the object is gone."""
    version: str


class Feed:
    """`put` and `drop` may be called from any thread; the cache is only touched in the loop's."""

    def __init__(self, cache: Cache, loop: asyncio.AbstractEventLoop) -> None:
        self._cache = cache
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: dict[tuple[Kind, str], _News] = {}
        self._scheduled = False

    def put(self, kind: Kind, uid: str, record: Record) -> None:
        self._submit(kind, uid, _News(record, ""))

    def drop(self, kind: Kind, uid: str, version: str) -> None:
        self._submit(kind, uid, _News(None, version))

    def _submit(self, kind: Kind, uid: str, news: _News) -> None:
        with self._lock:
            # Only the newest news of an object matters.
            self._pending[kind, uid] = news
        self._schedule()

    def _schedule(self) -> None:
        with self._lock:
            if self._scheduled or self._loop.is_closed():
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The engine's loop closed in between: the process is ending.
            self._scheduled = False

    def _drain(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
            self._scheduled = False
        for (kind, uid), news in pending.items():
            if news.record is not None:
                self._cache.put(news.record)
            else:
                self._cache.drop(kind, uid, news.version)
