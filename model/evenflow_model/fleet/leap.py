"""A run of iterations in which every running request decodes one token and nothing else happens.

Block growth and duration of any number of such iterations have closed forms, so that they need not be made one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from evenflow_model.fleet.kv import BlockPool
from evenflow_model.fleet.sequence import Sequence
from evenflow_model.steptime import StepTimeModel


@dataclass(frozen=True, slots=True)
class Leap:
    """`steps` iterations. Step times are linear in the context, so that they form an arithmetic series in ms."""

    steps: int
    first_ms: float
    growth_ms: float
    block_size: int

    def seconds(self, steps: int) -> float:
        """Duration of the first `steps` iterations."""
        return (self.first_ms + self.growth_ms * (steps - 1) / 2.0) * steps / 1000.0

    def steps_started_before(self, seconds: float) -> int:
        """How many of the iterations start earlier than so many seconds from now."""
        if seconds <= 0.0:
            return 0
        if self.seconds(self.steps - 1) < seconds:
            return self.steps
        return 1 + _largest(self.steps - 2, lambda steps: self.seconds(steps) < seconds)

    def before(self, due: Callable[[int, float], bool]) -> "Leap | None":
        """The part of the leap whose every iteration starts while `due(steps and seconds from now)` is false.

        `due` must be monotone. None if it is true at once.
        """
        if not due(self.steps - 1, self.seconds(self.steps - 1)):
            return self
        if due(0, 0.0):
            return None
        last = _largest(self.steps - 2, lambda steps: not due(steps, self.seconds(steps)))
        return replace(self, steps=last + 1)

    def blocks(self, running: list[Sequence], steps: int) -> int:
        """KV blocks that the running requests take in the first `steps` iterations."""
        return _blocks(running, steps, self.block_size)


def leap_of(running: list[Sequence], limit: int, pool: BlockPool, step_time: StepTimeModel) -> Leap | None:
    """The longest leap of at most `limit` iterations that the free memory allows; None if that is less than one."""
    size, count = pool.block_size, len(running)
    if limit > 0 and count * (limit // size + 1) > pool.free and _blocks(running, limit, size) > pool.free:
        limit = _largest(limit - 1, lambda steps: _blocks(running, steps, size) <= pool.free)
    if limit < 1:
        return None
    context = sum([sequence.length for sequence in running])
    first = step_time.step_ms(count, context)
    growth = (step_time.step_ms(count, context + count * limit) - first) / limit
    return Leap(limit, first, growth, size)


def _blocks(running: list[Sequence], steps: int, size: int) -> int:
    # A request whose next token opens a block has computed == capacity; others have room for the difference.
    return sum(
        [
            -((sequence.capacity - sequence.computed - steps) // size)
            for sequence in running
            if sequence.computed + steps > sequence.capacity
        ]
    )


def _largest(high: int, holds: Callable[[int], bool]) -> int:
    """The largest number in 0…high for which `holds` is true, monotone and taken to be true for 0."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
