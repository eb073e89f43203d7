"""Observed lengths per traffic class: an exact, decayed histogram of outputs and recent prompts.

Severity and x* need exact output lengths, so there are no buckets. Weights halve every `half_life` completions of the
class, counted, not timed: a quiet class keeps what it knows.
"""

from collections import deque
from collections.abc import Iterable

from evenflow_contract.worker_state import ClassLengths, WorkerLengths

HALF_LIFE_COMPLETIONS = 2000.0
"""About 2,900 completions of effective weight: the mean volume to a few percent, and half forgotten within minutes of
busy traffic."""

MAX_DISTINCT = 4096
"""Per class. With 33 classes the document stays under the contract's 4 MB; beyond it the lightest lengths go first."""

PROMPT_WINDOW = 1024
PROMPT_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

_RESCALE_AT = 1e9


class _ClassObservations:
    """Instead of shrinking every old weight, each new one weighs more; `scale` is the weight of the newest."""

    __slots__ = ("completed", "outputs", "prompt_weight", "prompt_weighted", "prompts", "scale")

    def __init__(self) -> None:
        self.completed = 0
        self.scale = 1.0
        self.outputs: dict[int, float] = {}
        self.prompts: deque[int] = deque(maxlen=PROMPT_WINDOW)
        self.prompt_weight = 0.0
        self.prompt_weighted = 0.0

    def add(self, prompt_tokens: int, output_tokens: int, growth: float, max_distinct: int) -> None:
        self.completed += 1
        self.scale *= growth
        self.outputs[output_tokens] = self.outputs.get(output_tokens, 0.0) + self.scale
        self.prompts.append(prompt_tokens)
        self.prompt_weight += self.scale
        self.prompt_weighted += self.scale * prompt_tokens
        if len(self.outputs) > max_distinct:
            self._forget_lightest(max_distinct)
        if self.scale > _RESCALE_AT:
            self._rescale()

    def _forget_lightest(self, max_distinct: int) -> None:
        keep = max(max_distinct - max_distinct // 8, 1)
        heaviest = sorted(self.outputs.items(), key=lambda item: item[1], reverse=True)[:keep]
        self.outputs = dict(heaviest)

    def _rescale(self) -> None:
        factor = 1.0 / self.scale
        self.outputs = {tokens: weight * factor for tokens, weight in self.outputs.items() if weight * factor > 1e-4}
        self.prompt_weight *= factor
        self.prompt_weighted *= factor
        self.scale = 1.0

    def document(self) -> ClassLengths:
        ordered = sorted(self.prompts)
        last = len(ordered) - 1
        quantiles = {q: float(ordered[min(int(q * len(ordered)), last)]) for q in PROMPT_QUANTILES if ordered}
        return ClassLengths(
            completed=self.completed,
            outputs={tokens: _six_digits(weight / self.scale) for tokens, weight in self.outputs.items()},
            prompt_mean=round(self.prompt_weighted / self.prompt_weight, 3) if self.prompt_weight else 0.0,
            prompt_quantiles=quantiles,
        )


class LengthObservations:
    """Memory is bounded: `max_distinct` lengths and 1,024 prompts for each class that `retain` names."""

    def __init__(self, half_life: float = HALF_LIFE_COMPLETIONS, max_distinct: int = MAX_DISTINCT) -> None:
        if not half_life > 0 or max_distinct < 1:
            raise ValueError(f"half_life {half_life} and max_distinct {max_distinct} must be positive")
        self._growth = 2.0 ** (1.0 / half_life)
        self._max_distinct = max_distinct
        self._classes: dict[str, _ClassObservations] = {}

    def retain(self, classes: Iterable[str]) -> None:
        """Keep these classes only; a class that returns later starts anew."""
        self._classes = {name: self._classes.get(name) or _ClassObservations() for name in classes}

    def add(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """Count one completed request; a class that isn't retained is ignored."""
        observations = self._classes.get(traffic_class)
        if observations is not None:
            observations.add(prompt_tokens, output_tokens, self._growth, self._max_distinct)

    def document(self) -> WorkerLengths:
        return WorkerLengths({name: entry.document() for name, entry in self._classes.items() if entry.completed})


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
