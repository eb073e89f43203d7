"""The worker's scheduling code as the engines of `evenflow_model.fleet` use it, set up by a worker config."""

from collections import Counter

from evenflow_contract.names import DEFAULT_CLASS
from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.fleet.sequence import Sequence, progress, victim_volume
from evenflow_worker.predict.guarded import GuardedPredictor
from evenflow_worker.predict.protocol import Predictor
from evenflow_worker.scheduling.bucket import AdmissionBucket
from evenflow_worker.scheduling.keys import Ordering, predicted_volume
from evenflow_worker.scheduling.queue import WaitingQueue
from evenflow_worker.scheduling.victims import eviction_possible, sort_running


class EngineScheduling:
    """One engine's scheduling: see evenflow_model.fleet.scheduling.Scheduling. `configure` it before use."""

    def __init__(self, capacity_tokens: int, max_model_len: int, config: WorkerConfig, predictor: Predictor | None):
        self.bucket = AdmissionBucket(capacity_tokens)
        self.queue: WaitingQueue[Sequence] = WaitingQueue()
        self.predictor_fallbacks: Counter[str] = Counter()
        self._predictor = GuardedPredictor(predictor, self.predictor_fallbacks)
        self._max_model_len = max_model_len
        self.configure(config)

    def configure(self, config: WorkerConfig) -> None:
        """Take a config: policy, victim, aging, cap, watermark, classes and priors."""
        self.config = config
        self.ordering = Ordering.from_config(config, self._max_model_len)
        self.watermark = config.admission.watermark
        self.bucket.configure(config.admission)
        self._predictor.configure(config)
        self._classes = frozenset(config.classes)

    def class_of(self, traffic_class: str) -> str:
        """See Scheduling."""
        return traffic_class if traffic_class in self._classes else DEFAULT_CLASS

    def predict(self, traffic_class: str, prompt_tokens: int) -> float:
        """See Scheduling."""
        return self._predictor.predict(traffic_class, prompt_tokens)

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """See Scheduling."""
        self._predictor.observe(traffic_class, prompt_tokens, output_tokens)

    volume = staticmethod(predicted_volume)
    eviction_possible = staticmethod(eviction_possible)

    def sort_running(self, running: list[Sequence]) -> None:
        """See Scheduling."""
        sort_running(running, self.config.victim, volume=victim_volume, progress=progress)
