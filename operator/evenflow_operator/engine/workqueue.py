"""A keyed work queue: each key waits at most once, is worked on by one worker at a time, and fails with back-off.

As client-go's: a key added while it is being processed is processed once more afterwards, so no change is ever lost.
Each key has a pace of its own besides: somebody who undoes what a pass did brings the key back at once, for ever.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from evenflow_operator.ports import Clock

K = TypeVar("K", bound=Hashable)

SHORTEST_PAUSE = 0.001
"""Seconds: what is left of a pause by rounding is none."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a failed key is tried again: doubling, with full jitter over the upper half."""

    first: float = 0.1
    longest: float = 30.0

    def delay(self, failures: int, rng: random.Random) -> float:
        ceiling = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return ceiling * (0.5 + 0.5 * rng.random())


class Retry(Exception):
    """Raised by a handler that wants its key again: after `after` seconds, or after the usual back-off (None)."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(reason)


class WorkQueue(Generic[K]):
    """`rate` keys per second may start, in bursts of `burst`; one key `key_rate` and `key_burst` times. At most `bound`
    keys are held."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        *,
        backoff: Backoff = Backoff(),
        rate: float = 500.0,
        burst: float = 1000.0,
        key_rate: float = 2.0,
        key_burst: float = 60.0,
        bound: int = 100_000,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._backoff = backoff
        self._rate = rate
        self._burst = burst
        self._key_rate = key_rate
        self._key_burst = key_burst
        self._bound = bound
        self._tokens = burst
        self._refilled = clock.monotonic()
        self._rested: dict[K, float] = {}
        """When a key may start `key_burst` times at once again."""
        self._ready: deque[K] = deque()
        self._waiting: dict[K, float] = {}
        self._dirty_again: set[K] = set()
        self._active: dict[K, float] = {}
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()
        self._timer_wake = asyncio.Event()
        self.refused = 0

    def __len__(self) -> int:
        """Keys that could be worked on now."""
        return len(self._ready)

    def add(self, key: K) -> bool:
        """Have `key` worked on soon. False if the queue is full: the watchdog brings the key back."""
        if key in self._active:
            self._dirty_again.add(key)
            return True
        if key in self._waiting:
            return True
        pause = self._key_pause(key)
        if pause > SHORTEST_PAUSE:
            self.add_after(key, pause)
            return True
        if len(self._waiting) >= self._bound:
            self.refused += 1
            return False
        self._waiting[key] = self._clock.monotonic()
        self._ready.append(key)
        self._wake.set()
        return True

    def add_after(self, key: K, delay: float) -> None:
        """Have `key` worked on in `delay` seconds at the latest; an earlier date already set stays."""
        if delay <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + delay
        if self._due.get(key, due + 1.0) <= due or (key not in self._due and len(self._due) >= self._bound):
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._timer_wake.set()

    def forget(self, key: K) -> None:
        """Drop a key's failures and its later dates, because it no longer exists."""
        self._failures.pop(key, None)
        self._due.pop(key, None)
        self._rested.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def longest_active(self) -> float:
        """Seconds that the oldest pass under way has taken. Safe to call from any thread."""
        started = min(list(self._active.values()), default=None)
        return self._clock.monotonic() - started if started is not None else 0.0

    async def run(self, handle: Callable[[K, float], Awaitable[None]], *, workers: int) -> None:
        """Work until cancelled. `handle(key, waited)` gets the seconds that the key waited in the queue.

        Any exception of a handler means back-off for its key; Retry names its own delay.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._timer())
            for _ in range(workers):
                group.create_task(self._work(handle))

    async def _work(self, handle: Callable[[K, float], Awaitable[None]]) -> None:
        while True:
            key, waited = await self._take()
            try:
                await handle(key, waited)
            except Retry as retry:
                self._retry(key, retry.after)
            except Exception:
                self._retry(key, None)
            else:
                self._failures.pop(key, None)
            finally:
                self._active.pop(key, None)
                if key in self._dirty_again:
                    self._dirty_again.discard(key)
                    self.add(key)

    def _retry(self, key: K, after: float | None) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(failures, self._rng)
        self.add_after(key, delay if after is None else after)

    async def _take(self) -> tuple[K, float]:
        while True:
            while not self._ready:
                self._wake.clear()
                await self._wake.wait()
            pause = self._pause()
            if pause > 0:
                await asyncio.sleep(max(pause, 0.001))
                continue
            self._tokens -= 1.0
            key = self._ready.popleft()
            now = self._active[key] = self._clock.monotonic()
            self._rested[key] = max(now, self._rested.get(key, now)) + 1.0 / self._key_rate
            # Whatever date was set is served by this pass.
            self._due.pop(key, None)
            return key, self._clock.monotonic() - self._waiting.pop(key)

    def _key_pause(self, key: K) -> float:
        """Seconds until the key may start again."""
        rested = self._rested.get(key)
        return 0.0 if rested is None else rested - self._clock.monotonic() - (self._key_burst - 1.0) / self._key_rate

    def _pause(self) -> float:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self._rate

    async def _timer(self) -> None:
        while True:
            self._timer_wake.clear()
            pause = self._release_due()
            try:
                await asyncio.wait_for(self._timer_wake.wait(), pause)
            except TimeoutError:
                continue

    def _release_due(self) -> float | None:
        """Move what is due into the queue; seconds until the next date, None without one."""
        now = self._clock.monotonic()
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)
            elif due <= now:
                heapq.heappop(self._heap)
                del self._due[key]
                self.add(key)
            else:
                return due - now
        return None
