"""Weights of token lengths in a tenth of a dict's memory: an operator keeps some of every class of every engine."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, ValuesView


class LengthWeights(Mapping[int, float]):
    """Ordered by length; never changed. Lengths are tokens from 0 to 2^32 - 1. Raises OverflowError for others."""

    __slots__ = ("_lengths", "_weights")

    def __init__(self, weights: Mapping[int, float]) -> None:
        ordered = sorted(weights.items())
        self._lengths = array("I", [length for length, _ in ordered])
        self._weights = array("d", [weight for _, weight in ordered])

    def __getitem__(self, length: int) -> float:
        place = bisect_left(self._lengths, length)
        if place == len(self._lengths) or self._lengths[place] != length:
            raise KeyError(length)
        return self._weights[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._lengths)

    def __len__(self) -> int:
        return len(self._lengths)

    def __repr__(self) -> str:
        return f"LengthWeights({dict(self)!r})"

    def values(self) -> ValuesView[float]:
        return _Weights(self)


class _Weights(ValuesView[float]):
    """In one go, not by a search per length."""

    _mapping: LengthWeights

    def __iter__(self) -> Iterator[float]:
        return iter(self._mapping._weights)
