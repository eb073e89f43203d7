"""Advice, and the words that several kinds of it share."""

from dataclasses import dataclass
from typing import Literal

from evenflow_cli.planning.plan import PoolPlan
from evenflow_operator.core.scaling.engine import RESOURCE_NAMES

Topic = Literal["memory", "placement", "admission", "watermark", "trims", "replicas"]


@dataclass(frozen=True, slots=True)
class Advice:
    """`act`: something should be changed in the pool or around it; otherwise it is well as it is."""

    topic: Topic
    act: bool
    text: str


def kv_binds(plan: PoolPlan) -> bool:
    """Whether KV memory is what a full replica runs out of first; otherwise waves do no harm."""
    return plan.capacity.full.binding == "kv"


def memory_free(plan: PoolPlan) -> str:
    """Why waves do no harm."""
    full = plan.capacity.full
    return f"KV memory doesn't bind, {full.shares['kv']:.0%} is in use when {RESOURCE_NAMES[full.binding]} is reached"


def per_minute(rate: float) -> str:
    """A rate in requests per second as requests per minute."""
    return f"{60 * rate:,.0f}" if rate > 5 else f"{60 * rate:.3g}"
