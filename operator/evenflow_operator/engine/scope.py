"""Which of the namespaces that the operator was given it may read.

A namespace that was deleted takes its Role along, and one watch that is refused ends all of kopf's: without this, the
pools of every other namespace would be left alone too.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection

from evenflow_operator.ports import ApiError, Cluster

EVERY_SECONDS = 60.0
LOOK_SECONDS = 5.0
"""A leader that waits longer for an answer may lose its lease meanwhile."""
AGAIN_SECONDS = 10.0
"""An API server that starts refuses for a while what it allows later."""

log = logging.getLogger(__name__)


class ScopeChanged(Exception):
    """A namespace can be read no longer, or can be now: start anew, with complete first lists of what is left."""


class Scope:
    """`namespaces` is empty in cluster-wide mode, in which there is nothing to find out."""

    def __init__(self, cluster: Cluster, namespaces: Collection[str]) -> None:
        self._cluster = cluster
        self._namespaces = tuple(namespaces)
        self._refused: frozenset[str] = frozenset()

    async def served(self) -> tuple[str, ...]:
        """The namespaces to serve; all of them when all are refused, so that the watches tell what is missing."""
        refused = await self._look()
        self._refused = refused
        if len(refused) == len(self._namespaces):
            return self._namespaces
        for name in sorted(refused):
            log.error("namespace %s can't be read: its pools are left alone; is it there, and its Role?", name)
        return tuple(name for name in self._namespaces if name not in refused)

    async def hold(self) -> None:
        """Look again for ever. Raises ScopeChanged when another answer lasts."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if await self._look() == self._refused:
                continue
            await asyncio.sleep(AGAIN_SECONDS)
            changed = sorted(await self._look() ^ self._refused)
            if changed:
                raise ScopeChanged(f"what may be read has changed: namespace {', '.join(changed)}")

    async def _look(self) -> frozenset[str]:
        """Those that are refused. No answer is neither yes nor no."""
        refused = set(self._refused)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                for name in self._namespaces:
                    try:
                        await self._cluster.list_identities("pools", name)
                        refused.discard(name)
                    except ApiError as error:
                        if error.status == 403:
                            refused.add(name)
        return frozenset(refused)
