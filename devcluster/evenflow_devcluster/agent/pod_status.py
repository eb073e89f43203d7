"""A pod's status from the state of its containers, by Kubernetes' rules. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    exit_code: int
    reason: str
    started_at: datetime
    finished_at: datetime
    signal: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What the agent knows of one container; `previous` is how its last run ended."""

    name: str
    image: str
    state: Waiting | Running | Terminated
    previous: Terminated | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    process_id: int | None = None

    def with_state(self, state: Waiting | Running | Terminated) -> "ContainerState":
        """A new state; one that isn't running is neither started nor ready."""
        if isinstance(state, Running):
            return replace(self, state=state)
        return replace(self, state=state, started=False, ready=False)


def stamp(moment: datetime) -> str:
    """RFC 3339 in UTC with seconds, as metav1.Time is written."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _state_json(state: Waiting | Running | Terminated) -> Json:
    if isinstance(state, Waiting):
        return {"waiting": {"reason": state.reason, **({"message": state.message} if state.message else {})}}
    if isinstance(state, Running):
        return {"running": {"startedAt": stamp(state.started_at)}}
    body: Json = {
        "exitCode": state.exit_code,
        "reason": state.reason,
        "startedAt": stamp(state.started_at),
        "finishedAt": stamp(state.finished_at),
    }
    if state.signal is not None:
        body["signal"] = state.signal
    if state.message:
        body["message"] = state.message
    return {"terminated": body}


def container_json(container: ContainerState, *, pod_uid: str) -> Json:
    body: Json = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "state": _state_json(container.state),
        "lastState": _state_json(container.previous) if container.previous else {},
        "ready": container.ready,
        "started": container.started,
        "restartCount": container.restarts,
    }
    if container.process_id is not None:
        body["containerID"] = f"local://{pod_uid}/{container.name}/{container.restarts}"
    return body


def phase_of(init: Sequence[ContainerState], main: Sequence[ContainerState], restart_policy: str) -> str:
    """Pending, Running, Succeeded or Failed. A container that will be restarted counts as running."""
    for container in init:
        if isinstance(container.state, Terminated):
            if container.state.exit_code != 0 and restart_policy == "Never":
                return "Failed"
        else:
            return "Pending"
    if any(isinstance(item.state, Terminated) and item.state.exit_code != 0 for item in init):
        return "Pending"
    ended = [item.state for item in main if isinstance(item.state, Terminated)]
    if len(ended) == len(main) and restart_policy != "Always":
        failed = any(state.exit_code != 0 for state in ended)
        if not failed:
            return "Succeeded"
        if restart_policy == "Never":
            return "Failed"
    never_started = all(isinstance(item.state, Waiting) and item.previous is None for item in main)
    return "Pending" if never_started else "Running"


def build_status(
    *,
    pod: Json,
    before: Sequence[Json],
    init: Sequence[ContainerState],
    main: Sequence[ContainerState],
    phase: str,
    pod_ip: str,
    host_ip: str,
    started_at: datetime,
    now: datetime,
    reason: str = "",
    message: str = "",
) -> Json:
    """The status document to write. Conditions of types that a kubelet doesn't own are left to their owners.

    `before` are the conditions as last written: a condition that hasn't turned keeps its time.
    """
    spec = pod["spec"]
    uid = pod["metadata"]["uid"]
    others: Mapping[str, Json] = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or []}
    old: Mapping[str, Json] = {item["type"]: item for item in before}
    initialized = phase == "Succeeded" or all(
        isinstance(item.state, Terminated) and item.state.exit_code == 0 for item in init
    )
    not_ready = [item.name for item in main if not item.ready]
    ended = phase in ("Succeeded", "Failed")
    containers_ready = not not_ready and not ended
    gates = [gate["conditionType"] for gate in spec.get("readinessGates") or []]
    closed = [gate for gate in gates if (others.get(gate) or {}).get("status") != "True"]

    def why(ok: bool) -> tuple[str, str]:
        if ok:
            return "", ""
        if phase == "Succeeded":
            return "PodCompleted", ""
        if phase == "Failed":
            return "PodFailed", ""
        return "ContainersNotReady", f"containers with unready status: [{' '.join(not_ready)}]"

    ready_reason, ready_message = why(containers_ready)
    if containers_ready and closed:
        ready_reason, ready_message = "ReadinessGatesNotReady", f"readiness gates not met: {closed}"
    not_initialized = [item.name for item in init if not isinstance(item.state, Terminated)]
    wanted = [
        ("PodScheduled", True, "", ""),
        ("PodReadyToStartContainers", bool(pod_ip) and not ended, "", ""),
        (
            "Initialized",
            initialized,
            "" if initialized else "ContainersNotInitialized",
            "" if initialized else f"containers with incomplete status: [{' '.join(not_initialized)}]",
        ),
        ("ContainersReady", containers_ready, *why(containers_ready)),
        ("Ready", containers_ready and not closed, ready_reason, ready_message),
    ]
    status: Json = {
        "phase": phase,
        "conditions": [_condition(old.get(kind), kind, ok, why, text, now) for kind, ok, why, text in wanted],
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": stamp(started_at),
        "containerStatuses": [container_json(item, pod_uid=uid) for item in main],
        "qosClass": (pod.get("status") or {}).get("qosClass") or "BestEffort",
    }
    if init:
        status["initContainerStatuses"] = [container_json(item, pod_uid=uid) for item in init]
    if pod_ip:
        status["podIP"] = pod_ip
        status["podIPs"] = [{"ip": pod_ip}]
    if reason:
        status["reason"] = reason
    if message:
        status["message"] = message
    return status


def _condition(old: Json | None, kind: str, ok: bool, reason: str, message: str, now: datetime) -> Json:
    status = "True" if ok else "False"
    changed = old is None or old.get("status") != status
    since = stamp(now) if changed or old is None else old.get("lastTransitionTime")
    body: Json = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
    # Explicit nulls take away what an earlier state left: the list is merged by type.
    body["reason"] = reason or None
    body["message"] = message or None
    return body
