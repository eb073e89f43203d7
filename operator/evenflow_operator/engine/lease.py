"""Leader election on a Lease (the client library's own is broken, docs/kubernetes.md §2.2).

Only the local monotonic clock is compared: another holder's lease is over when it has not changed for its duration
*as seen from here*, whatever the clocks of the computers say. Who can't renew in time must stop at once.
"""

import asyncio
import contextlib
import logging
import math
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn

from evenflow_operator.ports import ApiError, Clock, LeaseRecord, Leases

MAX_DURATION_SECONDS = 3600

log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """Another process may lead now: end this one at once, or two act."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. A leader that hasn't renewed within `renew_deadline` gives up, before others may take over."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration <= MAX_DURATION_SECONDS:
            raise ValueError(
                f"lease times: need 0 < retry ({self.retry:g}) < renew deadline ({self.renew_deadline:g})"
                f" < duration ({self.duration:g}) <= {MAX_DURATION_SECONDS} seconds"
            )


class Elector:
    """One candidate. `acquire`, then `hold` until it raises or is cancelled, then `release`."""

    def __init__(
        self, leases: Leases, identity: str, clock: Clock, rng: random.Random, times: LeaseTimes = LeaseTimes()
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._clock = clock
        self._rng = rng
        self._times = times
        self._observed: LeaseRecord | None = None
        self._observed_at = 0.0
        self._troubled = ""
        """The failure that the log has told last and that isn't over."""
        self._named = ""
        """The holder that the log has named last."""
        self._own: LeaseRecord | None = None
        self._renewed_at = 0.0

    @property
    def leading(self) -> bool:
        return self._own is not None and self._clock.monotonic() - self._renewed_at < self._times.renew_deadline

    async def acquire(self) -> None:
        """Return once the lease is ours."""
        while True:
            if await self._try_acquire():
                break
            # Jitter, so that standbys don't race for a free lease in step.
            await asyncio.sleep(self._times.retry * (1.0 + 0.2 * self._rng.random()))
        log.info("leading as %s", self._identity)

    async def hold(self) -> None:
        """Renew for ever. Raises LeadershipLost as soon as the lease may be somebody else's."""
        trouble = ""
        while True:
            await asyncio.sleep(min(self._times.retry, self._left()))
            left = self._left()
            if left <= 0:
                self._lose(f"not renewed within {self._times.renew_deadline:g} s{trouble}")
            try:
                async with asyncio.timeout(left):
                    await self._renew()
                    trouble = ""
                    self._untroubled()
            except TimeoutError:
                trouble = ": no answer"
            except ApiError as error:
                trouble = f": {error}"
                self._trouble("lease not renewed, trying again", error)

    def _left(self) -> float:
        """Seconds until the lease must be given up, unless it is renewed before."""
        return max(0.0, self._renewed_at + self._times.renew_deadline - self._clock.monotonic())

    async def release(self) -> None:
        """Hand the lease back, so that a standby needn't wait for it to run out. Never raises for the API's sake."""
        own, self._own = self._own, None
        if own is None:
            return
        free = replace(own, holder="", duration_seconds=1, renewed_at=self._timestamp())
        with contextlib.suppress(ApiError):
            await self._leases.replace(free)
            log.info("lease released")

    async def _try_acquire(self) -> bool:
        try:
            current = await self._leases.get()
            started = self._clock.monotonic()
            if current is None:
                self._own, self._renewed_at = await self._leases.create(self._claim(None)), started
            else:
                self._observe(current)
                if not self._available(current):
                    self._untroubled()
                    self._name_holder(current)
                    return False
                self._own, self._renewed_at = await self._leases.replace(self._claim(current)), started
        except ApiError as error:
            if error.status == 409:
                log.debug("lease not acquired: %s", error)
            else:
                self._trouble("lease not acquired, trying again", error)
            return False
        self._untroubled()
        return True

    def _trouble(self, what: str, error: ApiError) -> None:
        """Told once while it stays the same, and then its end."""
        if str(error) != self._troubled:
            self._troubled = str(error)
            log.warning("%s: %s", what, error)

    def _untroubled(self) -> None:
        if self._troubled:
            self._troubled = ""
            log.info("the lease can be had again")

    async def _renew(self) -> None:
        """The lease counts from before the request: others count from when it was written."""
        assert self._own is not None
        started = self._clock.monotonic()
        try:
            renewed = await self._leases.replace(replace(self._own, renewed_at=self._timestamp()))
        except ApiError as error:
            if not error.conflict:
                raise
            # A write came between: ours, whose answer was lost, or somebody else's.
            current = await self._leases.get()
            if current is None or current.holder != self._identity:
                self._lose(f"held by {current.holder if current else 'nobody'} now")
            self._own = current
        else:
            self._own, self._renewed_at = renewed, started

    def _lose(self, why: str) -> NoReturn:
        self._own = None
        raise LeadershipLost(why)

    def _observe(self, current: LeaseRecord) -> None:
        if self._observed is None or (
            (current.resource_version, current.holder) != (self._observed.resource_version, self._observed.holder)
        ):
            self._observed, self._observed_at = current, self._clock.monotonic()

    def _name_holder(self, current: LeaseRecord) -> None:
        """A standby says whom it waits for: once, and again when that is another."""
        if current.holder == self._named:
            return
        self._named = current.holder
        left = current.duration_seconds - (self._clock.monotonic() - self._observed_at)
        until = datetime.fromtimestamp(self._clock.now() + left, UTC).strftime("%H:%M:%S")
        log.info(
            "standing by: %s holds the lease until %s UTC, or longer if it renews it; this one leads then",
            current.holder,
            until,
        )

    def _available(self, current: LeaseRecord) -> bool:
        if not current.holder or current.holder == self._identity:
            return True
        return self._clock.monotonic() - self._observed_at >= current.duration_seconds

    def _claim(self, current: LeaseRecord | None) -> LeaseRecord:
        now = self._timestamp()
        return LeaseRecord(
            holder=self._identity,
            # Rounded up: others take over when the written duration is over, and this one must have given up by then.
            duration_seconds=math.ceil(self._times.duration),
            acquired_at=now,
            renewed_at=now,
            transitions=current.transitions + 1 if current else 0,
            resource_version=current.resource_version if current else None,
        )

    def _timestamp(self) -> str:
        return datetime.fromtimestamp(self._clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
