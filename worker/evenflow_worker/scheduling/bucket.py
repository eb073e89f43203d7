"""The admission bucket: how many new requests one engine iteration may admit (docs/design.md §5.3).

Credit is counted in integers of 1e-12, so that the long-run rate is that of the cap for every positive one, including
0.1, 0.7 or 1.3 a step: no rounding error builds up over millions of iterations.
"""

from typing import Final

from evenflow_contract.worker_config import Admission, AdmissionUnit

_SCALE: Final = 10**12


class AdmissionBucket:
    """Token bucket in requests or in volume, refilled once per engine iteration.

    Unit `Requests`: one request costs one credit, and a whole credit is needed. Unit `Volume`: the cap is a multiple of
    the usable KV tokens M per iteration, a request costs its block-rounded predicted volume in token-iterations, any
    positive credit admits one, and the overshoot is carried as debt. While a debt is paid off, requests that fit into
    what is left of this iteration's refill enter all the same and are charged like any other: the next large request
    waits longer instead of every small one behind the last. They never deepen a debt from one iteration to the next, so
    that the long-run rate stays the cap's and the debt at most one request's volume or one refill.

    At rest the credit is bounded: by the cap + 1 requests, or by one iteration's volume. Only new requests are counted;
    resumed ones are the caller's to let through. Measured with bench/open_arrivals.py.
    """

    __slots__ = ("_burst", "_credit", "_need", "_refill", "_share", "_unit", "capacity_tokens", "limited")

    def __init__(self, capacity_tokens: int, admission: Admission | None = None) -> None:
        if capacity_tokens < 1:
            raise ValueError(f"capacity_tokens must be at least 1, found {capacity_tokens}: give the usable KV tokens")
        self.capacity_tokens = capacity_tokens
        self._unit: AdmissionUnit = "Volume"
        self.limited = False
        self._credit = self._refill = self._burst = self._need = self._share = 0
        self.configure(admission or Admission())

    @property
    def credit(self) -> float:
        """Requests, or token-iterations, that may still enter now; negative while a debt is paid off."""
        return self._credit / _SCALE

    def configure(self, admission: Admission) -> None:
        """Take a cap live. The same unit keeps credit and debt, within the new bounds; another unit starts afresh."""
        self._share = 0
        if admission.mode == "Off" or admission.per_iteration is None:
            self.limited = False
            self._credit = 0
            return
        volume = admission.unit == "Volume"
        if not self.limited or admission.unit != self._unit:
            self._credit = 0
        self.limited = True
        self._unit = admission.unit
        rate = admission.per_iteration * (self.capacity_tokens if volume else 1)
        self._refill = max(round(rate * _SCALE), 1)
        # With room for cap + 1 a fractional rest is never cut off while requests wait: caps of 0.5 to 1 lost half of
        # their rate with less. Volume needs no rest: it is spent below zero before the next refill.
        self._burst = self._refill if volume else self._refill + _SCALE
        self._need = 1 if volume else _SCALE
        self._credit = min(self._credit, self._burst)

    def refill(self, times: int = 1, *, paused: bool = False) -> None:
        """Once per engine iteration, before admission; or for `times` of them at once. A paused engine collects
        nothing."""
        if self.limited and not paused:
            self._credit = min(self._credit + times * self._refill, self._burst)
            self._share = self._refill if self._unit == "Volume" else 0

    def refills_refused(self, volume: float) -> int:
        """How many refills in a row, from the next on, leave it refusing a new request of `volume` token-iterations
        while others run."""
        if not self.limited or (self._unit == "Volume" and self._cost(volume) <= self._refill):
            return 0
        return max(-(-(self._need - self._credit) // self._refill) - 1, 0)

    def allows(self, volume: float, *, idle: bool) -> bool:
        """May a new request of `volume` token-iterations enter? `idle`: nothing is running, then one always may."""
        return idle or not self.limited or self._credit >= self._need or self._cost(volume) <= self._share

    def take(self, volume: float, *, idle: bool = False) -> None:
        """Charge one admitted request of `volume` token-iterations (block-rounded, predicted; not finite: counts as M).

        An idle engine's free pass may leave a debt of its own cost, never more: a quiet hour of single requests must
        not be held against the next burst.
        """
        if not self.limited:
            return
        cost = self._cost(volume)
        credit = self._credit - cost
        self._credit = max(credit, -cost) if idle else credit
        self._share = max(self._share - cost, 0)

    def _cost(self, volume: float) -> int:
        if self._unit == "Requests":
            return _SCALE
        finite = 0.0 <= volume < float("inf")
        return round((volume if finite else float(self.capacity_tokens)) * _SCALE)
