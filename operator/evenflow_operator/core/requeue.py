"""When a pool must be looked at again although nothing changes: back-off, drains, samples that grow old."""

from evenflow_operator.core.outcome import Outcome
from evenflow_operator.core.slots.survey import Situation

DRAIN_POLL_SECONDS = 1.0
SHORTEST_SECONDS = 0.2
WITHOUT_SAMPLE = 1.25
"""Intervals after which a pool is looked at although no new sample had it looked at: later than a sample can be, or
else most pools would be looked at twice."""


def requeue_after(situation: Situation, outcome: Outcome, status_due: float | None) -> float | None:
    """Seconds; None for a pool that only an event can change. `status_due`: until held-back figures may be written."""
    interval = float(situation.spec.metrics.interval_seconds)
    due: list[float] = [] if status_due is None else [status_due]
    if situation.filling or outcome.refill.waiting_for_gpus:
        due.append(WITHOUT_SAMPLE * interval)
    due += [outcome.refill.backoff[slot].until - situation.now for slot in outcome.refill.backing_off]
    if outcome.services.due is not None:
        due.append(outcome.services.due)
    if outcome.drains.standing.due is not None:
        due.append(outcome.drains.standing.due)
    if outcome.drains.start or any(pod.drain_started is not None for pod in situation.filling.values()):
        due.append(DRAIN_POLL_SECONDS)
    return max(SHORTEST_SECONDS, min(due)) if due else None
