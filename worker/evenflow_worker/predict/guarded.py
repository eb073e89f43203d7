"""A predictor that can't fail: whatever a better one does, the class prior answers."""

import math
from collections import Counter

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.predict.class_prior import ClassPriorPredictor
from evenflow_worker.predict.protocol import Predictor

UNAVAILABLE = "unavailable"
"""The config names a kind of predictor that this engine doesn't have."""
ERROR = "error"
INVALID = "invalid"
"""The prediction was NaN, infinite or not positive."""


class GuardedPredictor:
    """Asks `preferred` if there is one and falls back to the class prior, counting each fallback by its reason."""

    def __init__(self, preferred: Predictor | None, fallbacks: Counter[str]) -> None:
        self._preferred = preferred
        self._fallbacks = fallbacks
        self._priors = ClassPriorPredictor()
        self._missing = False

    def configure(self, config: WorkerConfig) -> None:
        """Take new priors, classes and kind live."""
        self._priors.configure(config.class_priors, config.classes)
        self._missing = self._preferred is None and config.predictor.type != "ClassPrior"

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
        """See Predictor; never raises. The class prior learns too, to be ready as the fallback."""
        self._priors.observe(traffic_class, prompt_tokens, output_tokens)
        if self._preferred is not None:
            try:
                self._preferred.observe(traffic_class, prompt_tokens, output_tokens)
            except Exception:
                self._fallbacks[ERROR] += 1
