"""The waiting queue: a heap of immutable keys with lazy deletion.

Adding, removing, re-keying and popping cost O(log n) or less; a removed or re-keyed request leaves a dead entry behind,
and the heap is rebuilt before dead entries outnumber live ones.
"""

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from evenflow_worker.scheduling.keys import QueueKey

T = TypeVar("T", bound=Hashable)
_Entry = tuple[QueueKey, int, T]

_MIN_COMPACTION = 64


class WaitingQueue(Generic[T]):
    """Requests in the order of their keys; equal keys keep the order in which they were added or re-keyed.

    `len` is the true number of waiting requests, iteration is in order and changes nothing.
    """

    __slots__ = ("_entries", "_heap", "_ticks")

    def __init__(self) -> None:
        self._heap: list[_Entry[T]] = []
        self._entries: dict[T, _Entry[T]] = {}
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    def __iter__(self) -> Iterator[T]:
        for entry in sorted(self._entries.values()):
            yield entry[2]

    def add(self, item: T, key: QueueKey) -> None:
        """Raises ValueError if the item is waiting already: re-key it instead."""
        if item in self._entries:
            raise ValueError(f"{item!r} is in the queue already; use rekey")
        self._push(item, key)

    def remove(self, item: T) -> None:
        """Raises KeyError if the item isn't waiting."""
        del self._entries[item]
        self._compact()

    def rekey(self, item: T, key: QueueKey) -> None:
        """Move one item to where its new key belongs; raises KeyError if it isn't waiting."""
        if self._entries[item][0] != key:
            self._push(item, key)
            self._compact()

    def rekey_all(self, key_of: Callable[[T], QueueKey]) -> None:
        """Give every item a new key at once, in O(n); ties keep their order."""
        # Built aside: if key_of raises, the queue is as it was.
        self._entries = {item: (key_of(item), entry[1], item) for item, entry in self._entries.items()}
        self._rebuild()

    def key(self, item: T) -> QueueKey:
        """Raises KeyError if the item isn't waiting."""
        return self._entries[item][0]

    def peek(self) -> T:
        """The item that `pop` would return; raises IndexError if nothing waits."""
        return self._head()[2]

    def pop(self) -> T:
        """Raises IndexError if nothing waits."""
        item = self._head()[2]
        heappop(self._heap)
        del self._entries[item]
        return item

    def _head(self) -> _Entry[T]:
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry
            heappop(heap)
        raise IndexError("the waiting queue is empty")

    def _push(self, item: T, key: QueueKey) -> None:
        self._ticks += 1
        # The tick is unique, so that comparing two entries never reaches the items.
        entry = (key, self._ticks, item)
        self._entries[item] = entry
        heappush(self._heap, entry)

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _MIN_COMPACTION:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = list(self._entries.values())
        heapify(self._heap)
