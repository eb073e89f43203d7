"""What `kubectl get` shows of the built-in kinds: the printer columns of Kubernetes, for one object."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from evenflow_devcluster.embedded.jsonvalues import Object, dig, parsed_time
from evenflow_devcluster.embedded.syntax.selectors import selector_text

Cell = Any
Row = Callable[[Object, datetime], list[Cell]]
NONE = "<none>"


def age(since: Any, now: datetime) -> str:
    moment = parsed_time(since)
    return "<unknown>" if moment is None else duration((now - moment).total_seconds())


def duration(seconds: float) -> str:
    """As apimachinery's HumanDuration: two units while they matter, one afterwards."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(total, 0)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    years = days // 365
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"


def _created(obj: Object, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _joined(items: Iterable[Any]) -> str:
    return ",".join(str(item) for item in items) or NONE


def _selector(labels: Any) -> str:
    return _joined(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def _condition(obj: Object, kind: str) -> Object:
    found = [c for c in dig(obj, "status", "conditions") or () if c.get("type") == kind]
    return found[0] if found else {}


def pod(obj: Object, now: datetime) -> list[Cell]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    states = status.get("containerStatuses") or []
    ready = sum(bool(state.get("ready")) for state in states)
    restarts = sum(state.get("restartCount", 0) for state in states)
    last = max((t for s in states if (t := dig(s, "lastState", "terminated", "finishedAt"))), default=None)
    shown_restarts: Cell = f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts)
    gates = spec.get("readinessGates") or []
    met = sum(_condition(obj, gate["conditionType"]).get("status") == "True" for gate in gates)
    return [
        _name(obj),
        f"{ready}/{len(spec.get('containers') or ())}",
        _pod_reason(obj, states),
        shown_restarts,
        _created(obj, now),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{met}/{len(gates)}" if gates else NONE,
    ]


def _pod_reason(obj: Object, states: list[Object]) -> str:
    status = obj.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    if _condition(obj, "PodScheduled").get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    for index, state in enumerate(status.get("initContainerStatuses") or ()):
        terminated, waiting = dig(state, "state", "terminated"), dig(state, "state", "waiting")
        if terminated and terminated.get("exitCode") == 0:
            continue
        total = len(dig(obj, "spec", "initContainers") or ())
        if terminated:
            reason = f"Init:{terminated.get('reason') or 'ExitCode:' + str(terminated.get('exitCode'))}"
        elif waiting and waiting.get("reason") not in (None, "", "PodInitializing"):
            reason = f"Init:{waiting['reason']}"
        else:
            reason = f"Init:{index}/{total}"
        return _deleted(obj, reason)
    running = False
    for state in reversed(states):
        current = state.get("state") or {}
        waiting, terminated = current.get("waiting") or {}, current.get("terminated") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated:
            reason = terminated.get("reason") or f"ExitCode:{terminated.get('exitCode')}"
        elif state.get("ready") and current.get("running"):
            running = True
    if reason == "Completed" and running:
        reason = "Running" if _condition(obj, "Ready").get("status") == "True" else "NotReady"
    return _deleted(obj, reason)


def _deleted(obj: Object, reason: str) -> str:
    if "deletionTimestamp" not in obj["metadata"]:
        return reason
    return "Unknown" if dig(obj, "status", "reason") == "NodeLost" else "Terminating"


def node(obj: Object, now: datetime) -> list[Cell]:
    info = dig(obj, "status", "nodeInfo") or {}
    ready = _condition(obj, "Ready").get("status")
    words = [{"True": "Ready", "False": "NotReady"}.get(str(ready), "Unknown" if ready is None else "NotReady")]
    if dig(obj, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in obj["metadata"].get("labels") or {} if key.startswith(prefix)]
    addresses = {a.get("type"): a.get("address") for a in dig(obj, "status", "addresses") or ()}
    return [
        _name(obj),
        ",".join(words),
        _joined(sorted(roles)),
        _created(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def service(obj: Object, now: datetime) -> list[Cell]:
    spec = obj.get("spec") or {}
    external = spec.get("externalName") if spec.get("type") == "ExternalName" else None
    ports = [f"{port['port']}/{port.get('protocol', 'TCP')}" for port in spec.get("ports") or ()]
    return [
        _name(obj),
        spec.get("type", ""),
        spec.get("clusterIP") or NONE,
        external or _joined(spec.get("externalIPs") or ()),
        _joined(ports),
        _created(obj, now),
        _selector(spec.get("selector")),
    ]


def endpoint_slice(obj: Object, now: datetime) -> list[Cell]:
    ports = ["*" if port.get("port") is None else port["port"] for port in obj.get("ports") or ()]
    addresses = [address for endpoint in obj.get("endpoints") or () for address in endpoint.get("addresses") or ()]
    return [
        _name(obj),
        obj.get("addressType", ""),
        _limited(ports) if ports else "<unset>",
        _limited(addresses) if addresses else "<unset>",
        _created(obj, now),
    ]


def _limited(items: list[Any]) -> str:
    text = ",".join(str(item) for item in items[:3])
    return f"{text} + {len(items) - 3} more..." if len(items) > 3 else text


def event(obj: Object, now: datetime) -> list[Cell]:
    involved = obj.get("involvedObject") or {}
    source = obj.get("source") or {}
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = dig(obj, "series", "lastObservedTime") or obj.get("lastTimestamp") or first
    component = source.get("component") or obj.get("reportingComponent") or ""
    return [
        age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        f"{component}, {source['host']}" if source.get("host") else component,
        str(obj.get("message", "")).strip(),
        age(first, now),
        dig(obj, "series", "count") or obj.get("count") or 1,
        _name(obj),
    ]


def lease(obj: Object, now: datetime) -> list[Cell]:
    return [_name(obj), dig(obj, "spec", "holderIdentity") or "", _created(obj, now)]


def namespace(obj: Object, now: datetime) -> list[Cell]:
    return [_name(obj), dig(obj, "status", "phase") or "", _created(obj, now)]


def config_map(obj: Object, now: datetime) -> list[Cell]:
    return [_name(obj), len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), _created(obj, now)]


def secret(obj: Object, now: datetime) -> list[Cell]:
    return [_name(obj), obj.get("type", ""), len(obj.get("data") or ()), _created(obj, now)]


def service_account(obj: Object, now: datetime) -> list[Cell]:
    return [_name(obj), len(obj.get("secrets") or ()), _created(obj, now)]


def disruption_budget(obj: Object, now: datetime) -> list[Cell]:
    spec = obj.get("spec") or {}
    return [
        _name(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        dig(obj, "status", "disruptionsAllowed") or 0,
        _created(obj, now),
    ]


def definition(obj: Object, now: datetime) -> list[Cell]:
    return [_name(obj), obj["metadata"].get("creationTimestamp", "")]


def deployment(obj: Object, now: datetime) -> list[Cell]:
    status = obj.get("status") or {}
    wanted = dig(obj, "spec", "replicas") or 0
    ready = f"{status.get('readyReplicas') or 0}/{wanted}"
    counts = [status.get("updatedReplicas") or 0, status.get("availableReplicas") or 0]
    return [_name(obj), ready, *counts, _created(obj, now), *_template(obj)]


def replica_set(obj: Object, now: datetime) -> list[Cell]:
    status = obj.get("status") or {}
    counts = [status.get("replicas") or 0, status.get("readyReplicas") or 0]
    return [_name(obj), dig(obj, "spec", "replicas") or 0, *counts, _created(obj, now), *_template(obj)]


def _template(obj: Object) -> list[Cell]:
    containers = dig(obj, "spec", "template", "spec", "containers") or ()
    names = _joined(item.get("name", "") for item in containers)
    return [names, _joined(item.get("image", "") for item in containers), _labels_text(dig(obj, "spec", "selector"))]


def _labels_text(selector: Any) -> str:
    return selector_text(selector or {}) or NONE


def network_policy(obj: Object, now: datetime) -> list[Cell]:
    return [_name(obj), _labels_text(dig(obj, "spec", "podSelector")), _created(obj, now)]


def binding(obj: Object, now: datetime) -> list[Cell]:
    role = obj.get("roleRef") or {}
    return [_name(obj), f"{role.get('kind')}/{role.get('name')}", _created(obj, now)]
