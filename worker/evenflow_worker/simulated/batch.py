"""What one engine iteration has scheduled so far."""

from evenflow_worker.simulated.sequence import Sequence


class Batch:
    """Token budget left, and what was spent on what. `free_low` is the smallest number of free KV blocks seen."""

    __slots__ = (
        "admitted_new",
        "admitted_resumed",
        "budget",
        "chunks",
        "decode_context",
        "evicted",
        "free_low",
        "prefill",
        "recomputed",
        "sampled",
        "scheduled",
    )

    def __init__(self, budget: int, free_blocks: int) -> None:
        self.budget = budget
        self.free_low = free_blocks
        self.scheduled = 0
        self.prefill = 0
        self.recomputed = 0
        self.decode_context = 0
        self.chunks: list[tuple[int, int]] = []
        self.sampled: list[Sequence] = []
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

    def add_decodes(self, number: int, context: int) -> None:
        """`number` sequences decode one token each; `context` is the sum of their lengths."""
        self.budget -= number
        self.scheduled += number
        self.decode_context += context
