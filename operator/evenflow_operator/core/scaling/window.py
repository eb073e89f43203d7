"""The stabilisation window: replicas are taken away only when nothing within it called for more."""

from collections.abc import Sequence

Recommended = tuple[tuple[float, int], ...]


def noted(before: Sequence[tuple[float, int]], now: float, replicas: int, window: float) -> Recommended:
    """With this one added; those that can't be the highest again, or are older than the window, go."""
    kept = [(at, count) for at, count in before if now - window <= at <= now and count > replicas]
    return (*kept, (now, replicas))


def highest(recommended: Sequence[tuple[float, int]], since: float) -> int:
    """The highest from `since` on; 0 without any."""
    return max((count for at, count in recommended if at >= since), default=0)
