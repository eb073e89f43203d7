"""The Metrics port by scraping every pod: engine and admin `/metrics`, bounded in time, size and number."""

import asyncio
from collections.abc import Sequence

import aiohttp

from evenflow_contract.environment import ADMIN_PORT, ENGINE_PORT, METRICS_PATH
from evenflow_operator.adapters.exposition import read_page
from evenflow_operator.adapters.http import TooLarge, base_url, read_bounded, session
from evenflow_operator.adapters.series import SeriesSums
from evenflow_operator.core.snapshot import Reading
from evenflow_operator.ports import Clock, Sample, Target

CONCURRENCY = 64
TIMEOUT_SECONDS = 3.0
MAX_PAGE_BYTES = 4 * 1024 * 1024


class ScrapeMetrics:
    """One session for all pods; close it when done."""

    name = "Scrape"

    def __init__(
        self,
        clock: Clock,
        *,
        timeout: float = TIMEOUT_SECONDS,
        concurrency: int = CONCURRENCY,
        max_bytes: int = MAX_PAGE_BYTES,
        engine_port: int = ENGINE_PORT,
        admin_port: int = ADMIN_PORT,
    ) -> None:
        self._clock = clock
        self._timeout = timeout
        self._slots = asyncio.Semaphore(concurrency)
        self._max_bytes = max_bytes
        self._ports = (engine_port, admin_port)
        self._session: aiohttp.ClientSession | None = None

    async def sample(self, targets: Sequence[Target]) -> Sample:
        readings = await asyncio.gather(*(self._scrape(target) for target in targets))
        return Sample({target.uid: reading for target, reading in zip(targets, readings, strict=True)})

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _scrape(self, target: Target) -> Reading:
        sums = SeriesSums()
        async with self._slots:
            pages = (self._read(target, port, sums) for port in self._ports)
            problems = [problem for problem in await asyncio.gather(*pages) if problem]
        at = self._clock.now()
        if sums.empty:
            return Reading(at, "Scrape", problem="; ".join(problems) or "no series of an engine on /metrics")
        return Reading(at, "Scrape", sums.counters(), problem="; ".join(problems) or sums.problem())

    async def _read(self, target: Target, port: int, sums: SeriesSums) -> str | None:
        """None, or why this page could not be read."""
        where = f":{port}{METRICS_PATH}"
        if self._session is None:
            self._session = session()
        url = base_url(target.ip, port) + METRICS_PATH
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                if response.status != 200:
                    return f"{where}: HTTP {response.status}"
                body = await read_bounded(response, self._max_bytes)
        except TimeoutError:
            return f"{where}: no answer within {self._timeout:g} s"
        except TooLarge as error:
            return f"{where}: {error}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{where}: {type(error).__name__}"
        read_page(body.decode("utf-8", "replace"), sums, target.peak_window)
        return None
