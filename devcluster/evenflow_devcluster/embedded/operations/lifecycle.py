"""What the server's own small controllers do: namespaces and definitions that terminate, default service
accounts, old Events."""

from collections.abc import Callable
from datetime import timedelta

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.jsonvalues import Clock, timestamp
from evenflow_devcluster.embedded.kinds.definitions import CRDS
from evenflow_devcluster.embedded.kinds.registry import Registry
from evenflow_devcluster.embedded.operations.caller import Caller
from evenflow_devcluster.embedded.operations.deletion import Deleter
from evenflow_devcluster.embedded.operations.writes import Writer
from evenflow_devcluster.embedded.store.memory import Store, key_of

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
EVENT_LIFETIME = timedelta(hours=1)
SYSTEM = Caller(manager="kube-controller-manager")


class Lifecycle:
    """Acts on committed writes, in the writer's stack."""

    def __init__(self, store: Store, registry: Registry, writer: Writer, deleter: Deleter, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._writer = writer
        self._deleter = deleter
        self._clock = clock
        self._next_expiry = clock()

    def start(self) -> Callable[[], None]:
        unsubscribe = self._store.subscribe(self._receive)
        namespaces = self._registry.builtin("namespaces")
        for name in SYSTEM_NAMESPACES:
            obj = self._writer.prepare(namespaces, "", {"metadata": {"name": name}}, SYSTEM)
            self._writer.insert(namespaces, obj, SYSTEM)
        return unsubscribe

    def _receive(self, event: StoreEvent) -> None:
        metadata = event.object["metadata"]
        if event.resource == "events" and event.type == "ADDED":
            self._expire_events()
            return
        terminating = "deletionTimestamp" in metadata
        if event.resource == "namespaces":
            if event.type == "ADDED":
                self._default_account(metadata["name"])
            elif event.type == "MODIFIED" and terminating:
                self._deleter.purge_namespace(metadata["name"])
        elif event.resource == CRDS:
            if event.type == "MODIFIED" and terminating:
                self._deleter.purge_definition(metadata["name"])
        elif event.type == "DELETED":
            self._object_gone(event.resource, metadata.get("namespace"))

    def _expire_events(self) -> None:
        """As the real server, which keeps Events for an hour; looked at once a minute, when a new one comes."""
        now = self._clock()
        if now < self._next_expiry:
            return
        self._next_expiry = now + timedelta(minutes=1)
        oldest = timestamp(now - EVENT_LIFETIME)
        for record in list(self._store.records("events")):
            if record.object["metadata"]["creationTimestamp"] < oldest:
                self._store.remove("events", key_of(record.object))

    def _object_gone(self, resource: str, namespace: str | None) -> None:
        if namespace:
            space = self._store.get("namespaces", ("", namespace))
            if space is not None and "deletionTimestamp" in space.object["metadata"]:
                self._deleter.purge_namespace(namespace)
        definition = self._store.get(CRDS, ("", resource))
        if definition is not None and "deletionTimestamp" in definition.object["metadata"]:
            self._deleter.purge_definition(resource)

    def _default_account(self, namespace: str) -> None:
        accounts = self._registry.builtin("serviceaccounts")
        try:
            obj = self._writer.prepare(accounts, namespace, {"metadata": {"name": "default"}}, SYSTEM)
            self._writer.insert(accounts, obj, SYSTEM)
        except StatusError as error:
            if error.code not in (403, 404, 409):  # the namespace went away again, or somebody was faster
                raise
