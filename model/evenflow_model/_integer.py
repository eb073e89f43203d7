"""The congestion model with whole requests: one server, saturated or open, caps and watermark (docs/theory.md §3).

Order within an iteration: execute, arrive, evict, admit. A request holds prompt + 1 KV tokens from its admission on,
one more after each iteration, and leaves in the iteration after its last token. Evicted requests start again from zero.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evenflow_model._checks import check_int, check_real
from evenflow_model.lengths import IntArray

CapMode = Literal["credit", "floor"]


@dataclass(frozen=True, slots=True, eq=False)
class FlowTrace:
    """Per iteration: requests admitted, completed, evicted and left waiting, prompt tokens prefilled, KV tokens held.

    `memory_before` are the KV tokens after execution, before evictions; `memory` those at the end. `finish[i]` is the
    iteration in which request i completed, -1 where it didn't.
    """

    admitted: IntArray
    completed: IntArray
    evicted: IntArray
    prefilled: IntArray
    memory_before: IntArray
    memory: IntArray
    waiting: IntArray
    finish: IntArray

    def seconds(self, step_s: float, kv_token_s: float, prefill_token_s: float) -> NDArray[np.float64]:
        """Duration of every iteration: step_s + kv_token_s·KV tokens held + prefill_token_s·tokens prefilled (E.3)."""
        return step_s + kv_token_s * self.memory + prefill_token_s * self.prefilled


_COLUMNS = ("admitted", "completed", "evicted", "prefilled", "memory_before", "memory", "waiting")


@dataclass(frozen=True, slots=True)
class Actuators:
    """What limits admission: at most `cap` per iteration (None: no limit) and `watermark` KV tokens left free.

    A fractional cap admits its whole part in mode "floor", and collects the rest as credit, up to one cap + 1, in mode
    "credit". An empty server ignores the watermark. Raises ValueError naming the field; in mode "floor" a cap below 1
    would admit nothing.
    """

    cap: float | None = None
    mode: CapMode = "credit"
    watermark: int = 0

    def __post_init__(self) -> None:
        check_int("watermark", self.watermark, 0)
        if self.mode not in ("credit", "floor"):
            raise ValueError(f"mode must be credit or floor, found {self.mode!r}: choose one of them")
        if self.cap is not None:
            check_real("cap", self.cap, 0.0, exclusive=True)
            if self.mode == "floor" and self.cap < 1.0:
                raise ValueError(f"cap must be at least 1 in mode floor, found {self.cap:g}: use mode credit")


GREEDY = Actuators()
"""Admit whatever fits."""


class IntegerEngine:
    """One server, iteration by iteration; requests may be submitted at any time, actuators changed in between.

    Admission is by arrival with the head blocking: the head enters while memory + prompt + 1 ≤ M - watermark. The
    latest admitted is evicted first, to the front of the queue. Each request costs O(1) per admission, whatever its
    length. Raises ValueError unless kv_tokens is an integer ≥ 1.
    """

    def __init__(self, kv_tokens: int, actuators: Actuators = GREEDY) -> None:
        self.kv_tokens = check_int("kv_tokens", kv_tokens, 1)
        self.actuators = actuators
        self.iteration = 0
        self.memory = 0
        self.running = 0
        self.completed: list[int] = []
        """Requests completed in the last iteration, by the number that submit gave them."""
        self._prompt: list[int] = []
        self._output: list[int] = []
        self._since: list[int] = []
        self._queue: deque[int] = deque()
        self._order: list[int] = []
        self._ends: dict[int, list[int]] = {}
        self._credit = 0.0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def submit(self, prompt: int, output: int) -> int:
        """Queue a request and return its number. Raises ValueError for one that can never fit, naming both numbers."""
        s, o = check_int("prompt", prompt, 0), check_int("output", output, 1)
        if s + o > self.kv_tokens:
            raise ValueError(
                f"the request needs {s + o} KV tokens in its last iteration, kv_tokens is {self.kv_tokens}: "
                "it would be evicted forever; refuse it or give the engine more memory"
            )
        self._prompt.append(s)
        self._output.append(o)
        self._since.append(-1)
        self._queue.append(len(self._prompt) - 1)
        return len(self._prompt) - 1

    def execute(self) -> int:
        """First half of an iteration: running requests decode a token, finished ones leave. Returns KV tokens held."""
        done = [i for i in self._ends.pop(self.iteration, ()) if self._since[i] == self.iteration - self._output[i]]
        self.memory += self.running - len(done)
        self.running -= len(done)
        for i in done:
            self.memory -= self._prompt[i] + self._output[i]
            self._since[i] = -1
        self.completed = done
        return self.memory

    def admit(self) -> tuple[int, int, int]:
        """Second half, after arrivals: evict, then admit. Returns requests evicted, admitted, tokens prefilled."""
        evicted = self._evict()
        allowed = self._allowance()
        limit = self.kv_tokens - self.actuators.watermark
        admitted = prefilled = 0
        queue, now = self._queue, self.iteration
        while queue and admitted < allowed:
            i = queue[0]
            needed = self._prompt[i] + 1
            if self.memory + needed > (limit if self.running else self.kv_tokens):
                break
            queue.popleft()
            self.memory += needed
            self.running += 1
            self._since[i] = now
            self._order.append(i)
            self._ends.setdefault(now + self._output[i], []).append(i)
            admitted += 1
            prefilled += self._prompt[i]
        if self.actuators.cap is not None:
            self._credit -= admitted
        self.iteration += 1
        return evicted, admitted, prefilled

    def _evict(self) -> int:
        evicted = 0
        order, since = self._order, self._since
        while self.memory > self.kv_tokens:
            i = order.pop()
            if since[i] < 0:
                continue
            # A request admitted at k holds prompt + 1 + (now - k) tokens after the execution of iteration now.
            self.memory -= self._prompt[i] + 1 + self.iteration - since[i]
            since[i] = -1
            self.running -= 1
            self._queue.appendleft(i)
            evicted += 1
        # Completed requests stay in the list until they surface here; drop them before they are many.
        if len(order) > 2 * self.running + 64:
            self._order = [i for i in order if since[i] >= 0]
        return evicted

    def _allowance(self) -> float:
        cap = self.actuators.cap
        if cap is None:
            return math.inf
        if self.actuators.mode == "floor":
            self._credit = 0.0
            return math.floor(cap)
        self._credit = min(self._credit + cap, cap + 1.0)
        return math.floor(self._credit)


def simulate(
    requests: Sequence[tuple[int, int]],
    kv_tokens: int,
    iterations: int | None = None,
    *,
    arrivals: Sequence[int] | None = None,
    actuators: Actuators = GREEDY,
) -> FlowTrace:
    """Run requests, (prompt, output) in order of arrival, through an IntegerEngine.

    `arrivals` are iterations, ascending; None queues everything at 0. It ends after `iterations`, or, where None, when
    all have completed. Raises ValueError naming the request that can't be served or the arrival out of order.
    """
    engine = IntegerEngine(kv_tokens, actuators)
    limit = None if iterations is None else check_int("iterations", iterations, 0)
    when = _check_arrivals(arrivals, len(requests))
    for index, (prompt, output) in enumerate(requests):
        if prompt + output > kv_tokens:
            raise ValueError(
                f"requests[{index}] needs {prompt + output} KV tokens in its last iteration, kv_tokens is {kv_tokens}: "
                "refuse it or give the engine more memory"
            )
    finish = np.full(len(requests), -1, dtype=np.int64)
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    coming = left = 0
    while (left < len(requests)) if limit is None else (engine.iteration < limit):
        now = engine.iteration
        before = engine.execute()
        for index in engine.completed:
            finish[index] = now
        left += len(engine.completed)
        while coming < len(requests) and when[coming] <= now:
            engine.submit(*requests[coming])
            coming += 1
        evicted, admitted, prefilled = engine.admit()
        rows.append((admitted, len(engine.completed), evicted, prefilled, before, engine.memory, engine.waiting))
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    columns = {name: table[:, at].copy() for at, name in enumerate(_COLUMNS)}
    return FlowTrace(**columns, finish=finish)


def smooth_order(shares: Sequence[float], count: int) -> IntArray:
    """Class of each of `count` requests, as evenly spread as the shares allow (smooth weighted round-robin).

    Raises ValueError unless all shares are > 0.
    """
    weights = [check_real(f"shares[{k}]", share, 0.0, exclusive=True) for k, share in enumerate(shares)]
    total = math.fsum(weights)
    current = [0.0] * len(weights)
    order = np.empty(check_int("count", count, 0), dtype=np.int64)
    for position in range(len(order)):
        for k, weight in enumerate(weights):
            current[k] += weight
        chosen = max(range(len(weights)), key=current.__getitem__)
        current[chosen] -= total
        order[position] = chosen
    return order


def _check_arrivals(arrivals: Sequence[int] | None, count: int) -> Sequence[int]:
    if arrivals is None:
        return [0] * count
    if len(arrivals) != count:
        raise ValueError(f"arrivals must have one entry per request, found {len(arrivals)} for {count}: add the rest")
    for index in range(1, count):
        if arrivals[index] < arrivals[index - 1]:
            raise ValueError(
                f"arrivals[{index}] is {arrivals[index]}, before the one in front of it ({arrivals[index - 1]}): "
                "sort the requests by arrival"
            )
    return arrivals
