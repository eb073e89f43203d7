"""A whole plan: everything that is computed for one subject, before it is put into words."""

from dataclasses import dataclass

from evenflow_cli.planning.admission import GroupAdmission, group_admission
from evenflow_cli.planning.capacity import Capacity, capacity
from evenflow_cli.planning.placements import Candidate, Choice, Placements
from evenflow_cli.planning.subject import Subject


@dataclass(frozen=True, slots=True)
class PoolPlan:
    subject: Subject
    candidates: tuple[Candidate, ...]
    choice: Choice
    admissions: tuple[GroupAdmission, ...]
    capacity: Capacity

    @property
    def worst(self) -> GroupAdmission:
        """The slots with the highest severity."""
        return max(self.admissions, key=lambda one: one.group.figures.severity)


def plan_of(subject: Subject) -> PoolPlan:
    """Raises ValueError for lengths that the model can't take."""
    placements = Placements(subject)
    choice = placements.chosen()
    return PoolPlan(
        subject=subject,
        candidates=placements.candidates(),
        choice=choice,
        admissions=tuple(group_admission(subject, group) for group in choice.candidate.groups),
        capacity=capacity(subject, placements),
    )
