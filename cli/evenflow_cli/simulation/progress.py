"""How far a simulation is, where there is no terminal to draw a bar on."""

from collections.abc import Callable

LINE_SECONDS = 10.0


class PlainProgress:
    """Says every `LINE_SECONDS` how many requests of all candidates together are simulated; `clock` in seconds."""

    def __init__(self, candidates: int, requests: int, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._done = [0] * candidates
        self._total = candidates * requests
        self._say = say
        self._clock = clock
        self._start = self._said = clock()

    def update(self, number: int, done: int) -> None:
        self._done[number] = done
        now = self._clock()
        if now - self._said >= LINE_SECONDS:
            self._said = now
            self._say(f"simulated {sum(self._done):,} of {self._total:,} requests in {now - self._start:.0f} s")
