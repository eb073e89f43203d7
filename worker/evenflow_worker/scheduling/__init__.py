"""Engine-independent scheduling: what the simulated engine and vLLM share."""

from evenflow_worker.scheduling.bucket import AdmissionBucket
from evenflow_worker.scheduling.keys import Ordering, QueueKey, predicted_volume
from evenflow_worker.scheduling.queue import WaitingQueue
from evenflow_worker.scheduling.victims import eviction_possible, sort_running

__all__ = [
    "AdmissionBucket",
    "Ordering",
    "QueueKey",
    "WaitingQueue",
    "eviction_possible",
    "predicted_volume",
    "sort_running",
]
