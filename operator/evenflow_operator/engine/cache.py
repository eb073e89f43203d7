"""What the watches have shown, and what our own writes answered: the one place that decisions read from.

Fed in any order by events, answers and LISTs, so every entry carries its resourceVersion and older news never win.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evenflow_operator.core.snapshot import PodView, ServiceView
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.ports import (
    Identity,
    Key,
    Kind,
    NodeRecord,
    PodRecord,
    PoolRecord,
    Record,
    ServiceRecord,
    SliceRecord,
)

TOMBSTONES = 20_000
"""Objects that are gone, with their last resourceVersion: an answer that arrives late must not bring one back."""

Listener = Callable[[Key], None]


@dataclass(slots=True)
class _Entry:
    record: Record
    key: Key | None
    """The pool that the object belongs to."""
    order: int
    """When it was last written, in the cache's own count."""


@dataclass(slots=True)
class _Members:
    pods: dict[str, PodView] = field(default_factory=dict)
    services: dict[str, ServiceView] = field(default_factory=dict)
    slices: dict[str, frozenset[str]] = field(default_factory=dict)


class Cache:
    """`listener` is called with the key of every pool that a change concerns."""

    def __init__(self, expectations: Expectations, listener: Listener) -> None:
        self._expectations = expectations
        self._listener = listener
        self._entries: dict[Kind, dict[str, _Entry]] = {
            "pools": {},
            "pods": {},
            "services": {},
            "endpointslices": {},
            "nodes": {},
        }
        self._pools: dict[Key, PoolRecord] = {}
        self._members: dict[Key, _Members] = {}
        self._foreign: dict[Key, dict[str, ServiceView]] = {}
        self._tombstones: OrderedDict[str, str] = OrderedDict()
        self._gone_nodes: OrderedDict[str, None] = OrderedDict()
        self._nodes: tuple[frozenset[str], frozenset[str]] | None = None
        """Names of nodes, alive and lost, until one changes: every pass of every pool asks for them."""
        self._order = 0
        self.synced = False
        """True once the first complete lists of pools and pods have been seen: nothing is decided before."""

    # --- what the watches and our own writes say -----------------------------------------------------------------

    def put(self, record: Record) -> None:
        kind, uid, version = _identify(record)
        if uid in self._tombstones and not _newer(version, self._tombstones[uid]):
            return
        entries = self._entries[kind]
        known = entries.get(uid)
        if known is not None and _newer(_identify(known.record)[2], version):
            return
        self._order += 1
        if known is not None and known.record == record:
            known.order = self._order
            return
        key = _key(record)
        if known is not None and known.key != key:
            self._detach(known)
            self._tell(known.key)
        entries[uid] = _Entry(record, key, self._order)
        self._attach(record, key)
        if known is None or not _same_but_version(known.record, record):
            self._tell(key)
        if isinstance(record, NodeRecord) and (record.lost or known is not None):
            self._tell_pods_on(record.name)

    def put_pod(self, key: Key, view: PodView) -> None:
        """The answer to an own write."""
        self.put(PodRecord(key[0], key[1], view))

    def drop(self, kind: Kind, uid: str, version: str = "") -> None:
        """The object no longer exists, or no longer carries the label that we watch (it may come back: newer)."""
        entry = self._entries[kind].pop(uid, None)
        last = _identify(entry.record)[2] if entry is not None else ""
        self._tombstones[uid] = last if _newer(last, version) or not version else version
        while len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)
        if entry is not None:
            self._detach(entry)
            self._tell(entry.key)
            if isinstance(entry.record, NodeRecord):
                self._nodes = None
                self._gone_nodes[entry.record.name] = None
                while len(self._gone_nodes) > TOMBSTONES:
                    self._gone_nodes.popitem(last=False)
                self._tell_pods_on(entry.record.name)

    def mark(self) -> int:
        """Take this before a LIST starts, and hand it to `reconcile_list`."""
        return self._order

    def lags(self, kind: Kind, listed: Sequence[Identity], mark: int) -> bool:
        """Whether something that a LIST showed, taken after `mark`, still isn't known here, or is known no longer."""
        entries = self._entries[kind]
        uids = {one.uid for one in listed}
        if any(uid not in uids and entry.order <= mark for uid, entry in entries.items()):
            return True
        for one in listed:
            known = entries.get(one.uid)
            if known is not None:
                if kind != "nodes" and _newer(one.resource_version, _identify(known.record)[2]):
                    return True
            elif one.uid not in self._tombstones or _newer(one.resource_version, self._tombstones[one.uid]):
                return True
        return False

    def reconcile_list(
        self, kind: Kind, records: Iterable[Record], mark: int, *, scope: Callable[[Record], bool] | None = None
    ) -> int:
        """Make the cache agree with a complete LIST of `scope`; what came after `mark` wins. Returns the corrections.

        Objects that the watch has not shown yet count as corrections too: callers judge only what lasts.
        """
        listed = {_identify(record)[1]: record for record in records}
        corrections = 0
        for uid in [
            uid
            for uid, entry in self._entries[kind].items()
            if uid not in listed and entry.order <= mark and (scope is None or scope(entry.record))
        ]:
            self.drop(kind, uid)
            corrections += 1
        for uid, record in listed.items():
            before = self._entries[kind].get(uid)
            self.put(record)
            corrections += self._entries[kind].get(uid) is not before
        return corrections

    def replace_pods(self, key: Key, views: Iterable[PodView], mark: int) -> None:
        """A live LIST of one pool's pods."""
        records = [PodRecord(key[0], key[1], view) for view in views]
        self.reconcile_list("pods", records, mark, scope=lambda record: _key(record) == key)

    def set_foreign_service(self, key: Key, name: str, view: ServiceView | None) -> None:
        """A Service of somebody else that stands on a name this pool needs; None when it is gone."""
        foreign = self._foreign.setdefault(key, {})
        if view is None:
            foreign.pop(name, None)
        else:
            foreign[name] = view
        if not foreign:
            del self._foreign[key]

    # --- what decisions read -------------------------------------------------------------------------------------

    def pool_keys(self) -> list[Key]:
        return list(self._pools)

    def pool(self, key: Key) -> PoolRecord | None:
        return self._pools.get(key)

    def pods(self, key: Key) -> tuple[PodView, ...]:
        members = self._members.get(key)
        return tuple(members.pods.values()) if members else ()

    def pod(self, key: Key, uid: str) -> PodView | None:
        members = self._members.get(key)
        return members.pods.get(uid) if members else None

    def services(self, key: Key) -> tuple[ServiceView, ...]:
        members = self._members.get(key)
        return (*(members.services.values() if members else ()), *self._foreign.get(key, {}).values())

    def foreign_services(self, key: Key) -> list[str]:
        return list(self._foreign.get(key, ()))

    def routable(self, key: Key) -> frozenset[str]:
        members = self._members.get(key)
        return frozenset().union(*members.slices.values()) if members else frozenset()

    def lost_nodes(self, key: Key) -> frozenset[str]:
        """Nodes of this pool's pods that are silent, or that went. One never seen may be newer than the watch of nodes.

        Empty where nodes aren't watched (namespaced mode), and when all of them are silent: then it is the control
        plane that doesn't hear them, and there is no place for a replacement.
        """
        alive, lost = self._nodes = self._nodes or self._node_names()
        if not alive:
            return frozenset()
        return frozenset(pod.node for pod in self.pods(key) if pod.node in lost and pod.node not in alive)

    def _node_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Of nodes that are heard, and of those that are silent or went."""
        nodes = [entry.record for entry in self._entries["nodes"].values() if isinstance(entry.record, NodeRecord)]
        alive = frozenset(node.name for node in nodes if not node.lost)
        return alive, frozenset(node.name for node in nodes if node.lost) | self._gone_nodes.keys()

    def counts(self) -> Mapping[Kind, int]:
        return {kind: len(entries) for kind, entries in self._entries.items()}

    # --- inside --------------------------------------------------------------------------------------------------

    def _attach(self, record: Record, key: Key | None) -> None:
        if isinstance(record, PoolRecord):
            self._pools[record.key] = record
        elif isinstance(record, NodeRecord):
            self._nodes = None
        elif key is None:
            return
        else:
            members = self._members.setdefault(key, _Members())
            if isinstance(record, PodRecord):
                members.pods[record.view.uid] = record.view
                self._expectations.seen(key, record.view)
            elif isinstance(record, ServiceRecord):
                members.services[record.view.uid] = record.view
                self.set_foreign_service(key, record.view.name, None)
            else:
                members.slices[record.uid] = record.ready

    def _detach(self, entry: _Entry) -> None:
        record, key = entry.record, entry.key
        if isinstance(record, PoolRecord):
            # A pool of the same name may already have taken the place.
            if self._pools.get(record.key, record).uid == record.uid:
                self._pools.pop(record.key, None)
            return
        members = self._members.get(key) if key is not None else None
        if members is None or key is None:
            return
        if isinstance(record, PodRecord):
            members.pods.pop(record.view.uid, None)
            self._expectations.gone(key, record.view.name, record.view.uid)
        elif isinstance(record, ServiceRecord):
            members.services.pop(record.view.uid, None)
        elif isinstance(record, SliceRecord):
            members.slices.pop(record.uid, None)
        if not (members.pods or members.services or members.slices):
            del self._members[key]

    def _tell_pods_on(self, node: str) -> None:
        for key, members in list(self._members.items()):
            if any(pod.node == node for pod in members.pods.values()):
                self._tell(key)

    def _tell(self, key: Key | None) -> None:
        if key is not None:
            self._listener(key)


def _identify(record: Record) -> tuple[Kind, str, str]:
    if isinstance(record, PoolRecord):
        return "pools", record.uid, record.resource_version
    if isinstance(record, PodRecord):
        return "pods", record.view.uid, record.view.resource_version
    if isinstance(record, ServiceRecord):
        return "services", record.view.uid, record.view.resource_version
    if isinstance(record, SliceRecord):
        return "endpointslices", record.uid, record.resource_version
    return "nodes", record.uid, ""


def _key(record: Record) -> Key | None:
    if isinstance(record, PoolRecord):
        return record.key
    if isinstance(record, PodRecord | SliceRecord):
        return record.namespace, record.pool
    if isinstance(record, ServiceRecord):
        return (record.namespace, record.view.pool) if record.view.pool else None
    return None


def _same_but_version(before: Record, after: Record) -> bool:
    """Heartbeats and writes of fields that we don't keep: nothing to decide about."""
    if not (isinstance(before, PodRecord) and isinstance(after, PodRecord)):
        return False
    view = replace(before.view, resource_version=after.view.resource_version)
    return before.pool == after.pool and view == after.view


def _newer(version: str, known: str) -> bool:
    """resourceVersions are comparable integers (KEP-5504); others can't be told apart in age: then False."""
    return version.isdigit() and known.isdigit() and int(version) > int(known)
