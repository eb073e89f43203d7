"""Somebody else who sets the number of replicas: an HPA, KEDA, `kubectl scale`, a manifest that is applied again.

The built-in autoscaler doesn't fight: it keeps its hands off and says who it is. Ownership comes from managedFields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenflow_operator.api.names import SCALE_MANAGER
from evenflow_operator.core.decisions import scaled_at, scaled_to
from evenflow_operator.core.scaling.state import ScalingState
from evenflow_operator.core.snapshot import ReplicaWriter
from evenflow_operator.core.times import rfc3339

HANDS_OFF_SECONDS = 3600.0
"""For so long another one's write stands."""
ANSWERED_BACK_SECONDS = 24 * 3600.0
"""For so long it stands when it overwrote a write of ours younger than HANDS_OFF_SECONDS: such a writer comes back."""


UNNAMED = "somebody whom the API server doesn't name"


def noticed(
    state: ScalingState,
    replicas: int,
    writers: Sequence[ReplicaWriter],
    records: Sequence[Mapping[str, Any]],
    now: float,
) -> ScalingState:
    """With a change of the replicas that nobody owns: after a server-side apply without them, no write of /scale is
    recorded (docs/kubernetes.md §2.3)."""
    at, ours = state.unnamed_at, scaled_at(records)
    if at is not None and ours is not None and ours > at:
        at = None
    if not writers and state.replicas is not None and replicas not in (state.replicas, scaled_to(records)):
        at = now
    return replace(state, replicas=replicas, unnamed_at=at)


def known_writers(state: ScalingState, writers: Sequence[ReplicaWriter]) -> Sequence[ReplicaWriter]:
    """Those of managedFields; if there are none, whoever was noticed without a name."""
    if writers or state.unnamed_at is None:
        return writers
    return (ReplicaWriter(UNNAMED, "Update", "scale", state.unnamed_at),)


def other_writer(writers: Sequence[ReplicaWriter], records: Sequence[Mapping[str, Any]], now: float) -> str | None:
    """Why replicas are left to somebody else, for people; None when they aren't.

    Whoever created the pool owns its replicas until the first write of ours, defaulted ones included, and is no rival.
    """
    others = [one for one in writers if one.manager != SCALE_MANAGER]
    ours = scaled_at(records)
    overwritten = ours is not None and len(others) == len(writers)
    for one in others:
        if one.operation == "Apply":
            return (
                f"the manifest that {one.manager} applies sets spec.replicas; take it out of there, "
                "or spec.autoscaling out of the pool"
            )
        if not (one.subresource == "scale" or overwritten):
            continue
        answered = ours is not None and overwritten and one.at is not None and one.at - ours < HANDS_OFF_SECONDS
        stands = ANSWERED_BACK_SECONDS if answered else HANDS_OFF_SECONDS
        if one.at is None or now - one.at < stands:
            where = "the scale subresource" if one.subresource == "scale" else "spec.replicas"
            until = "" if one.at is None else f" until {rfc3339(one.at + stands)}"
            return (
                f"{one.manager} writes {where}; replicas are left to it{until}; let only one of the two scale the pool"
            )
    return None
