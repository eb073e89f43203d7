"""The worker's scheduling code for simulated pools, with what only a comparison needs."""

from dataclasses import dataclass

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.control.classes import exported_classes
from evenflow_worker.control.lengths import LengthObservations
from evenflow_worker.scheduling.keys import Ordering, ordered
from evenflow_worker.simulated.scheduling import EngineScheduling


@dataclass(frozen=True, slots=True)
class PromptVolume(Ordering):
    """Orders by prompt tokens times predicted output: what a gateway without KV arithmetic could do."""

    def metric(self, prompt_tokens: float, predicted_output: float) -> float:
        """See Ordering."""
        return ordered(prompt_tokens * predicted_output)


class PoolScheduling(EngineScheduling):
    """Observes lengths for the operator, as the worker's server does; orders by prompt volume where asked to."""

    def __init__(
        self, capacity_tokens: int, max_model_len: int, config: WorkerConfig, *, prompt_only: bool = False
    ) -> None:
        self.lengths = LengthObservations()
        self._prompt_only = prompt_only
        super().__init__(capacity_tokens, max_model_len, config, None)

    def configure(self, config: WorkerConfig) -> None:
        """See EngineScheduling."""
        super().configure(config)
        self.lengths.retain(exported_classes(config))
        if self._prompt_only:
            base = self.ordering
            self.ordering = PromptVolume(base.policy, base.aging_rate, base.proxies)

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """See EngineScheduling."""
        super().observe(traffic_class, prompt_tokens, output_tokens)
        self.lengths.add(traffic_class, prompt_tokens, output_tokens)
