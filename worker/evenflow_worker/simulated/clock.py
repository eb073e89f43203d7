"""The simulated engine's clock: wall time multiplied, and honest about what the computer could not keep up with."""

import time
from collections.abc import Callable

CATCH_UP_WALL_SECONDS = 0.25
"""How far behind its clock an engine may fall and still make up for it by running faster. What exceeds this is lost for
good: the clock is set back and the loss counted, because a sprint would show clients latencies that no engine has."""


class EngineClock:
    """Engine seconds = wall seconds since the start × `time_scale`, less what was lost."""

    def __init__(self, time_scale: float, wall: Callable[[], float] = time.monotonic) -> None:
        if not 0.0 < time_scale <= 100.0:
            raise ValueError(f"time_scale must be above 0 and at most 100, found {time_scale}")
        self.time_scale = time_scale
        self._wall = wall
        self._start = wall()
        self._lost = 0.0
        self._busy = 0.0

    @property
    def lost_seconds(self) -> float:
        """Engine seconds by which the clock was set back so far."""
        return self._lost

    @property
    def busy_seconds(self) -> float:
        """Engine seconds that steps took so far."""
        return self._busy

    @property
    def lag_ratio(self) -> float:
        """Engine seconds lost per engine second run; 0 before the first step."""
        return self._lost / self._busy if self._busy > 0.0 else 0.0

    def now(self) -> float:
        """Engine time."""
        return (self._wall() - self._start) * self.time_scale - self._lost

    def wall_seconds_until(self, engine_s: float) -> float:
        """Wall seconds until the engine time `engine_s`; negative if it has passed."""
        return (engine_s - self.now()) / self.time_scale

    def ran(self, duration_s: float, engine_s: float) -> None:
        """A step of `duration_s` engine seconds ended at engine time `engine_s`. Gives up what can't be caught up."""
        self._busy += duration_s
        excess = self.now() - engine_s - CATCH_UP_WALL_SECONDS * self.time_scale
        if excess > 0.0:
            self._lost += excess
