"""What one engine iteration has scheduled so far."""

from evenflow_model.fleet.records import FinishedRequest
from evenflow_model.fleet.sequence import Sequence


class Batch:
    """Token budget left, and what was spent on what. `free_low` is the smallest number of free KV blocks seen.

    `prefilled` are the sequences whose prefill ended. Once the iteration is over: `first` are those whose first token
    it made, `done` the completed requests, `usage_peak` the largest share of KV memory in use during it.
    """

    __slots__ = (
        "admitted_new",
        "admitted_resumed",
        "budget",
        "chunks",
        "decode_context",
        "done",
        "duration_s",
        "evicted",
        "first",
        "free_low",
        "prefill",
        "prefilled",
        "recomputed",
        "sampled",
        "scheduled",
        "started_s",
        "usage_peak",
    )

    def __init__(self, budget: int, free_blocks: int) -> None:
        self.budget = budget
        self.free_low = free_blocks
        self.started_s = 0.0
        self.duration_s = 0.0
        self.usage_peak = 0.0
        self.scheduled = 0
        self.prefill = 0
        self.recomputed = 0
        self.decode_context = 0
        self.chunks: list[tuple[int, int]] = []
        self.sampled: list[Sequence] = []
        self.prefilled: list[Sequence] = []
        self.first: list[Sequence] = []
        self.done: tuple[FinishedRequest, ...] = ()
        self.evicted: list[Sequence] = []
        self.admitted_new: list[Sequence] = []
        self.admitted_resumed: list[Sequence] = []

    def schedule(self, sequence: Sequence, end: int) -> None:
        """Compute a prefill chunk, the sequence's tokens up to `end`; it samples if those are all it has."""
        computed = sequence.computed
        new = end - computed
        self.budget -= new
        self.scheduled += new
        self.prefill += new
        self.recomputed += max(min(end, sequence.highest_computed) - computed, 0)
        self.chunks.append((new, computed))
        sequence.computed = end
        if end == sequence.length:
            self.sampled.append(sequence)
            self.prefilled.append(sequence)

    def add_decodes(self, number: int, context: int) -> None:
        """`number` sequences decode one token each; `context` is the sum of their lengths."""
        self.budget -= number
        self.scheduled += number
        self.decode_context += context
