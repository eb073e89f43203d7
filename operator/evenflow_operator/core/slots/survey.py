"""Which pod fills which slot, which slots the pool has, and what else stands there (docs/kubernetes.md §3)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.pods.engine import worker_image
from evenflow_operator.core.revision import revision_of
from evenflow_operator.core.snapshot import PodView, Snapshot

WARM_UP_INTERVALS = 3
"""After a restart of the operator, engines have so many metric intervals to be heard again."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A snapshot with its pods sorted out. Pods of another owner are in none of these."""

    snapshot: Snapshot
    spec: LLMServingPoolSpec
    revision: str
    worker_image: str
    """Of new pods; those there are keep their own until their next roll."""
    slots: frozenset[int]
    """The pool's slots. May be more than wanted while some of them drain."""
    filling: Mapping[int, PodView]
    """The one pod that fills each slot; orphans of the current revision included."""
    duplicates: tuple[PodView, ...]
    dead: tuple[PodView, ...]
    """Failed, succeeded, or on a lost node; not yet being deleted."""
    holding_gpus: int
    """Pods whose GPUs count against the pool's budget, terminating ones included."""
    terminating: Mapping[int, PodView]
    highest_attempt: Mapping[int, int]

    @property
    def now(self) -> float:
        return self.snapshot.now

    @property
    def surplus(self) -> int:
        return max(0, len(self.slots) - self.spec.replicas)

    def settled(self, slot: int) -> bool:
        return slot not in self.snapshot.unsettled_slots

    def stalled(self, pod: PodView) -> bool:
        progress = self.snapshot.memory.progress.get(pod.uid)
        return progress is not None and progress.stalled

    def available(self, pod: PodView) -> bool:
        """Ready, in its Services and in their EndpointSlices."""
        return (
            pod.ready
            and pod.serving
            and pod.uid in self.snapshot.routable
            and pod.drain_started is None
            and not self.stalled(pod)
        )

    def unavailable_slots(self) -> frozenset[int]:
        return frozenset(
            slot for slot in self.slots if slot not in self.filling or not self.available(self.filling[slot])
        )

    @property
    def warming(self) -> bool:
        """The operator has just been restarted and some engines have not been heard since: what they run with, and
        what was placed, stays as it is."""
        return warming(self.snapshot, self.spec, self.filling.values())

    def is_orphan(self, pod: PodView) -> bool:
        return pod.owner_uid is None


def warming(snapshot: Snapshot, spec: LLMServingPoolSpec, pods: Iterable[PodView]) -> bool:
    """See Situation."""
    memory, readings = snapshot.memory, snapshot.readings
    limit = WARM_UP_INTERVALS * spec.metrics.interval_seconds
    if not memory.restored or snapshot.now - memory.began_at >= limit:
        return False
    heard = (readings.get(pod.uid) for pod in pods if pod.ready)
    return any(one is None or one.counters is None or one.lengths is None for one in heard)


def survey(snapshot: Snapshot, spec: LLMServingPoolSpec) -> Situation:
    revision = revision_of(spec)
    own = [pod for pod in snapshot.pods if pod.owner_uid == snapshot.uid and pod.slot is not None]
    dead = tuple(pod for pod in own if not pod.deleting and _dead(pod, snapshot))
    live: dict[int, list[PodView]] = {}
    attempts: dict[int, int] = {}
    for pod in snapshot.pods:
        # An orphan still has the name that its slot, revision and attempt gave it.
        if pod.slot is not None and pod.owner_uid in (snapshot.uid, None):
            attempts[pod.slot] = max(attempts.get(pod.slot, 0), pod.attempt)
    for pod in own:
        assert pod.slot is not None
        if not pod.deleting and not _dead(pod, snapshot):
            live.setdefault(pod.slot, []).append(pod)
    filling: dict[int, PodView] = {}
    duplicates: list[PodView] = []
    for slot, pods in live.items():
        first, *others = sorted(pods, key=lambda pod: _merit(pod, revision))
        filling[slot] = first
        duplicates += others
    for pod in sorted(snapshot.pods, key=lambda pod: (not pod.ready, pod.created_at, pod.uid)):
        if _adoptable(pod, snapshot, revision) and pod.slot is not None and pod.slot not in filling:
            filling[pod.slot] = pod
    ending = [pod for pod in own if pod.deleting and not _dead(pod, snapshot)]
    return Situation(
        snapshot=snapshot,
        spec=spec,
        revision=revision,
        worker_image=worker_image(spec, snapshot.extra),
        slots=_slots(snapshot.memory.slots, frozenset(filling) | snapshot.unsettled_slots, spec.replicas),
        filling=dict(sorted(filling.items())),
        duplicates=tuple(duplicates),
        dead=dead,
        holding_gpus=len(filling) + len(duplicates) + len(ending),
        terminating={pod.slot: pod for pod in ending if pod.slot is not None},
        highest_attempt=attempts,
    )


def _dead(pod: PodView, snapshot: Snapshot) -> bool:
    return pod.phase in ("Failed", "Succeeded") or (pod.node is not None and pod.node in snapshot.lost_nodes)


def _merit(pod: PodView, revision: str) -> tuple[bool, bool, float, str]:
    return not pod.ready, pod.revision != revision, pod.created_at, pod.uid


def _adoptable(pod: PodView, snapshot: Snapshot, revision: str) -> bool:
    return pod.owner_uid is None and pod.revision == revision and not pod.deleting and not _dead(pod, snapshot)


def _slots(remembered: frozenset[int], occupied: frozenset[int], wanted: int) -> frozenset[int]:
    """Empty slots go first when there are too many, the highest numbers first; the lowest free numbers come in."""
    slots = set(remembered | occupied)
    for slot in sorted(slots - occupied, reverse=True):
        if len(slots) <= wanted:
            break
        slots.discard(slot)
    return frozenset(slots | set(_lowest_free(slots, wanted - len(slots))))


def _lowest_free(slots: set[int], count: int) -> Iterable[int]:
    free = (number for number in range(len(slots) + max(count, 0) + 1) if number not in slots)
    return (number for number, _ in zip(free, range(max(count, 0)), strict=False))
