"""Sort keys of the waiting queue: SVF, one-bit SVF, SJF and FCFS, with aging (SVF paper; design §3).

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


def ordered(value: float) -> float:
    """The value if it can be a volume; NaN and negative ones count as the largest, so that keys stay total."""
    return value if value >= 0.0 else LARGEST


@dataclass(frozen=True, slots=True)
class Ordering:
    """How waiting requests are ordered.

    `aging_seconds` is T of key = metric/(1+wait/T); 0 means never. `proxies` is used by OneBitSVF only.
    """

    policy: Policy
    aging_seconds: float
    proxies: Proxies

    @staticmethod
    def from_config(config: WorkerConfig, max_model_len: int) -> "Ordering":
        """The ordering that a config asks for; without proxies in it, those of the model's limit (theory A.1)."""
        proxies = config.proxies
        if proxies is None:
            limit = worst_case_proxies(max_model_len)
            proxies = Proxies(threshold=limit.threshold, short=limit.short, long=limit.long)
        return Ordering(config.policy, config.aging_seconds, proxies)

    @property
    def ages(self) -> bool:
        """True if keys fall with waiting time, so that the queue has to be re-keyed now and then."""
        return self.aging_seconds > 0.0 and self.policy != "FCFS"

    @property
    def rekey_seconds(self) -> float:
        """How often to re-key, in engine seconds: a small part of T, so that a key is never far from its value."""
        return min(max(self.aging_seconds / 15.0, 0.25), 5.0)

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

    def aged(self, metric: float, arrival_s: float, now_s: float) -> float:
        """metric/(1+wait/T); an arrival in the future counts as no wait."""
        wait = now_s - arrival_s
        if not self.ages or not wait > 0.0:
            return metric
        return metric / (1.0 + wait / self.aging_seconds)

    def key(self, metric: float, arrival_s: float, sequence: int, now_s: float) -> QueueKey:
        """The key of one request; `sequence` makes it unique and breaks ties in order of arrival."""
        return (self.aged(metric, arrival_s, now_s), arrival_s, sequence)

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
    return prompt_tokens * predicted_output + predicted_output * (predicted_output + 1.0) / 2.0
