"""What the operator reports about a pool (docs/design.md §5.5). Measured figures are rounded to two digits."""

from typing import Annotated

from pydantic import Field

from evenflow_operator.api.base import ApiModel, ClassName, Items, StringMap, Timestamp, UniqueItems
from evenflow_operator.api.enums import ConditionStatus, DecisionType, SlotPhase
from evenflow_operator.api.names import (
    MAX_CLASSES,
    MAX_DECISIONS,
    MAX_KV_TOKENS,
    MAX_MICRO,
    MAX_REPLICAS,
    MAX_TOKENS,
)

MAX_GENERATION = 2**53
PER_THOUSAND_MAX = 1_000_000_000
MAX_PERCENT = 1_000_000
MAX_REASON = 128
REASON_PATTERN = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"

Reason = Annotated[str, Field(min_length=1, max_length=MAX_REASON, pattern=REASON_PATTERN)]
PodName = Annotated[str, Field(max_length=253)]


class Condition(ApiModel):
    """One aspect of the pool's state (metav1.Condition)."""

    type: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    """Name of the aspect."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: int | None = Field(None, ge=0, le=MAX_GENERATION)
    """Generation of the spec that the condition was judged for."""
    last_transition_time: Timestamp
    """When the status last changed (RFC 3339)."""
    reason: Reason
    """Why, as one word."""
    message: Annotated[str, Field(max_length=4096)]
    """Why, for people."""


class ClassStatus(ApiModel):
    """One traffic class as observed."""

    name: Annotated[str, Field(min_length=1, max_length=22)]
    """Name of the class; `default` for requests that name none."""
    prompt_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    """Declared mean prompt length (tokens)."""
    output_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    """Declared mean output length (tokens)."""
    observed_prompt_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    """Observed mean prompt length of completed requests (tokens)."""
    observed_output_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    """Observed mean output length of completed requests (tokens)."""
    replicas: int | None = Field(None, ge=0, le=MAX_REPLICAS)
    """Slots that serve the class now."""
    load_percent: int | None = Field(None, ge=0, le=MAX_PERCENT)
    """Load of the class's slots (percent of capacity)."""
    request_share_percent: int | None = Field(None, ge=0, le=100)
    """Share of the pool's requests (percent)."""


class SlotStatus(ApiModel):
    """One slot and the pod that fills it."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the slot: pool, dash, number."""
    pod: PodName | None = None
    """Pod that fills the slot; absent while none does."""
    phase: SlotPhase
    """Where the slot stands."""
    reason: Reason | None = None
    """Why it stands there, as one word."""
    message: Annotated[str, Field(max_length=1024)] | None = None
    """Why it stands there, for people."""
    revision: Annotated[str, Field(max_length=63)] | None = None
    """Revision of the pod."""
    attempts: int | None = Field(None, ge=0, le=1_000_000_000)
    """Pods made for this slot since it last was ready for long."""
    next_attempt_time: Timestamp | None = None
    """When the next pod is made, during back-off (RFC 3339)."""
    classes: Annotated[Items[ClassName], UniqueItems()] = Field(default_factory=tuple, max_length=MAX_CLASSES + 1)
    """Classes that the slot serves."""
    length_gcd: int | None = Field(None, ge=0, le=MAX_TOKENS)
    """Greatest common divisor of the slot's output lengths (tokens)."""
    severity_micro: int | None = Field(None, ge=0, le=MAX_MICRO)
    """Expected evictions per completion from synchronised lengths (millionths)."""
    usable_kv_tokens: int | None = Field(None, ge=0, le=MAX_KV_TOKENS)
    """Usable KV memory M (tokens)."""
    eviction_free_rate_micro: int | None = Field(None, ge=0, le=MAX_MICRO)
    """The eviction-free rate x* (millionths of a request per iteration)."""
    cap_micro: int | None = Field(None, ge=0, le=MAX_MICRO)
    """Admission cap wanted (millionths of a request, or of M, per iteration); absent: no cap."""
    applied_cap_micro: int | None = Field(None, ge=0, le=MAX_MICRO)
    """Admission cap that the engine reports (same unit); absent: no cap, or unknown."""
    watermark_percent: int | None = Field(None, ge=0, le=100)
    """Share of KV memory that admission leaves free (percent)."""
    config_generation: int | None = Field(None, ge=0, le=MAX_GENERATION)
    """Generation of the worker config wanted."""
    applied_generation: int | None = Field(None, ge=0, le=MAX_GENERATION)
    """Generation of the worker config that the engine reports."""
    evictions_per_thousand: int | None = Field(None, ge=0, le=PER_THOUSAND_MAX)
    """Evictions per 1000 completed requests."""
    recomputed_tokens_per_thousand: int | None = Field(None, ge=0, le=PER_THOUSAND_MAX)
    """Tokens prefilled again after evictions, per 1000 generated."""


class DecisionRecord(ApiModel):
    """One act of the operator."""

    time: Timestamp
    """When it was decided (RFC 3339)."""
    type: DecisionType
    """What kind of act."""
    reason: Reason
    """Why, as one word."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """Why, for people."""
    inputs: StringMap = Field(default_factory=dict, max_length=32)
    """Figures that the decision was taken from."""


class LLMServingPoolStatus(ApiModel):
    """What the operator last observed and did."""

    observed_generation: int | None = Field(None, ge=0, le=MAX_GENERATION)
    """Generation of the spec that this status reports on."""
    severity_micro: int | None = Field(None, ge=0, le=MAX_MICRO)
    """Largest severity of the slots (millionths of an eviction per completion)."""
    severity: Annotated[str, Field(max_length=24, pattern=r"^[0-9]+(\.[0-9]{1,6})?$")] | None = None
    """The same for people: evictions per completion as a decimal; below 0.005 is fine, above 0.05 needs action."""
    evictions_per_thousand: int | None = Field(None, ge=0, le=PER_THOUSAND_MAX)
    """Evictions per 1000 completed requests, over all slots."""
    replicas: int | None = Field(None, ge=0, le=2 * MAX_REPLICAS)
    """Pods that exist and aren't terminating."""
    ready_replicas: int | None = Field(None, ge=0, le=2 * MAX_REPLICAS)
    """Pods that are ready."""
    updated_replicas: int | None = Field(None, ge=0, le=2 * MAX_REPLICAS)
    """Pods of the current revision."""
    current_revision: Annotated[str, Field(max_length=63)] | None = None
    """Revision of the spec."""
    selector: Annotated[str, Field(max_length=512)] | None = None
    """Label selector of the pool's pods, for autoscalers and disruption budgets."""
    conditions: Annotated[Items[Condition], UniqueItems("type")] = Field(default_factory=tuple, max_length=32)
    """The pool's conditions."""
    classes: Annotated[Items[ClassStatus], UniqueItems("name")] = Field(
        default_factory=tuple, max_length=MAX_CLASSES + 1
    )
    """The traffic classes as observed."""
    slots: Annotated[Items[SlotStatus], UniqueItems("name")] = Field(default_factory=tuple, max_length=2 * MAX_REPLICAS)
    """The slots and their pods."""
    decisions: Items[DecisionRecord] = Field(default_factory=tuple, max_length=MAX_DECISIONS)
    """The last decisions, oldest first."""
