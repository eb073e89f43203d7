"""The class mean: the crudest predictor, and on real traffic enough for most of the gain."""

from collections.abc import Iterable, Mapping
from typing import Final

from evenflow_contract.names import DEFAULT_CLASS
from evenflow_contract.worker_config import ClassPrior

DEFAULT_OUTPUT_TOKENS: Final = 256.0
"""Used only until the first completion of an engine that was told nothing."""

_PRIOR_WEIGHT: Final = 8.0
_MEMORY: Final = 2000.0


class _Mean:
    """Mean of about the last `_MEMORY` values; a prior counts as `_PRIOR_WEIGHT` of them."""

    __slots__ = ("value", "weight")

    def __init__(self, value: float, weight: float) -> None:
        self.value = value
        self.weight = weight

    def add(self, value: float) -> None:
        self.weight = min(self.weight + 1.0, _MEMORY)
        self.value += (value - self.value) / self.weight


class ClassPriorPredictor:
    """Running mean of each class's output lengths, starting from the configured priors.

    A class without a prior and without completions gets the mean over all classes. Memory is bounded by the number of
    configured classes.
    """

    def __init__(self, priors: Mapping[str, ClassPrior] | None = None, classes: Iterable[str] = ()) -> None:
        self._means: dict[str, _Mean] = {}
        self._priors: dict[str, ClassPrior] = {}
        self._all = _Mean(DEFAULT_OUTPUT_TOKENS, 0.0)
        self._known: frozenset[str] = frozenset()
        self.configure(priors or {}, classes)

    def configure(self, priors: Mapping[str, ClassPrior], classes: Iterable[str]) -> None:
        """Take new priors and classes live. What was learnt of a class that stays is kept."""
        self._priors = {name: prior for name, prior in priors.items() if prior.output_tokens > 0}
        self._known = frozenset(classes) | frozenset(self._priors) | {DEFAULT_CLASS}
        self._means = {name: mean for name, mean in self._means.items() if name in self._known}

    def predict(self, traffic_class: str, prompt_tokens: int) -> float:
        """See Predictor."""
        mean = self._means.get(traffic_class)
        if mean is not None:
            return mean.value
        prior = self._priors.get(traffic_class)
        return self._all.value if prior is None else prior.output_tokens

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """See Predictor."""
        if output_tokens < 1:
            return
        self._all.add(float(output_tokens))
        if traffic_class not in self._known:
            return
        mean = self._means.get(traffic_class)
        if mean is None:
            prior = self._priors.get(traffic_class)
            mean = _Mean(0.0, 0.0) if prior is None else _Mean(prior.output_tokens, _PRIOR_WEIGHT)
            self._means[traffic_class] = mean
        mean.add(float(output_tokens))
