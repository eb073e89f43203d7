"""Against watches that fall silent: every so often a LIST is compared with the cache (docs/kubernetes.md §1.4).

What the watches haven't shown after a while is put right from a complete LIST. If they keep missing things, the
process must end.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence

from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.workqueue import WorkQueue
from evenflow_operator.ports import ApiError, Cluster, Identity, Key, Kind, Record
from evenflow_operator.telemetry import Telemetry

EVERY_SECONDS = 60.0
GRACE_SECONDS = 10.0
"""How long the cache may lag behind a LIST before that counts as a mismatch."""
MAX_MISMATCHES = 3
CATCH_UP_SECONDS = 60.0
"""How long the first lists of the watches may take: tens of thousands of objects need some of it."""
CATCH_UP_PAUSES = (0.02, 1.0)

log = logging.getLogger(__name__)


class CacheMismatch(Exception):
    """The watches miss changes again and again."""


class Watchdog:
    """`namespaces` is empty in cluster-wide mode."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        cache: Cache,
        queue: WorkQueue[Key],
        telemetry: Telemetry,
        kinds: Sequence[Kind],
        namespaces: Collection[str],
        every: float = EVERY_SECONDS,
        grace: float = GRACE_SECONDS,
        patience: float = CATCH_UP_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._queue = queue
        self._telemetry = telemetry
        self._kinds = kinds
        self._scopes: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._every = every
        self._grace = grace
        self._patience = patience
        self._in_a_row = 0
        self.kick = asyncio.Event()
        """Set to have the next check done at once, for example after the watches were restarted."""

    async def run(self) -> None:
        """Check until cancelled. Raises CacheMismatch when corrections don't last."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.kick.wait(), self._every)
            self.kick.clear()
            if not self._cache.synced:
                continue
            try:
                wrong = await self.check()
            except ApiError as error:
                log.warning("watchdog: %s", error)
                continue
            self._in_a_row = self._in_a_row + 1 if wrong else 0
            if self._in_a_row >= MAX_MISMATCHES:
                raise CacheMismatch(f"the watches missed changes in {self._in_a_row} checks in a row")
            if self._queue.refused:
                self._queue.refused = 0
                for key in self._cache.pool_keys():
                    self._queue.add(key)

    async def catch_up(self) -> None:
        """Wait until the watches have shown what a LIST of every kind shows: their first lists are complete then.

        What they don't show in time is put right from a complete LIST: one object that can't be read must not keep the
        others waiting. Raises ApiError.
        """
        for kind in self._kinds:
            mark, listed = await self._list(kind)
            waited, pause = 0.0, CATCH_UP_PAUSES[0]
            while self._cache.lags(kind, listed, mark):
                if waited >= self._patience:
                    await self._correct(kind)
                    break
                await asyncio.sleep(pause)
                waited, pause = waited + pause, min(2.0 * pause, CATCH_UP_PAUSES[1])

    async def check(self) -> int:
        """Compare every kind with the cluster and correct what lasts; the number of corrections."""
        wrong = 0
        for kind in self._kinds:
            mark, listed = await self._list(kind)
            if self._cache.lags(kind, listed, mark):
                await asyncio.sleep(self._grace)
                if self._cache.lags(kind, listed, mark):
                    wrong += await self._correct(kind)
        return wrong

    async def _list(self, kind: Kind) -> tuple[int, list[Identity]]:
        """The cache's mark before it, and what there is."""
        mark = self._cache.mark()
        listed: list[Identity] = []
        for namespace in self._scopes:
            listed += await self._cluster.list_identities(kind, namespace if kind != "nodes" else None)
        return mark, listed

    async def _correct(self, kind: Kind) -> int:
        mark = self._cache.mark()
        records: list[Record] = []
        for namespace in self._scopes:
            records += await self._cluster.list_records(kind, namespace if kind != "nodes" else None)
        corrections = self._cache.reconcile_list(kind, records, mark)
        if corrections:
            log.warning("watchdog: the watch of %s had missed %d changes; put right", kind, corrections)
            self._telemetry.corrected(kind, corrections)
        return corrections
