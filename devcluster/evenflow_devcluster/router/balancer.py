"""Least outstanding requests first, counted per pod over all Services. Pure.

Ties go to the first in the given order: routing then depends on the load alone, and a replay repeats as well as timing
allows. Going round in turn would make one request more or fewer shift every later choice.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from evenflow_devcluster.router.endpoints import Endpoint


class Balancer:
    """How many requests each endpoint has now, and who is next."""

    def __init__(self) -> None:
        self._outstanding: dict[Endpoint, int] = {}

    def outstanding(self, endpoint: Endpoint) -> int:
        return self._outstanding.get(endpoint, 0)

    def choose(self, endpoints: Sequence[Endpoint], avoid: Collection[Endpoint] = ()) -> Endpoint | None:
        """The least busy endpoint outside `avoid`, the first of several. None when there is none."""
        allowed = [endpoint for endpoint in endpoints if endpoint not in avoid]
        return min(allowed, key=self.outstanding, default=None)

    @contextmanager
    def holding(self, endpoint: Endpoint) -> Iterator[None]:
        """Count one request at `endpoint` while the block runs."""
        self._outstanding[endpoint] = self.outstanding(endpoint) + 1
        try:
            yield
        finally:
            left = self._outstanding[endpoint] - 1
            if left:
                self._outstanding[endpoint] = left
            else:
                del self._outstanding[endpoint]
