"""A predictor that can't fail: whatever a better one does, the class prior answers."""

import math
from collections import Counter

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.predict.class_prior import ClassPriorPredictor
from evenflow_worker.predict.protocol import Predictor
from evenflow_worker.predict.quantile import QuantilePredictor

UNAVAILABLE = "unavailable"
"""The config names a kind of predictor that this engine doesn't have."""
ERROR = "error"
INVALID = "invalid"
"""The prediction was NaN, infinite or not positive."""


class GuardedPredictor:
    """Answers at once: the kind that the config names if it is one that takes microseconds, else the class prior.

    `preferred` replaces the config's choice. Each fallback to the class prior is counted by its reason. With
    `models_beside` a trained model is asked elsewhere, so that its absence here is no fallback.
    """

    def __init__(self, preferred: Predictor | None, fallbacks: Counter[str], *, models_beside: bool = False) -> None:
        self._given = preferred
        self._preferred = preferred
        self._fallbacks = fallbacks
        self._models_beside = models_beside
        self._priors = ClassPriorPredictor()
        self._quantile = QuantilePredictor(self._priors)
        self._missing = False

    def configure(self, config: WorkerConfig) -> None:
        """Take new priors, classes and kind live."""
        self._priors.configure(config.class_priors, config.classes)
        kind = config.predictor.type
        self._preferred = self._given or (self._quantile if kind == "Quantile" else None)
        self._missing = self._preferred is None and kind == "Model" and not self._models_beside

    def predict(self, traffic_class: str, prompt_tokens: int) -> float:
        """See Predictor; never raises."""
        if self._missing:
            self._fallbacks[UNAVAILABLE] += 1
        if self._preferred is not None:
            try:
                predicted = float(self._preferred.predict(traffic_class, prompt_tokens))
            except Exception:
                # Counted, not logged: at thousands of requests a second the log would be the next failure.
                self._fallbacks[ERROR] += 1
            else:
                if math.isfinite(predicted) and predicted > 0.0:
                    return predicted
                self._fallbacks[INVALID] += 1
        return self._priors.predict(traffic_class, prompt_tokens)

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """See Predictor; never raises. Prior and quantiles always learn, to be ready when they are asked."""
        self._priors.observe(traffic_class, prompt_tokens, output_tokens)
        self._quantile.observe(traffic_class, prompt_tokens, output_tokens)
        if self._given is not None:
            try:
                self._given.observe(traffic_class, prompt_tokens, output_tokens)
            except Exception:
                self._fallbacks[ERROR] += 1
