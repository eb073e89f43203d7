"""Raw Kubernetes objects into the small views that the operator keeps.

Pure and tolerant: whatever a field holds, an object either becomes a view or is left out (None); nothing here raises.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast, get_args

from evenflow_contract import labels
from evenflow_contract.errors import ContractError
from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.api.errors import SpecError
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.core.snapshot import PodPhase, PodView, ReplicaWriter, ServicePort, ServiceView
from evenflow_operator.ports import Identity, NodeRecord, PodRecord, PoolRecord, ServiceRecord, SliceRecord

MAX_SLOT = 1_000_000
_PHASES = frozenset(get_args(PodPhase))
_EMPTY: Mapping[str, Any] = {}
_AWAITING_TURN = frozenset({"ContainerCreating", "PodInitializing"})


def pool_record(obj: Any) -> PoolRecord | None:
    meta = _mapping(obj, "metadata")
    uid, name, namespace = _text(meta, "uid"), _text(meta, "name"), _text(meta, "namespace")
    if not (uid and name and namespace):
        return None
    pool, problem = None, None
    document = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "generation": _int(meta.get("generation"), 1)},
        "spec": obj.get("spec"),
    }
    try:
        pool = LLMServingPool.parse(document)
    except SpecError as error:
        problem = str(error)
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"spec: cannot be read ({type(error).__name__}); apply it again"
    return PoolRecord(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=_text(meta, "resourceVersion"),
        generation=_int(meta.get("generation"), 1),
        deleting=bool(meta.get("deletionTimestamp")),
        pool=pool,
        problem=problem,
        replica_writers=_replica_writers(meta.get("managedFields")),
    )


def _replica_writers(entries: Any) -> tuple[ReplicaWriter, ...]:
    """The owners of `spec.replicas` in managedFields."""
    return tuple(
        ReplicaWriter(
            _text(entry, "manager"), _text(entry, "operation"), _text(entry, "subresource"), _time(entry.get("time"))
        )
        for entry in (entries if isinstance(entries, list) else ())
        if "f:replicas" in _mapping(_mapping(entry, "fieldsV1"), "f:spec")
    )


def pod_record(obj: Any) -> PodRecord | None:
    meta = _mapping(obj, "metadata")
    namespace, pool = _text(meta, "namespace"), _text(_mapping(meta, "labels"), labels.POOL)
    view = pod_view(obj)
    return PodRecord(namespace, pool, view) if view and namespace and pool else None


def pod_view(obj: Any) -> PodView | None:
    meta = _mapping(obj, "metadata")
    uid, name = _text(meta, "uid"), _text(meta, "name")
    if not (uid and name):
        return None
    tags, notes = _mapping(meta, "labels"), _mapping(meta, "annotations")
    status = _mapping(obj, "status")
    ready = _condition(status, "Ready")
    scheduled = _condition(status, "PodScheduled")
    config, config_problem = _worker_config(notes.get(labels.WORKER_CONFIG))
    containers = _containers(status)
    waiting, trouble = _trouble(containers)
    phase = _text(status, "phase")
    return PodView(
        name=name,
        uid=uid,
        resource_version=_text(meta, "resourceVersion"),
        phase=cast(PodPhase, phase) if phase in _PHASES else "Pending" if not phase else "Unknown",
        ready=ready.get("status") == "True",
        created_at=_time(meta.get("creationTimestamp")) or 0.0,
        slot=_slot(tags.get(labels.SLOT)),
        revision=_text(tags, labels.REVISION),
        attempt=_digits(tags.get(labels.ATTEMPT)) or 0,
        serving=tags.get(labels.SERVING) == labels.TRUE,
        classes=labels.classes_of({key: value for key, value in tags.items() if isinstance(key, str)}),
        owner_uid=_controller_uid(meta),
        deleting=bool(meta.get("deletionTimestamp")),
        ready_since=_time(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        node=_text(_mapping(obj, "spec"), "nodeName") or None,
        ip=_text(status, "podIP") or None,
        template_version=_text(notes, labels.TEMPLATE_VERSION) or None,
        worker_image=_text(notes, labels.WORKER_IMAGE) or None,
        worker_config=config,
        config_problem=config_problem,
        drain_started=_time(notes.get(labels.DRAIN_STARTED)),
        drain_reason=_text(notes, labels.DRAIN_REASON) or None,
        unschedulable=_unschedulable(scheduled),
        waiting_reason=waiting,
        trouble=trouble,
        engine_waiting=any(
            one.get("name") == labels.ENGINE_CONTAINER and _waiting(one).get("reason") for one in containers
        ),
        restarts=sum(max(0, _int(one.get("restartCount"), 0)) for one in containers),
    )


def service_record(obj: Any) -> ServiceRecord | None:
    namespace = _text(_mapping(obj, "metadata"), "namespace")
    view = service_view(obj)
    return ServiceRecord(namespace, view) if view and namespace else None


def service_view(obj: Any) -> ServiceView | None:
    meta, spec = _mapping(obj, "metadata"), _mapping(obj, "spec")
    uid, name = _text(meta, "uid"), _text(meta, "name")
    if not (uid and name):
        return None
    tags = _mapping(meta, "labels")
    return ServiceView(
        name=name,
        uid=uid,
        resource_version=_text(meta, "resourceVersion"),
        owner_uid=_controller_uid(meta),
        pool=_text(tags, labels.POOL) or None,
        traffic_class=_text(tags, labels.TRAFFIC_CLASS) or None,
        selector={str(key): str(value) for key, value in _mapping(spec, "selector").items()},
        ports=tuple(_port(port) for port in _sequence(spec, "ports") if isinstance(port, Mapping)),
        class_removed=_time(_mapping(meta, "annotations").get(labels.CLASS_REMOVED)),
        deleting=bool(meta.get("deletionTimestamp")),
        orphan=tags.get(labels.MANAGED_BY) == labels.MANAGER and not _sequence(meta, "ownerReferences"),
    )


def _port(port: Mapping[str, Any]) -> ServicePort:
    number = _int(port.get("port"), 0)
    target = _text(port, "targetPort") or _int(port.get("targetPort"), number)
    return ServicePort(_text(port, "name"), number, target, _text(port, "protocol") or "TCP")


def slice_record(obj: Any) -> SliceRecord | None:
    meta = _mapping(obj, "metadata")
    uid, name, namespace = _text(meta, "uid"), _text(meta, "name"), _text(meta, "namespace")
    pool = _text(_mapping(meta, "labels"), labels.POOL)
    if not (uid and name and namespace and pool):
        return None
    ready = set()
    for endpoint in _sequence(obj, "endpoints"):
        # The API says that an absent `ready` is to be read as true.
        if isinstance(endpoint, Mapping) and _mapping(endpoint, "conditions").get("ready") in (None, True):
            ready.add(_text(_mapping(endpoint, "targetRef"), "uid"))
    return SliceRecord(namespace, name, uid, _text(meta, "resourceVersion"), pool, frozenset(ready - {""}))


def node_record(obj: Any) -> NodeRecord | None:
    meta = _mapping(obj, "metadata")
    uid, name = _text(meta, "uid"), _text(meta, "name")
    if not (uid and name):
        return None
    taints = {_text(taint, "key") for taint in _sequence(_mapping(obj, "spec"), "taints")}
    ready = _condition(_mapping(obj, "status"), "Ready").get("status")
    lost = ready == "Unknown" or not taints.isdisjoint(
        {"node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service"}
    )
    return NodeRecord(name, uid, lost)


def identity(obj: Any) -> Identity | None:
    meta = _mapping(obj, "metadata")
    uid, name = _text(meta, "uid"), _text(meta, "name")
    if not (uid and name):
        return None
    return Identity(_text(meta, "namespace"), name, uid, _text(meta, "resourceVersion"))


def _mapping(obj: Any, key: str) -> Mapping[str, Any]:
    value = obj.get(key) if isinstance(obj, Mapping) else None
    return value if isinstance(value, Mapping) else _EMPTY


def _sequence(obj: Any, key: str) -> list[Any]:
    value = obj.get(key) if isinstance(obj, Mapping) else None
    return value if isinstance(value, list) else []


def _text(obj: Any, key: str) -> str:
    value = obj.get(key) if isinstance(obj, Mapping) else None
    return value if isinstance(value, str) else ""


def _int(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _digits(value: Any) -> int | None:
    plain = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9
    return int(value) if plain else None


def _slot(value: Any) -> int | None:
    slot = _digits(value)
    return slot if slot is not None and slot <= MAX_SLOT and str(slot) == value else None


def _time(value: Any) -> float | None:
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for condition in _sequence(status, "conditions"):
        if isinstance(condition, Mapping) and condition.get("type") == kind:
            return condition
    return _EMPTY


def _unschedulable(scheduled: Mapping[str, Any]) -> str | None:
    if scheduled.get("status") != "False":
        return None
    return _text(scheduled, "message")[:512] or _text(scheduled, "reason")[:128] or "Unschedulable"


def _controller_uid(meta: Mapping[str, Any]) -> str | None:
    for owner in _sequence(meta, "ownerReferences"):
        if isinstance(owner, Mapping) and owner.get("controller") is True:
            return _text(owner, "uid") or None
    return None


def _worker_config(document: Any) -> tuple[WorkerConfig | None, str | None]:
    if document is None:
        return None, None
    try:
        return WorkerConfig.parse(str(document)), None
    except ContractError as error:
        return None, str(error)[:512]


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    keys = ("initContainerStatuses", "containerStatuses")
    return [one for key in keys for one in _sequence(status, key) if isinstance(one, Mapping)]


def _waiting(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(container, "state"), "waiting")


def _trouble(containers: list[Mapping[str, Any]]) -> tuple[str | None, str | None]:
    """The reason that tells most of why the pod doesn't start, and what more is known of it."""
    waiting = [one for one in containers if _text(_waiting(one), "reason")]
    # Containers that only await their turn say nothing about why the pod doesn't start.
    telling = [one for one in waiting if _text(_waiting(one), "reason") not in _AWAITING_TURN]
    ended = [one for one in containers if _mapping(_mapping(one, "lastState"), "terminated")]
    source = next(iter(telling or ended), None)
    first = next(iter(telling or waiting), None)
    reason = None if first is None else _text(_waiting(first), "reason")
    return reason, None if source is None else _explanation(source)


def _explanation(container: Mapping[str, Any]) -> str | None:
    """How the container ended; the kubelet's message where it never ran."""
    last = _mapping(_mapping(container, "lastState"), "terminated")
    if last:
        return f"{_text(last, 'reason')[:128] or 'ended'}, exit code {_int(last.get('exitCode'), -1)}"
    return _text(_waiting(container), "message")[:512] or None
