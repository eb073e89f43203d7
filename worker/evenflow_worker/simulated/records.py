"""What goes into the simulated engine's core and what comes out of it. Times are engine seconds, lengths tokens."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]


class RequestTooLarge(ValueError):
    """A request that this engine could never hold, with both numbers: what it needs and what there is."""

    def __init__(self, needed_tokens: int, limit_tokens: int, limit: str) -> None:
        self.needed_tokens = needed_tokens
        self.limit_tokens = limit_tokens
        super().__init__(
            f"prompt plus max_tokens is {needed_tokens} tokens, more than the {limit_tokens} tokens of {limit}; "
            "shorten the prompt or lower max_tokens"
        )


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine. `kv_tokens` is the usable KV capacity M; `overhead_ms` is added to every step."""

    kv_tokens: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    step_time_model: str = "A100-8B"
    overhead_ms: float = 2.5

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, found {value!r}")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """`output_tokens` is where the request stops by itself; only the engine's runner knows it, never its scheduler."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    traffic_class: str
    arrival_s: float


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    request_id: str
    traffic_class: str
    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    predicted_output: float
    arrival_s: float
    admitted_s: float
    first_token_s: float
    finished_s: float
    evictions: int


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One engine iteration. Tokens and completions belong to its end, `started_s + duration_s`.

    `tokens` names the requests that produced one token each, `first_tokens` those of them whose first it was.
    `scheduled_tokens` counts prompt chunks and decodes, `prefill_tokens` the chunks alone, `recomputed_tokens` what had
    been computed before an eviction. `kv_usage_peak` is the largest share of KV in use during the step.
    """

    started_s: float
    duration_s: float
    tokens: tuple[str, ...]
    first_tokens: tuple[str, ...]
    finished: tuple[FinishedRequest, ...]
    evicted: tuple[str, ...]
    admitted_new: tuple[str, ...]
    admitted_resumed: tuple[str, ...]
    scheduled_tokens: int
    prefill_tokens: int
    recomputed_tokens: int
    kv_usage_peak: float


@dataclass(slots=True)
class EngineCounters:
    """Cumulative since the engine's start; the per-class ones are keyed by traffic class.

    `prompt_tokens` counts a prompt once, when its first prefill is done, as vLLM does.
    """

    iterations: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    recomputed_tokens: int = 0
    aborted: int = 0
    admitted_new: Counter[str] = field(default_factory=Counter)
    admitted_resumed: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    predictor_fallbacks: Counter[str] = field(default_factory=Counter)
