"""The newest that is known of every engine, keyed by pod uid, so that a deleted pod's figures count for nobody.

A failed sample never erases the last good one: that one stays, with its age and the reason why there is no newer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_operator.core.snapshot import Reading
from evenflow_operator.ports import Clock, Key, Sample


@dataclass(slots=True)
class _Known:
    sample: Reading | None = None
    """The last one with counters; until there is one, the last one without."""
    problem: str | None = None
    state: WorkerState | None = None
    state_at: float = 0.0
    lengths: WorkerLengths | None = None
    lengths_at: float = 0.0


class Readings:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pools: dict[Key, dict[str, _Known]] = {}
        self._source_problem: dict[Key, str] = {}

    def put_sample(self, key: Key, sample: Sample, asked: Collection[str]) -> None:
        """Take over what the source said about the pods it was `asked` about."""
        if sample.problem is not None:
            self._source_problem[key] = sample.problem
            return
        self._source_problem.pop(key, None)
        for uid in asked:
            known, reading = self._known(key, uid), sample.readings.get(uid)
            if reading is None:
                known.problem = "the metric source says nothing about this pod"
            elif reading.counters is not None or known.sample is None or known.sample.counters is None:
                known.sample, known.problem = reading, reading.problem
            else:
                known.problem = reading.problem

    def put_source_problem(self, key: Key, problem: str) -> None:
        self._source_problem[key] = problem

    def put_state(self, key: Key, uid: str, state: WorkerState) -> None:
        known = self._known(key, uid)
        known.state, known.state_at = state, self._clock.now()

    def put_lengths(self, key: Key, uid: str, lengths: WorkerLengths) -> None:
        known = self._known(key, uid)
        known.lengths, known.lengths_at = lengths, self._clock.now()

    def applied(self, key: Key, uid: str, config: WorkerConfig, generation: int) -> None:
        """A push was answered: don't wait for the next sample to know it."""
        known = self._pools.get(key, {}).get(uid)
        if known is None or known.state is None or known.state.applied_generation > generation:
            return
        digest = config.content_hash() if generation == config.generation else known.state.config_hash
        known.state = replace(known.state, applied_generation=generation, config_hash=digest)

    def lengths_age(self, key: Key, uid: str) -> float:
        """Seconds since the lengths were read; infinite if never."""
        known = self._pools.get(key, {}).get(uid)
        return self._clock.now() - known.lengths_at if known and known.lengths else float("inf")

    def knows(self, key: Key, uid: str) -> bool:
        return uid in self._pools.get(key, {})

    def view(self, key: Key, state_max_age: float) -> Mapping[str, Reading]:
        """Readings for a snapshot. A state older than `state_max_age` seconds is left out: an engine that stopped
        answering must not look idle."""
        now = self._clock.now()
        readings: dict[str, Reading] = {}
        for uid, known in self._pools.get(key, {}).items():
            base = known.sample or Reading(now, "Scrape", problem="not sampled yet")
            state = known.state if now - known.state_at <= state_max_age else None
            problem = known.problem or base.problem
            readings[uid] = replace(base, state=state, state_at=known.state_at, lengths=known.lengths, problem=problem)
        return readings

    def source_problem(self, key: Key) -> str | None:
        return self._source_problem.get(key)

    def oldest_sample(self) -> float | None:
        """Age in seconds of the oldest last sample of any pod; None without any."""
        taken = [known.sample.taken_at for pods in self._pools.values() for known in pods.values() if known.sample]
        return self._clock.now() - min(taken) if taken else None

    def retain(self, key: Key, alive: Collection[str]) -> None:
        """Forget pods that no longer exist."""
        pods = self._pools.get(key)
        if pods is None:
            return
        for uid in [uid for uid in pods if uid not in alive]:
            del pods[uid]

    def forget(self, key: Key) -> None:
        self._pools.pop(key, None)
        self._source_problem.pop(key, None)

    def _known(self, key: Key, uid: str) -> _Known:
        return self._pools.setdefault(key, {}).setdefault(uid, _Known())
