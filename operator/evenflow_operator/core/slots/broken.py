"""Pods that don't start: what is known of them, and which of them the spec has been corrected for since."""

from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.core.decisions import decision
from evenflow_operator.core.plan import DeletePod
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView

CRASHED = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "ImageInspectError",
        "InvalidImageName",
        "CreateContainerError",
        "CreateContainerConfigError",
        "RunContainerError",
    }
)


def broken(pod: PodView) -> bool:
    """Between two tries of a crash loop the container runs: it has failed until it is ready all the same."""
    return not pod.ready and (pod.waiting_reason in CRASHED or pod.restarts > 0)


def failure(pod: PodView) -> str:
    """Why a broken pod doesn't start, for people."""
    reason = pod.waiting_reason if pod.waiting_reason in CRASHED else "not ready"
    trouble = f": {pod.trouble}" if pod.trouble else ""
    again = f" (restarts: {pod.restarts})" if pod.restarts else ""
    return f"{reason}{trouble}{again}"


def never_served(pod: PodView) -> bool:
    return not pod.serving and not pod.ready and pod.drain_started is None


def serves_nobody(pod: PodView) -> bool:
    """Nothing is in flight in it, so that it needs no drain."""
    return never_served(pod) or (pod.engine_waiting and not pod.ready and pod.drain_started is None)


def corrections(situation: Situation) -> tuple[DeletePod, ...]:
    """Pods that never started, of another revision or worker image than new ones would have.

    They serve nobody, so all of them go at once, whatever maxUnavailable allows and however the new ones fare.
    """
    commands = []
    for slot, pod in situation.filling.items():
        if not (never_served(pod) and pod.waiting_reason in CRASHED and situation.settled(slot)):
            continue
        if pod.revision != situation.revision:
            change = f"revision {pod.revision} becomes {situation.revision}"
        elif pod.worker_image is not None and pod.worker_image != situation.worker_image:
            change = f"worker image {pod.worker_image} becomes {situation.worker_image}"
        else:
            continue
        message = f"replace the pod, which doesn't start ({pod.waiting_reason}): {change}"
        why = decision(DecisionType.REPLACE_POD, DecisionReason.REVISION_CHANGED, message, slot=slot)
        commands.append(DeletePod(slot, pod.name, pod.uid, pod.resource_version, why))
    return tuple(commands)
