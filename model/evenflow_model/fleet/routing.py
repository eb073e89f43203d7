"""Which engine a request goes to. Routers see what a gateway could: requests sent and answered, predicted lengths."""

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol


class Load:
    """What one engine has been given and has not finished: requests, predicted tokens and volume."""

    __slots__ = ("index", "requests", "tokens", "volume")

    def __init__(self, index: int) -> None:
        self.index = index
        self.requests = 0
        self.tokens = 0.0
        self.volume = 0.0

    def add(self, prompt_tokens: int, predicted_output: float, sign: int = 1) -> None:
        """One request more, or, with sign -1, less."""
        self.requests += sign
        self.tokens += sign * (prompt_tokens + predicted_output)
        self.volume += sign * predicted_output * (prompt_tokens + (predicted_output + 1.0) / 2.0)


class Router(Protocol):
    """Chooses among the engines that serve a request's class; there is at least one."""

    def choose(self, candidates: Sequence[Load]) -> Load: ...


class LeastRouter:
    """The engine with the least of something; ties are broken at random, as by many gateways at once."""

    def __init__(self, measure: Callable[[Load], float], seed: int) -> None:
        self._measure = measure
        self._random = random.Random(seed)

    def choose(self, candidates: Sequence[Load]) -> Load:
        """See Router."""
        measured = [self._measure(load) for load in candidates]
        least = min(measured)
        ties = [load for load, value in zip(candidates, measured, strict=True) if value == least]
        return ties[0] if len(ties) == 1 else self._random.choice(ties)


class RoundRobinRouter:
    """One after another, counted for each set of engines by itself, as the Services of several classes do."""

    def __init__(self) -> None:
        self._turns: dict[tuple[int, ...], int] = {}

    def choose(self, candidates: Sequence[Load]) -> Load:
        """See Router."""
        key = tuple(load.index for load in candidates)
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        return candidates[turn % len(candidates)]


class RandomRouter:
    """Any of them: what a plain Kubernetes Service does for each connection."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, candidates: Sequence[Load]) -> Load:
        """See Router."""
        return self._random.choice(candidates)


ROUTERS: Final[dict[str, Callable[[int], Router]]] = {
    "least-outstanding": lambda seed: LeastRouter(lambda load: load.requests, seed),
    "least-volume": lambda seed: LeastRouter(lambda load: load.volume, seed),
    "least-tokens": lambda seed: LeastRouter(lambda load: load.tokens, seed),
    "round-robin": lambda seed: RoundRobinRouter(),
    "random": RandomRouter,
}
"""By name, made from a seed."""


def router(name: str, seed: int) -> Router:
    """The named router. Raises ValueError for an unknown name."""
    if name not in ROUTERS:
        raise ValueError(f"routing must be one of {', '.join(ROUTERS)}, found {name!r}: choose one of them")
    return ROUTERS[name](seed)
