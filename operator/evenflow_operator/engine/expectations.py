"""Own writes that the cache doesn't show yet, remembered by name and uid, never as a counter (docs/kubernetes.md §3.3).

While one is open, nothing is decided for its slot. One that isn't met in time is never assumed: the caller LISTs the
pool's pods and resets.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from evenflow_operator.core.snapshot import PodView
from evenflow_operator.ports import Clock, Key

TIMEOUT_SECONDS = 30.0
UNCERTAIN_SECONDS = 1.0
"""A write without an answer may or may not have happened: look soon."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """`uid` is empty for a create whose answer has not come; `resource_version` is the one before a patch."""

    what: Literal["create", "delete", "patch"]
    slot: int
    name: str
    uid: str
    deadline: float
    resource_version: str = ""

    def met_by(self, view: PodView) -> bool:
        if self.what == "create":
            return view.name == self.name
        if view.uid != self.uid:
            return False
        return view.deleting if self.what == "delete" else view.resource_version != self.resource_version


class Expectations:
    def __init__(self, clock: Clock, timeout: float = TIMEOUT_SECONDS) -> None:
        self._clock = clock
        self._timeout = timeout
        self._open: dict[Key, dict[tuple[str, str], Expectation]] = {}

    def create(self, key: Key, slot: int, name: str) -> None:
        self._expect(key, Expectation("create", slot, name, "", self._deadline()))

    def delete(self, key: Key, slot: int, name: str, uid: str) -> None:
        self._expect(key, Expectation("delete", slot, name, uid, self._deadline()))

    def patch(self, key: Key, slot: int, name: str, uid: str, resource_version: str) -> None:
        self._expect(key, Expectation("patch", slot, name, uid, self._deadline(), resource_version))

    def settled(self, key: Key, what: str, name: str) -> None:
        """The outcome is known: the write certainly did not happen, or its result is in the cache."""
        self._drop(key, [(what, name)])

    def uncertain(self, key: Key, what: str, name: str) -> None:
        """The write may have happened: verify soon."""
        entry = self._open.get(key, {}).get((what, name))
        if entry is not None:
            soon = self._clock.monotonic() + min(UNCERTAIN_SECONDS, self._timeout)
            self._open[key][what, name] = replace(entry, deadline=min(entry.deadline, soon))

    def seen(self, key: Key, view: PodView) -> None:
        """The cache shows this pod now."""
        met = [at for at, entry in self._open.get(key, {}).items() if entry.met_by(view)]
        self._drop(key, met)

    def gone(self, key: Key, name: str, uid: str) -> None:
        """The pod no longer exists: its delete is met, and nothing else can be expected of it."""
        met = [
            at
            for at, entry in self._open.get(key, {}).items()
            if entry.uid == uid or (entry.what == "create" and entry.name == name)
        ]
        self._drop(key, met)

    def unsettled(self, key: Key) -> frozenset[int]:
        return frozenset(entry.slot for entry in self._open.get(key, {}).values())

    def overdue(self, key: Key) -> bool:
        now = self._clock.monotonic()
        return any(entry.deadline <= now for entry in self._open.get(key, {}).values())

    def next_deadline(self, key: Key) -> float | None:
        """Seconds until the first open one must be verified."""
        entries = self._open.get(key)
        if not entries:
            return None
        return max(0.0, min(entry.deadline for entry in entries.values()) - self._clock.monotonic())

    def reset(self, key: Key) -> None:
        """A live LIST has replaced every assumption."""
        self._open.pop(key, None)

    def _expect(self, key: Key, entry: Expectation) -> None:
        self._open.setdefault(key, {})[entry.what, entry.name] = entry

    def _drop(self, key: Key, places: Iterable[tuple[str, str]]) -> None:
        entries = self._open.get(key)
        if entries is None:
            return
        for place in places:
            entries.pop(place, None)
        if not entries:
            del self._open[key]

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._timeout
