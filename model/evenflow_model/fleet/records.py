"""What goes into a simulated engine and what comes out of it. Times are engine seconds, lengths tokens."""

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
    """`output_tokens` is where the request stops by itself; only the engine's runner knows it, never its scheduler.

    `predicted_output` overrides the engine's predictor (an oracle). `prefix` names the prompt's full blocks, for
    engines with prefix caching: equal ids mean equal content up to and including that block.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    traffic_class: str
    arrival_s: float
    predicted_output: float | None = None
    prefix: tuple[int, ...] = ()


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


@dataclass(slots=True)
class EngineCounters:
    """Cumulative since the engine's start; the per-class ones are keyed by traffic class.

    `prompt_tokens` counts a prompt once, when its first prefill is done, as vLLM does. `busy_s` is the time spent in
    iterations, `kv_use_s` the integral of the share of KV memory in use over it.
    """

    iterations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    recomputed_tokens: int = 0
    aborted: int = 0
    busy_s: float = 0.0
    kv_use_s: float = 0.0
    admitted_new: Counter[str] = field(default_factory=Counter)
    admitted_resumed: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
