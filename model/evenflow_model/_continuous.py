"""The congestion model with divisible requests: how much of each class is at each stage (congestion paper).

Order within an iteration: execute, arrive, evict, admit (congestion paper). Exact where shares, states, caps and
arrivals are integers or Fractions; floats work too and are faster in long runs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from evenflow_model._checks import check_int, check_real

Mass = int | Fraction | float
"""A divisible number of requests, or of KV tokens."""

State = tuple[tuple[Mass, ...], ...]
"""`state[k][j]`: requests of class k that have decoded j tokens; each holds prompt + 1 + j KV tokens."""


@dataclass(frozen=True, slots=True)
class FlowClass:
    """A class of the continuous model: its share of admissions, prompt and output in tokens."""

    share: Mass
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class FlowStep:
    """One iteration: what completed, was evicted (in all, and as (class, stage, mass)) and admitted.

    `memory_before` are the KV tokens after execution, before evictions. `state` and `waiting` are what it ends with;
    `waiting` is None where demand is unbounded.
    """

    state: State
    waiting: Mass | None
    completed: Mass
    evicted: Mass
    evictions: tuple[tuple[int, int, Mass], ...]
    admitted: Mass
    memory_before: Mass


class ContinuousModel:
    """Dynamics of one server with `kv_tokens` of KV memory under classes whose shares sum to 1.

    Raises ValueError naming the class and field.
    """

    def __init__(self, classes: Sequence[FlowClass], kv_tokens: Mass) -> None:
        check_real("kv_tokens", kv_tokens, 0.0, exclusive=True)
        if not classes:
            raise ValueError("classes must have at least one entry, found none: pass the server's classes")
        for index, entry in enumerate(classes):
            check_real(f"classes[{index}].share", entry.share, 0.0, 1.0, exclusive=True)
            check_int(f"classes[{index}].prompt", entry.prompt, 0)
            check_int(f"classes[{index}].output", entry.output, 1)
        total = math.fsum(entry.share for entry in classes)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"classes' shares must sum to 1, found {total:g}: divide each by the sum")
        self.classes = tuple(classes)
        self.kv_tokens = kv_tokens
        self._entry = sum(entry.share * (entry.prompt + 1) for entry in classes)
        self._stages = max(entry.output for entry in classes)

    def eviction_free_rate(self) -> Mass:
        """x* = M/Σ p·(l0·l + l(l+1)/2) admissions per iteration, exact for exact shares (eq. B.2)."""
        held = sum(c.share * (c.prompt * c.output + c.output * (c.output + 1) // 2) for c in self.classes)
        return _divide(self.kv_tokens, held)

    def pulse_cycle_rate(self, period: int) -> Mass:
        """T_g = M/(g·Σ_{i≥1} W_{ig-1}) completions per iteration when all admissions come every g iterations (B.3).

        Raises ValueError unless every class's output is a multiple of the period.
        """
        g = check_int("period", period, 1)
        if any(entry.output % g for entry in self.classes):
            raise ValueError(f"period must divide every output length, found {g}: pass their greatest common divisor")
        held: Mass = 0
        for entry in self.classes:
            pulses = entry.output // g
            held += entry.share * (entry.prompt * pulses + g * pulses * (pulses + 1) // 2)
        return _divide(self.kv_tokens, g * held)

    def empty(self) -> State:
        """The state without requests."""
        return tuple((0,) * entry.output for entry in self.classes)

    def fixed_point(self) -> State:
        """The state in which x* are admitted and completed in every iteration: p·x* at every stage (eq. B.2)."""
        rate = self.eviction_free_rate()
        return tuple((entry.share * rate,) * entry.output for entry in self.classes)

    def usage(self, state: State) -> Mass:
        """KV tokens that a state holds."""
        return sum(
            mass * (entry.prompt + 1 + j)
            for entry, stages in zip(self.classes, state, strict=True)
            for j, mass in enumerate(stages)
            if mass
        )

    def step(
        self,
        state: State,
        waiting: Mass | None = None,
        *,
        arriving: Mass = 0,
        cap: Mass | None = None,
        watermark: Mass = 0,
    ) -> FlowStep:
        """One iteration from a state.

        `waiting` None means unbounded demand. `cap` limits admissions per iteration (None: no limit); admission leaves
        `watermark` KV tokens free, eviction doesn't. Raises ValueError for a state of another shape, negative masses,
        or a cap, watermark or demand below 0.
        """
        self._check(state, waiting, arriving, cap, watermark)
        moved = [[0 if j == 0 else stages[j - 1] for j in range(len(stages))] for stages in state]
        completed = sum(stages[-1] for stages in state)
        queue = None if waiting is None else waiting + arriving
        before = self.usage(tuple(map(tuple, moved)))
        evictions, held = self._evict(moved, before)
        evicted = sum(mass for _, _, mass in evictions)
        if queue is not None:
            queue += evicted
        admitted: Mass = max(0, _divide(self.kv_tokens - watermark - held, self._entry))
        limits = [limit for limit in (queue, cap) if limit is not None]
        admitted = min([admitted, *limits])
        if admitted:
            for stages, entry in zip(moved, self.classes, strict=True):
                stages[0] = stages[0] + entry.share * admitted
        if queue is not None:
            queue -= admitted
        return FlowStep(tuple(map(tuple, moved)), queue, completed, evicted, tuple(evictions), admitted, before)

    def run(
        self,
        state: State,
        iterations: int,
        waiting: Mass | None = None,
        *,
        arriving: Mass = 0,
        cap: Mass | None = None,
        watermark: Mass = 0,
    ) -> Iterator[FlowStep]:
        """The steps of so many iterations, one after another; arguments as in `step`."""

        def steps() -> Iterator[FlowStep]:
            now, queue = state, waiting
            while True:
                step = self.step(now, queue, arriving=arriving, cap=cap, watermark=watermark)
                now, queue = step.state, step.waiting
                yield step

        return islice(steps(), check_int("iterations", iterations, 0))

    def _evict(self, moved: list[list[Mass]], held: Mass) -> tuple[list[tuple[int, int, Mass]], Mass]:
        """Take the least progressed first, the same fraction of every class at a stage, until memory suffices."""
        evictions: list[tuple[int, int, Mass]] = []
        for j in range(self._stages):
            excess = held - self.kv_tokens
            if excess <= 0:
                break
            here = [k for k, stages in enumerate(moved) if j < len(stages) and moved[k][j]]
            load = sum(moved[k][j] * (self.classes[k].prompt + 1 + j) for k in here)
            if not load:
                continue
            whole = load <= excess
            fraction = 1 if whole else _divide(excess, load)
            for k in here:
                mass = moved[k][j] * fraction
                evictions.append((k, j, mass))
                moved[k][j] = 0 if whole else moved[k][j] - mass
            # Exactly M, not M give or take a rounding error: the next step must not see an excess again.
            held = held - load if whole else self.kv_tokens
        return evictions, held

    def _check(self, state: State, waiting: Mass | None, arriving: Mass, cap: Mass | None, watermark: Mass) -> None:
        shape = [len(stages) for stages in state]
        if shape != [entry.output for entry in self.classes]:
            wanted = [entry.output for entry in self.classes]
            raise ValueError(f"state must have {wanted} stages per class, found {shape}: start from empty()")
        if any(mass < 0 for stages in state for mass in stages):
            raise ValueError("state must not hold negative masses: start from empty() or fixed_point()")
        for name, value in (("waiting", waiting), ("arriving", arriving), ("cap", cap), ("watermark", watermark)):
            if value is not None:
                check_real(name, value, 0.0)


def _divide(numerator: Mass, denominator: Mass) -> Mass:
    if isinstance(numerator, float) or isinstance(denominator, float):
        return float(numerator) / float(denominator)
    return Fraction(numerator) / Fraction(denominator)
