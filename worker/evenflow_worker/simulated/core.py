"""The simulated engine's core: the model's engine under the worker's scheduling code and a worker config."""

from collections import Counter

from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.kv import BlockPool
from evenflow_model.fleet.prefix import PrefixCache
from evenflow_model.fleet.records import EngineSpec
from evenflow_model.fleet.sequence import Sequence
from evenflow_worker.predict.protocol import Predictor
from evenflow_worker.simulated.records import StepOutcome
from evenflow_worker.simulated.scheduling import EngineScheduling


class EngineCore(Engine):
    """One engine. Not thread-safe; call `step` only while `has_work` is true."""

    def __init__(
        self,
        spec: EngineSpec,
        config: WorkerConfig,
        *,
        predictor: Predictor | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        capacity = BlockPool.of_tokens(spec.kv_tokens, spec.block_size).capacity_tokens
        self._settings = EngineScheduling(capacity, spec.max_model_len, config, predictor)
        super().__init__(spec, self._settings, prefix_cache=prefix_cache)

    def apply(self, config: WorkerConfig) -> None:
        """Take a config live: policy, victim, aging, cap, watermark, classes and priors. The queue is re-keyed."""
        self._settings.configure(config)
        self.rescheduled()

    def step(self) -> StepOutcome:
        """One engine iteration, told token by token; `now` advances by its duration."""
        batch = self.iterate()
        return StepOutcome(
            started_s=batch.started_s,
            duration_s=batch.duration_s,
            tokens=_ids(batch.sampled),
            first_tokens=_ids(batch.first),
            finished=batch.done,
            evicted=_ids(batch.evicted),
            admitted_new=_ids(batch.admitted_new),
            admitted_resumed=_ids(batch.admitted_resumed),
            scheduled_tokens=batch.scheduled,
            prefill_tokens=batch.prefill,
            recomputed_tokens=batch.recomputed,
            kv_usage_peak=batch.usage_peak,
        )

    @property
    def config(self) -> WorkerConfig:
        return self._settings.config

    @property
    def predictor_fallbacks(self) -> Counter[str]:
        """Predictions that the class prior had to make instead of a better predictor, by reason."""
        return self._settings.predictor_fallbacks


def _ids(sequences: list[Sequence]) -> tuple[str, ...]:
    return tuple([sequence.request_id for sequence in sequences])
