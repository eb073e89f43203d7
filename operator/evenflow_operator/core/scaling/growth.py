"""Which further slots would relieve a group that calls for more, given the classes that placement would give them.

A Service spreads a class evenly over its slots: a slot relieves every group that it shares a class with, and no other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from evenflow_operator.core.scaling.load import GroupLoad, PoolLoad, SlotUse

SETTLED_FROM = 0.9
"""A slot that was in service for this part of the window has shown in the figures of the other groups."""

Joining = Callable[[int], Sequence[frozenset[str]]]
"""Classes of so many further slots, in the order in which they would come."""


@dataclass(frozen=True, slots=True)
class Growth:
    slots: int
    """Further slots, up to the last that relieves a group; those before it come whether they do or not."""
    stuck: GroupLoad | None
    """A group that calls for more, when none within reach would relieve any."""


def growth(load: PoolLoad, target: float, coming: Iterable[frozenset[str]], joining: Joining, reach: int) -> Growth:
    """`coming`: classes of slots that don't show in the figures yet; `reach`: most further slots of one step."""
    missing = {group.classes: group.more(target) - len(group.slots) for group in load.groups}
    for classes in coming:
        # Its own group counts it already.
        _relieve(missing, classes, [key for key in missing if key != classes])
    if reach <= 0 or max(missing.values()) <= 0:
        return Growth(0, None)
    useful = 0
    for number, classes in enumerate(joining(reach), 1):
        if _relieve(missing, classes, missing):
            useful = number
    short = max(load.groups, key=lambda group: missing[group.classes])
    return Growth(useful, short if useful == 0 else None)


def on_their_way(slots: Iterable[SlotUse]) -> list[frozenset[str]]:
    """Classes of each slot that hasn't taken its share of the load for a whole window yet."""
    return [
        one.classes for one in slots if not one.serving or (one.usage is not None and one.usage.present < SETTLED_FROM)
    ]


def _relieve(missing: dict[frozenset[str], int], classes: frozenset[str], groups: Iterable[frozenset[str]]) -> bool:
    """Takes one slot from what the shortest of these groups misses, if the classes are any of its own."""
    helped = [key for key in groups if missing[key] > 0 and (key == classes or key & classes)]
    if helped:
        missing[max(helped, key=lambda key: missing[key])] -= 1
    return bool(helped)
