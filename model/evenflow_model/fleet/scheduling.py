"""What an engine asks of the code that schedules it. The worker's scheduling package satisfies these protocols; the
model may not import it, so it is handed in."""

from collections.abc import Callable, Iterator
from typing import Protocol

from evenflow_model.fleet.sequence import Sequence

QueueKey = tuple[float, float, int]
"""(metric after aging, arrival in engine seconds, sequence number); the smallest is served first."""


class Ordering(Protocol):
    """The order of waiting requests."""

    def metric(self, prompt_tokens: float, predicted_output: float) -> float:
        """The part of the key that waiting doesn't change. `prompt_tokens` are those not cached."""
        ...

    def key(self, metric: float, arrival_s: float, sequence: int, now_s: float) -> QueueKey:
        """The key of a new request."""
        ...

    def evicted_key(self, metric: float, arrival_s: float, sequence: int, now_s: float, nth_eviction: int) -> QueueKey:
        """The key of a request that lost its memory; `nth_eviction` counts the engine's evictions."""
        ...

    def rekey_due(self, *, elapsed_s: float, iterations: int, waiting: int) -> bool:
        """Must all keys be computed again, so long after the last time? Monotone in both durations."""
        ...


class WaitingQueue(Protocol):
    """Waiting requests in the order of their keys."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    def add(self, item: Sequence, key: QueueKey) -> None: ...

    def remove(self, item: Sequence) -> None: ...

    def peek(self) -> Sequence: ...

    def pop(self) -> Sequence: ...

    def rekey_all(self, key_of: Callable[[Sequence], QueueKey]) -> None: ...


class AdmissionBucket(Protocol):
    """How many new requests an iteration may admit."""

    @property
    def limited(self) -> bool: ...

    @property
    def credit(self) -> float: ...

    def refill(self, times: int = 1) -> None:
        """Once per engine iteration, before admission; `times` iterations at once leave the same credit."""
        ...

    def refills_refused(self, volume: float) -> int:
        """How many refills in a row, from the next on, leave it refusing a request of this volume while others run."""
        ...

    def allows(self, volume: float, *, idle: bool) -> bool: ...

    def take(self, volume: float, *, idle: bool = False) -> None: ...


class Scheduling(Protocol):
    """Everything that one engine's scheduler decides by. `watermark` is the share of KV memory that admission leaves
    free; the engine is told when any of it changes."""

    @property
    def queue(self) -> WaitingQueue: ...

    @property
    def bucket(self) -> AdmissionBucket: ...

    @property
    def ordering(self) -> Ordering: ...

    @property
    def watermark(self) -> float: ...

    def class_of(self, traffic_class: str) -> str:
        """The class under which a request is served and counted."""
        ...

    def predict(self, traffic_class: str, prompt_tokens: int) -> float:
        """Predicted output tokens, positive and finite."""
        ...

    def observe(self, traffic_class: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request completed with these lengths."""
        ...

    def volume(self, prompt_tokens: float, predicted_output: float) -> float:
        """Predicted volume, by which victims are chosen."""
        ...

    def eviction_possible(self, *, free_blocks: int, running: int, token_budget: int, block_size: int) -> bool:
        """Could serving the running requests take more blocks than are free?"""
        ...

    def sort_running(self, running: list[Sequence]) -> None:
        """In place, stable, so that the victim comes last. Decoding together must not change the order."""
        ...
