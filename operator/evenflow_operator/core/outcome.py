"""What the policies of one pass decided, for the status to report on."""

from collections.abc import Mapping
from dataclasses import dataclass

from evenflow_operator.core.caps import CapOutcome
from evenflow_operator.core.placement.assign import Assignment
from evenflow_operator.core.plan import Command, Decision
from evenflow_operator.core.scaling.policy import Scaling
from evenflow_operator.core.services import ServicePlan
from evenflow_operator.core.slots.drains import Drains
from evenflow_operator.core.slots.refill import Refill


@dataclass(frozen=True, slots=True)
class Outcome:
    refill: Refill
    drains: Drains
    assignment: Assignment
    caps: Mapping[int, CapOutcome]
    services: ServicePlan
    scaling: Scaling | None = None
    """None without spec.autoscaling."""
    commands: tuple[Command, ...] = ()
    decisions: tuple[Decision, ...] = ()
