"""The median output of a class's recent requests with prompts of about this length."""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

from evenflow_worker.predict.protocol import Predictor

WINDOW: Final = 256
"""Completions remembered per class and bucket of prompt lengths."""
MIN_COMPLETIONS: Final = 16
"""Below this a bucket says nothing yet, and the class as a whole is asked."""
MAX_CLASSES: Final = 64


class _Recent:
    """The last WINDOW output lengths, sorted as well as in order of arrival."""

    __slots__ = ("order", "ordered")

    def __init__(self) -> None:
        self.order: deque[int] = deque()
        self.ordered: list[int] = []

    def add(self, output_tokens: int) -> None:
        if len(self.order) == WINDOW:
            oldest = self.order.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
        self.order.append(output_tokens)
        insort(self.ordered, output_tokens)

    def quantile(self, q: float) -> float | None:
        count = len(self.ordered)
        return None if count < MIN_COMPLETIONS else float(self.ordered[min(int(q * count), count - 1)])


class QuantilePredictor:
    """Learns online, per traffic class and prompt-length bucket (powers of two), and answers with a quantile.

    Until a bucket has seen MIN_COMPLETIONS requests its class answers, and before that `prior`. Both calls take a few
    microseconds; memory is bounded by MAX_CLASSES classes of at most 33 buckets each.
    """

    def __init__(self, prior: Predictor, quantile: float = 0.5) -> None:
        if not 0.0 < quantile < 1.0:
            raise ValueError(f"quantile must lie between 0 and 1, found {quantile}")
        self._prior = prior
        self._quantile = quantile
        self._buckets: dict[tuple[str, int], _Recent] = {}
        self._classes: dict[str, _Recent] = {}

    def predict(self, traffic_class: str, prompt_tokens: int) -> float:
        """See Predictor."""
        for recent in (
            self._buckets.get((traffic_class, _bucket(prompt_tokens))),
            self._classes.get(traffic_class),
        ):
            predicted = None if recent is None else recent.quantile(self._quantile)
            if predicted is not None:
                return predicted
        return self._prior.predict(traffic_class, prompt_tokens)

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """See Predictor; the prior is not told."""
        if output_tokens < 1:
            return
        recent = self._classes.get(traffic_class)
        if recent is None:
            if len(self._classes) >= MAX_CLASSES:
                return
            recent = self._classes[traffic_class] = _Recent()
        recent.add(output_tokens)
        self._buckets.setdefault((traffic_class, _bucket(prompt_tokens)), _Recent()).add(output_tokens)


def _bucket(prompt_tokens: int) -> int:
    return min(prompt_tokens.bit_length(), 32)
