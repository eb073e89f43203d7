"""Looks at the engines and the pool twice a second while a phase runs: for the live view, the table and the picture."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

import aiohttp

from evenflow_contract import environment, metrics
from evenflow_worker.simulated.lag_metrics import BUSY_SECONDS, LOST_SECONDS

PERIOD_SECONDS = 0.5
TIMEOUT = aiohttp.ClientTimeout(total=2.0)


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Cumulative figures of one engine since it started; seconds are engine time."""

    evictions: float = 0.0
    recomputed_tokens: float = 0.0
    completed: float = 0.0
    run_seconds: float = 0.0
    lag_seconds: float = 0.0

    def since(self, earlier: "EngineTotals") -> "EngineTotals":
        pairs = ((getattr(self, f.name), getattr(earlier, f.name)) for f in fields(self))
        return EngineTotals(*(now - before if now >= before else now for now, before in pairs))


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at all engines. `at` is seconds (wall) since the observer started; the mappings are by pod name."""

    at: float
    kv_use: Mapping[str, float] = field(default_factory=dict)
    running: Mapping[str, float] = field(default_factory=dict)
    waiting: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[str, EngineTotals] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    pod: str
    address: str


class Observer:
    """Keeps every sample. An engine that doesn't answer is missing from a sample; it is never counted as zero."""

    def __init__(self, targets: Callable[[], list[Target]], clock: Callable[[], float] = time.monotonic) -> None:
        self._targets = targets
        self._clock = clock
        self._started = clock()
        self.samples: list[Sample] = []
        self.latest_totals: dict[str, EngineTotals] = {}

    def now(self) -> float:
        return self._clock() - self._started

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            while True:
                await self.look(session)
                await asyncio.sleep(PERIOD_SECONDS)

    async def look(self, session: aiohttp.ClientSession | None = None) -> Sample:
        """Take one sample now; with no session, with one of its own."""
        if session is None:
            async with aiohttp.ClientSession(timeout=TIMEOUT) as own:
                return await self.look(own)
        targets = self._targets()
        pages = await asyncio.gather(*(_series(session, target) for target in targets))
        found = {target.pod: page for target, page in zip(targets, pages, strict=True) if page is not None}
        sample = Sample(
            at=self.now(),
            kv_use=_column(found, metrics.VLLM_KV_USAGE),
            running=_column(found, metrics.VLLM_RUNNING),
            waiting=_column(found, metrics.VLLM_WAITING),
            totals={pod: _totals(page) for pod, page in found.items()},
        )
        self.samples.append(sample)
        self.latest_totals.update(sample.totals)
        return sample


def _totals(page: Mapping[str, float]) -> EngineTotals:
    return EngineTotals(
        evictions=page.get(metrics.VLLM_PREEMPTIONS, 0.0),
        recomputed_tokens=page.get(metrics.RECOMPUTED_TOKENS, 0.0),
        completed=page.get(metrics.COMPLETED_REQUESTS, 0.0),
        run_seconds=page.get(BUSY_SECONDS, 0.0),
        lag_seconds=page.get(LOST_SECONDS, 0.0),
    )


def _column(found: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    return {pod: page[name] for pod, page in found.items() if name in page}


async def _series(session: aiohttp.ClientSession, target: Target) -> dict[str, float] | None:
    """Both pages of one engine as sums over labels; None unless both answered."""
    pages: list[str] = []
    for port in (environment.ENGINE_PORT, environment.ADMIN_PORT):
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"http://{target.address}:{port}{environment.METRICS_PATH}") as response:
                if response.status == 200:
                    pages.append(await response.text())
    if len(pages) != 2:
        return None
    return {**sums(pages[0]), **sums(pages[1])}


def sums(page: str) -> dict[str, float]:
    """Each series of a Prometheus text page, summed over its labels; NaN is left out."""
    totals: dict[str, float] = {}
    for line in page.splitlines():
        if not line or line[0] == "#":
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        with contextlib.suppress(ValueError, IndexError):
            value = float(rest.rpartition("}")[2].split()[0] if "{" in line else rest.split()[0])
            if not math.isnan(value):
                totals[name] = totals.get(name, 0.0) + value
    return totals
