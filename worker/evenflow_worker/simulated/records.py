"""What one iteration of the simulated engine says to the server around it. Times are engine seconds."""

from dataclasses import dataclass

from evenflow_model.fleet.records import FinishedRequest


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
