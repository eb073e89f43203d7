"""What the worker remembers of one vLLM request. It hangs on the request itself, so it can't outlive it."""

from typing import Any, Final

from evenflow_worker.scheduling.keys import LARGEST, Ordering

ATTRIBUTE: Final = "evenflow_record"


class Record:
    """`limit` is the most output tokens the request may still claim by its own max_tokens and the model's length.

    `admitted` once it ran for the first time: a later admission is never counted as new. `lost_memory` from an
    eviction until the request runs again; `highest_computed` is how far it had been computed then. `metric` is by
    `ordering`, which may be an older policy's while the request isn't in the queue.
    """

    __slots__ = (
        "admitted",
        "arrival_s",
        "cached",
        "cost",
        "evictions",
        "highest_computed",
        "last_eviction",
        "limit",
        "lost_memory",
        "metric",
        "ordering",
        "predicted",
        "prompt",
        "sequence",
        "traffic_class",
        "victim_volume",
    )

    def __init__(self, traffic_class: str, prompt: int, limit: float, arrival_s: float, sequence: int) -> None:
        self.traffic_class = traffic_class
        self.prompt = prompt
        self.limit = limit
        self.arrival_s = arrival_s
        self.sequence = sequence
        self.cached = 0
        self.predicted = 1.0
        self.metric = LARGEST
        self.ordering: Ordering | None = None
        self.cost: float | None = None
        self.victim_volume = 0.0
        self.admitted = False
        self.lost_memory = False
        self.evictions = 0
        self.last_eviction = 0
        self.highest_computed = 0

    @property
    def own_prompt(self) -> int:
        """Prompt tokens that need memory of their own: what the prefix cache holds is there already."""
        return max(self.prompt - self.cached, 0)


def record_of(request: Any) -> Record | None:
    """The request's record; None if it entered before the worker, or while a hook failed."""
    record = getattr(request, ATTRIBUTE, None)
    return record if isinstance(record, Record) else None


def victim_volume(request: Any) -> float:
    record = record_of(request)
    return 0.0 if record is None else record.victim_volume


def progress(request: Any) -> int:
    """Output tokens, those in flight under asynchronous scheduling included."""
    return int(request.num_output_tokens + request.num_output_placeholders)
