"""How much of KV memory, step budget and sequences a load takes from one engine.

A replica that admits a requests per iteration holds a·E[volume] KV tokens, computes a·(E[prompt] + E[output]) tokens
per iteration and runs a·E[output] sequences. An iteration then takes t(a) of the step-time model: the rate is a/t(a).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from evenflow_model.steptime import StepTimeModel

Resource = Literal["kv", "stepBudget", "sequences"]
RESOURCES: tuple[Resource, ...] = ("kv", "stepBudget", "sequences")
RESOURCE_NAMES: Mapping[Resource, str] = {
    "kv": "KV memory",
    "stepBudget": "maxNumBatchedTokens",
    "sequences": "maxNumSeqs",
}


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of each resource in use; above 1 the load can't be sustained."""

    shares: Mapping[Resource, float]

    @property
    def binding(self) -> Resource:
        return max(RESOURCES, key=lambda name: self.shares[name])

    @property
    def share(self) -> float:
        return self.shares[self.binding]


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica under a mix of requests."""

    mean_prompt: float
    mean_output: float
    mean_volume: float
    chunk_source: float
    """Prompt length that a prompt token comes from on average: E[s²]/E[s]."""
    kv_tokens: int
    step_budget: int
    max_seqs: int
    model: StepTimeModel

    def shares(self, admitted: float) -> dict[Resource, float]:
        """Of each resource, at `admitted` requests per iteration."""
        return {
            "kv": admitted * self.mean_volume / self.kv_tokens,
            "stepBudget": admitted * (self.mean_prompt + self.mean_output) / self.step_budget,
            "sequences": admitted * self.mean_output / self.max_seqs,
        }

    @property
    def most_admitted(self) -> float:
        """Requests per iteration at which the first resource is used up."""
        return 1.0 / max(self.shares(1.0).values())

    def step_ms(self, admitted: float) -> float:
        """Mean iteration time. Prompts come in chunks as large as the budget leaves room for, not in every step."""
        decoding = admitted * self.mean_output
        context = round(admitted * self.mean_volume)
        prefill = admitted * self.mean_prompt
        plain = self.model.step_ms(round(decoding), context)
        if prefill <= 0:
            return plain
        chunk = max(1.0, min(self.step_budget - decoding, max(prefill, self.chunk_source)))
        share = min(1.0, prefill / chunk)
        size = min(chunk, self.chunk_source)
        count = max(1, round(chunk / size))
        chunks = [(round(chunk / count), round((self.chunk_source - size) / 2))] * count
        return share * self.model.step_ms(round(decoding + chunk), context, chunks) + (1 - share) * plain

    def rate(self, admitted: float) -> float:
        """Requests per second."""
        return 1000.0 * admitted / self.step_ms(admitted)

    def load(self, rate: float, target: float) -> Load:
        """At `rate` requests per second."""
        return Load(self.shares(rate * counted_ms(self, target) / 1000.0))


def highest_share(target: float) -> float:
    """The least share of the binding resource, counted for this target, that an engine at its highest rate can have."""
    return target / ((1 + target) / 2)


@lru_cache(maxsize=1024)
def counted_ms(engine: Engine, target: float) -> float:
    """The iteration time that loads are counted at: that of the target load (0 to 1).

    Where iterations take longer as they fill, a part of a resource stands for a larger part of the rate; with prefill
    alone for nearly all of it. So it is never so short that the target would be nearer to the highest rate than
    halfway. Remembered, because all slots of a mix ask for the same.
    """
    most = engine.most_admitted
    return max(engine.step_ms(target * most), engine.step_ms(most) * highest_share(target))
