"""Sort keys of the waiting queue: SVF, one-bit SVF, SJF and FCFS, with aging (docs/theory.md §1, §2).

Keys are immutable, totally ordered tuples: a heap of them can't be corrupted by a request whose numbers change.
"""

import math
from dataclasses import dataclass
from typing import Final

from evenflow_contract.worker_config import Policy, Proxies, WorkerConfig
from evenflow_model.volume import worst_case_proxies

QueueKey = tuple[float, float, int]
"""(metric after aging, arrival in engine seconds, sequence number); the smallest is served first."""

LARGEST: Final = math.inf
FRONT: Final = -1.0
"""Metric of requests that go ahead of every other, as vLLM's FCFS queue does with preempted ones."""
HOLDING: Final = -2.0
"""Metric of requests that hold memory while they wait. One that doesn't fit beside them may wait for it for ever."""


def ordered(value: float) -> float:
    """The value if it can be a volume; NaN and negative ones count as the largest, so that keys stay total."""
    return value if value >= 0.0 else LARGEST


@dataclass(frozen=True, slots=True)
class Ordering:
    """How waiting requests are ordered.

    `aging_rate` is 1/T of key = metric/(1+wait/T), per engine second; 0 means never. `proxies` is OneBitSVF's.
    """

    policy: Policy
    aging_rate: float
    proxies: Proxies

    @staticmethod
    def from_config(config: WorkerConfig, max_model_len: int) -> "Ordering":
        """The ordering that a config asks for; without proxies in it, those of the model's limit (SVF paper)."""
        proxies = config.proxies
        if proxies is None:
            limit = worst_case_proxies(max_model_len)
            proxies = Proxies(threshold=limit.threshold, short=limit.short, long=limit.long)
        ages = config.aging_seconds > 0.0 and config.policy != "FCFS"
        return Ordering(config.policy, 1.0 / config.aging_seconds if ages else 0.0, proxies)

    def rekey_due(self, *, elapsed_s: float, iterations: int, waiting: int) -> bool:
        """Is it time to re-key the queue? `elapsed_s` and `iterations` since the last time.

        Every T/15 (at most 5 s, at least 0.25 s), so that no key is far from its value, but for long queues only as
        often as keeps the cost at about 32 re-keys an iteration.
        """
        if not self.aging_rate:
            return False
        return elapsed_s >= min(max(1.0 / (15.0 * self.aging_rate), 0.25), 5.0) and 32 * iterations >= waiting

    def metric(self, prompt_tokens: float, predicted_output: float) -> float:
        """The part of the key that waiting doesn't change.

        Volume in token-iterations (SVF, OneBitSVF), tokens (SJF) or 0 (FCFS). `prompt_tokens` are those not cached.
        """
        if self.policy == "FCFS":
            return 0.0
        if self.policy == "SJF":
            return ordered(predicted_output)
        output = predicted_output
        if self.policy == "OneBitSVF":
            output = self.proxies.short if predicted_output <= self.proxies.threshold else self.proxies.long
        return predicted_volume(prompt_tokens, output)

    def key(self, metric: float, arrival_s: float, sequence: int, now_s: float) -> QueueKey:
        """The key of one request: metric/(1+wait/T), then arrival; `sequence` makes it unique.

        `metric` comes from the method of that name and is never NaN; an arrival in the future counts as no wait.
        """
        wait = now_s - arrival_s
        aged = metric / (1.0 + wait * self.aging_rate) if wait > 0.0 else metric
        return (aged, arrival_s, sequence)

    def evicted_key(self, metric: float, arrival_s: float, sequence: int, now_s: float, nth_eviction: int) -> QueueKey:
        """The key of a request that lost its memory: re-keyed like any other, except under FCFS.

        There it goes to the front, ahead of those evicted before it (`nth_eviction` counts the engine's evictions).
        """
        if self.policy == "FCFS":
            return (FRONT, float(-nth_eviction), sequence)
        return self.key(metric, arrival_s, sequence, now_s)


def predicted_volume(prompt_tokens: float, predicted_output: float) -> float:
    """s·O + O(O+1)/2 in token-iterations for a prediction that nobody has checked: NaN or negative is the largest."""
    if not (prompt_tokens >= 0.0 and predicted_output >= 0.0):
        return LARGEST
    return ordered(prompt_tokens * predicted_output + predicted_output * (predicted_output + 1.0) / 2.0)
