"""Least outstanding requests first, counted per pod over all Services; ties go round. Pure."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from evenflow_devcluster.router.endpoints import Endpoint


class Balancer:
    """How many requests each endpoint has now, and who is next."""

    def __init__(self) -> None:
        self._outstanding: dict[Endpoint, int] = {}
        self._turn = 0

    def outstanding(self, endpoint: Endpoint) -> int:
        return self._outstanding.get(endpoint, 0)

    def choose(self, endpoints: Sequence[Endpoint], avoid: Collection[Endpoint] = ()) -> Endpoint | None:
        """The least busy endpoint outside `avoid`; of several, each in turn. None when there is none."""
        allowed = [endpoint for endpoint in endpoints if endpoint not in avoid]
        if not allowed:
            return None
        least = min(self.outstanding(endpoint) for endpoint in allowed)
        equal = [endpoint for endpoint in allowed if self.outstanding(endpoint) == least]
        self._turn += 1
        return equal[self._turn % len(equal)]

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
