"""The metrics loop of every pool: samples engines at the pool's interval, then has the pool looked at.

Each pool has a task of its own and each question a deadline, so a source that hangs delays nobody else.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Mapping
from typing import Any, Literal

from evenflow_contract.metrics import PEAK_WINDOWS_SECONDS
from evenflow_operator.api.enums import EngineType, MetricsSource
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.core.snapshot import PodView
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.readings import Readings
from evenflow_operator.engine.workqueue import WorkQueue
from evenflow_operator.ports import Clock, Key, Metrics, Target, WorkerAdmin, WorkerError

DEADLINE_SECONDS = 12.0
LENGTHS_EVERY_SECONDS = 10.0
LENGTHS_INTERVALS = 4
"""An answer with lengths is by far the longest, and of them a pool takes note once a minute."""
DEFAULT_INTERVAL_SECONDS = 15.0

SourceName = Literal["Scrape", "Prometheus"]
log = logging.getLogger(__name__)


class Poller:
    """`sources` holds Scrape, and Prometheus where the operator was given one."""

    def __init__(
        self,
        *,
        cache: Cache,
        readings: Readings,
        queue: WorkQueue[Key],
        sources: Mapping[SourceName, Metrics],
        admin: WorkerAdmin,
        clock: Clock,
        rng: random.Random,
        lengths_every: float = LENGTHS_EVERY_SECONDS,
    ) -> None:
        self._cache = cache
        self._readings = readings
        self._queue = queue
        self._sources = sources
        self._admin = admin
        self._clock = clock
        self._rng = rng
        self._lengths_every = lengths_every
        self._loops: dict[Key, tuple[str, asyncio.Task[None], asyncio.Event]] = {}
        self._closed = False

    def touch(self, key: Key) -> None:
        """Something about this pool changed: start or end its loop, and don't let a new engine wait for the tick."""
        if self._closed:
            return
        record = self._cache.pool(key)
        loop = self._loops.get(key)
        if loop is not None and (record is None or record.uid != loop[0]):
            loop[1].cancel()
            del self._loops[key]
            loop = None
        if record is None or record.deleting:
            return
        if loop is None:
            wake = asyncio.Event()
            task = asyncio.create_task(self._loop(key, wake), name=f"poll {key[0]}/{key[1]}")
            self._loops[key] = record.uid, task, wake
        elif any(_askable(pod) and not self._readings.knows(key, pod.uid) for pod in self._cache.pods(key)):
            loop[2].set()

    async def close(self) -> None:
        self._closed = True
        tasks = [task for _, task, _ in self._loops.values()]
        self._loops.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loop(self, key: Key, wake: asyncio.Event) -> None:
        while True:
            started = self._clock.monotonic()
            try:
                await self.poll(key)
            except Exception:
                log.exception("pool %s/%s: sampling failed; trying again at the next interval", *key)
            interval = self._interval(key)
            # A little jitter keeps a thousand pools from sampling in step.
            pause = interval * (0.95 + 0.1 * self._rng.random()) - (self._clock.monotonic() - started)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), max(pause, 0.05))
            wake.clear()

    async def poll(self, key: Key) -> None:
        """One sample of every engine of the pool: counters, worker state and, less often, lengths."""
        record = self._cache.pool(key)
        if record is None or record.pool is None:
            return
        targets = _targets(key, record.pool, self._cache.pods(key))
        if not targets:
            return
        asked = [self._sample(key, self._source(record.pool), targets)]
        asked += [self._ask_worker(key, target) for target in targets]
        await asyncio.gather(*asked)
        self._queue.add(key)

    def _source(self, pool: LLMServingPool) -> Metrics | str:
        """The source to use, or why there is none."""
        wanted = pool.spec.metrics.source
        if wanted is MetricsSource.SCRAPE or (wanted is MetricsSource.AUTO and "Prometheus" not in self._sources):
            return self._sources["Scrape"]
        return self._sources.get("Prometheus") or (
            "metrics.source is Prometheus, but the operator was given no --prometheus-url; give one, or use Scrape"
        )

    async def _sample(self, key: Key, source: Metrics | str, targets: list[Target]) -> None:
        if isinstance(source, str):
            self._readings.put_source_problem(key, source)
            return
        try:
            sample = await asyncio.wait_for(source.sample(targets), DEADLINE_SECONDS)
        except TimeoutError:
            self._readings.put_source_problem(key, f"{source.name}: no answer within {DEADLINE_SECONDS:g} s")
            return
        self._readings.put_sample(key, sample, [target.uid for target in targets])

    async def _ask_worker(self, key: Key, target: Target) -> None:
        state = await _answer(self._admin.state(target.ip))
        if state is None:
            return
        self._readings.put_state(key, target.uid, state)
        due = max(LENGTHS_INTERVALS * self._interval(key), self._lengths_every)
        if self._readings.lengths_age(key, target.uid) >= due:
            lengths = await _answer(self._admin.lengths(target.ip))
            if lengths is not None:
                self._readings.put_lengths(key, target.uid, lengths)

    def _interval(self, key: Key) -> float:
        record = self._cache.pool(key)
        pool = record.pool if record else None
        return float(pool.spec.metrics.interval_seconds) if pool else DEFAULT_INTERVAL_SECONDS


async def _answer(question: Coroutine[Any, Any, Any]) -> Any:
    """None when the worker gave no usable answer: its last state stays for a while, then counts as unknown."""
    try:
        return await asyncio.wait_for(question, DEADLINE_SECONDS)
    except (WorkerError, TimeoutError) as error:
        log.debug("worker: %s", error)
        return None


def _askable(pod: PodView) -> bool:
    return pod.ip is not None and pod.phase == "Running"


def _targets(key: Key, pool: LLMServingPool, pods: tuple[PodView, ...]) -> list[Target]:
    window = _peak_window(pool)
    return [
        Target(pod.uid, key[0], pod.name, pod.ip, pod.created_at, window)
        for pod in pods
        if pod.ip is not None and pod.phase == "Running"
    ]


def _peak_window(pool: LLMServingPool) -> str:
    """The shortest window on the engine's clock that covers an interval of ours."""
    engine = pool.spec.engine
    scale = engine.simulated.time_scale if engine.type is EngineType.SIMULATED else 1
    needed = pool.spec.metrics.interval_seconds * scale
    return f"{next((window for window in PEAK_WINDOWS_SECONDS if window >= needed), PEAK_WINDOWS_SECONDS[-1])}s"
