"""Whether the API server would take a pod of a new revision: asked once, before a pod that serves is given up for it.

A pod that it refuses would cost a slot for as long as the spec is bad (docs/design.md §5.1, Rollout).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from evenflow_operator.api.enums import Mode
from evenflow_operator.core.memory import DryRun, PoolMemory
from evenflow_operator.core.plan import DryRunPod
from evenflow_operator.core.slots.refill import pause_after
from evenflow_operator.core.slots.survey import Situation

UNANSWERED_SECONDS = 600.0
"""For so long a rollout waits for an answer. Then it goes on without one: an admission webhook that fails in dry runs
alone must not hold it for ever."""
MAX_PROBLEM = 500

_TOLD = re.compile(r"revision (?P<revision>[0-9a-f]+): (?P<problem>.+); every pod stays as it is\b", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """`problem` is empty when the pod would be taken; without `refused` it says why there was no answer."""

    command: DryRunPod
    problem: str = ""
    refused: bool = False
    retry_after: float = 0.0
    """Seconds that the API server asks for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`allowed`: pods may be given up for ones of the pool's revision."""

    allowed: bool = True
    known: DryRun | None = None
    """The last answer, which may be about the revision before while there is none about this one."""
    due: float | None = None
    """Seconds until the API server is asked; 0: now."""

    @property
    def refusal(self) -> DryRun | None:
        return self.known if not self.allowed and self.known is not None and self.known.refused else None

    @property
    def unanswered(self) -> str:
        """Why there is no answer yet; empty when there is one, or none was asked for."""
        return "" if self.allowed or self.known is None or self.known.refused else self.known.problem


def standing(situation: Situation) -> Standing:
    snapshot, revision, known = situation.snapshot, situation.revision, situation.snapshot.memory.dry_run
    outdated = any(pod.revision != revision for pod in situation.filling.values())
    taken = any(pod.revision == revision and pod.owner_uid == snapshot.uid for pod in snapshot.pods)
    if not outdated or taken or situation.spec.mode is not Mode.ACTIVE:
        return Standing()
    if known is None or known.revision != revision:
        return Standing(False, known, 0.0)
    waited = situation.now - known.since
    if not known.problem or (not known.refused and waited >= UNANSWERED_SECONDS):
        return Standing(True, known)
    due = max(0.0, known.until - situation.now) if known.generation == snapshot.generation else 0.0
    return Standing(False, known, due)


def answered(memory: PoolMemory, answers: Iterable[Answer], now: float) -> PoolMemory:
    """The memory once the API server has answered; without a yes it is asked again after a back-off."""
    for one in answers:
        asked, before = one.command, memory.dry_run
        known = DryRun(asked.revision, asked.generation, one.problem[:MAX_PROBLEM], one.refused)
        if one.problem:
            same = before if before is not None and before.revision == asked.revision else None
            tries = same.tries if same is not None and same.generation == asked.generation else 0
            since = same.since if same is not None and not same.refused else now
            until = now + max(pause_after(tries), one.retry_after)
            known = replace(known, tries=tries + 1, since=since, until=until)
        memory = replace(memory, dry_run=known)
    return memory


def told(known: DryRun) -> str:
    """A refusal, for people."""
    return f"revision {known.revision}: {known.problem}; every pod stays as it is until the API server takes one"


def restored(message: str) -> DryRun | None:
    """The refusal that `told` has made a message of: it holds until the API server is asked again, at once."""
    found = _TOLD.match(message)
    return None if found is None else DryRun(found["revision"], 0, found["problem"], True)
