"""Carrying out a plan: every command is checked against the fresh cache first, and carries uid and resourceVersion.

Order: Services, patches (several pods at once), deletes, then creates in growing batches that stop at the first error;
last what may take long and changes nothing, a dry run.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenflow_contract import labels
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.core.plan import (
    Command,
    CreatePod,
    DeletePod,
    DeleteService,
    DryRunPod,
    PatchPod,
    PushConfig,
    PutService,
    ScalePool,
)
from evenflow_operator.core.slots.dry_run import Answer
from evenflow_operator.core.snapshot import PodView, ServiceView
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.dry_run import ask
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.push import Pusher
from evenflow_operator.outages import unless_outage
from evenflow_operator.ports import NAME_CONFLICT, ApiError, Cluster, PoolRecord, ServiceRecord

CONCURRENT_WRITES = 16
LARGEST_BATCH = 64
LONGEST_SECONDS = 120.0
"""No command is begun later than that: what is left is decided about again. A thousand patches, each held up by a slow
webhook, must not look like a pass that is stuck."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """`stale`: the object isn't the one that was decided on, so decide again; nothing is wrong with the cluster."""

    command: Command
    problem: str
    stale: bool
    error: ApiError | None = None

    @property
    def refused(self) -> bool:
        """The API server understood and said no: quota, admission, permissions, validation."""
        return self.error is not None and not self.stale and self.error.certain and not self.error.transient


@dataclass(slots=True)
class Outcome:
    done: list[Command] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    until: float = math.inf
    """When no further command is begun, by the loop's clock."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def stale(self) -> bool:
        return bool(self.failures) and all(failure.stale for failure in self.failures)


class Stale(Exception):
    """What was decided on has changed."""


class Actor:
    """Everything that it writes lies in the pool's namespace, and only while `leading` says so: a process that was
    stopped for a while wakes up in the middle of a plan, before it notices that it has lost the lease."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        expectations: Expectations,
        pusher: Pusher,
        leading: Callable[[], bool] = lambda: True,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._expectations = expectations
        self._pusher = pusher
        self._leading = leading

    async def act(self, record: PoolRecord, commands: Sequence[Command]) -> Outcome:
        """Never raises for a single command: what could not be done stands in the outcome."""
        outcome = Outcome(until=asyncio.get_running_loop().time() + LONGEST_SECONDS)
        services = [command for command in commands if isinstance(command, PutService | DeleteService)]
        patches = [command for command in commands if isinstance(command, PatchPod)]
        deletes = [command for command in commands if isinstance(command, DeletePod)]
        creates = [command for command in commands if isinstance(command, CreatePod)]
        for command in commands:
            if isinstance(command, PushConfig):
                self._pusher.submit(record, command.uid, command.ip, command.config)
                outcome.done.append(command)
        for group in (services, patches, deletes):
            await self._all(record, group, outcome)
        await self._batches(record, creates, outcome)
        await self._all(record, [command for command in commands if isinstance(command, ScalePool)], outcome)
        for command in commands:
            if isinstance(command, DryRunPod):
                outcome.answers.append(await ask(self._cluster, record, command))
                outcome.done.append(command)
        return outcome

    async def _all(self, record: PoolRecord, commands: Iterable[Command], outcome: Outcome) -> bool:
        """Whether every one succeeded."""
        slots = asyncio.Semaphore(CONCURRENT_WRITES)

        async def one(command: Command) -> Failure | None:
            async with slots:
                if asyncio.get_running_loop().time() >= outcome.until:
                    return Failure(command, f"{_name(command)}: the pass takes too long", stale=True)
                return await self._try(record, command)

        listed = list(commands)
        results = await asyncio.gather(*(one(command) for command in listed))
        outcome.done += [command for command, failure in zip(listed, results, strict=True) if failure is None]
        failures = [failure for failure in results if failure is not None]
        outcome.failures += failures
        return not failures

    async def _batches(self, record: PoolRecord, creates: Sequence[CreatePod], outcome: Outcome) -> None:
        """1, 2, 4, …: a quota or a bad template costs one refused request, not one per slot."""
        start, size = 0, 1
        while start < len(creates):
            if not await self._all(record, creates[start : start + size], outcome):
                return
            start, size = start + size, min(2 * size, LARGEST_BATCH)

    async def _try(self, record: PoolRecord, command: Command) -> Failure | None:
        try:
            await self._do(record, command)
        except Stale as change:
            return Failure(command, str(change), stale=True)
        except ApiError as error:
            # A uid that differs is refused as 409 or as 422, depending on the verb.
            foreign = error.conflict or (error.status == 422 and "uid" in error.message.lower())
            stale = foreign or error.not_found or error.namespace_terminating
            if not stale:
                log.warning("pool %s/%s: %s: %s", *record.key, _name(command), error, extra=unless_outage(error))
            return Failure(command, f"{_name(command)}: {error}", stale, error)
        return None

    async def _do(self, record: PoolRecord, command: Command) -> None:
        if not self._leading():
            raise Stale("somebody else may lead by now")
        current = self._cache.pool(record.key)
        if current is None or current.uid != record.uid or current.deleting:
            raise Stale("the pool is gone")
        if isinstance(command, CreatePod):
            await self._create_pod(record, command)
        elif isinstance(command, DeletePod):
            await self._delete_pod(record, command)
        elif isinstance(command, PatchPod):
            await self._patch_pod(record, command)
        elif isinstance(command, PutService):
            await self._put_service(record, command)
        elif isinstance(command, DeleteService):
            await self._delete_service(record, command)
        elif isinstance(command, ScalePool):
            await self._scale_pool(record, command)

    # --- pods ----------------------------------------------------------------------------------------------------

    async def _create_pod(self, record: PoolRecord, command: CreatePod) -> None:
        name = str(command.manifest["metadata"]["name"])
        if self._filled(record, command.slot):
            raise Stale(f"slot {command.slot} is filled by now")
        self._expectations.create(record.key, command.slot, name)
        try:
            view = await self._cluster.create_pod(record.namespace, command.manifest)
        except ApiError as error:
            if not error.already_exists:
                self._settle("create", record, name, error)
                raise
            # A second leader, a restart or a lost answer: the same name means the same inputs, if it is ours.
            view = await self._verified(record, command.slot, name)
        self._cache.put_pod(record.key, view)

    def _filled(self, record: PoolRecord, slot: int) -> bool:
        lost = self._cache.lost_nodes(record.key)
        return any(
            pod.slot == slot and pod.owner_uid == record.uid and not pod.deleting and pod.node not in lost
            for pod in self._cache.pods(record.key)
            if pod.phase not in ("Failed", "Succeeded")
        )

    async def _verified(self, record: PoolRecord, slot: int, name: str) -> PodView:
        try:
            existing = await self._cluster.get_pod(record.namespace, name)
        except ApiError:
            self._expectations.uncertain(record.key, "create", name)
            raise
        if existing is not None and existing.view.owner_uid == record.uid:
            if (existing.pool, existing.view.slot) == (record.name, slot):
                return existing.view
            problem = f"pod {name} was set aside: its labels no longer say slot {slot}; delete it when you are done"
        else:
            problem = f"pod {name} belongs to somebody else; delete or rename it"
        self._expectations.settled(record.key, "create", name)
        if existing is None:
            raise Stale(f"pod {name} came and went")
        raise ApiError(409, NAME_CONFLICT, problem)

    async def _delete_pod(self, record: PoolRecord, command: DeletePod) -> None:
        pod = self._cache.pod(record.key, command.uid)
        if pod is None or pod.deleting or pod.owner_uid not in (record.uid, None):
            raise Stale(f"pod {command.name} is gone or going")
        if command.resource_version is not None and pod.resource_version != command.resource_version:
            raise Stale(f"pod {command.name} has changed")
        lost = command.decision.reason == DecisionReason.NODE_LOST
        if lost and pod.node not in self._cache.lost_nodes(record.key):
            raise Stale(f"node {pod.node} of pod {command.name} is back")
        self._expectations.delete(record.key, command.slot, command.name, command.uid)
        try:
            left = await self._cluster.delete_pod(record.namespace, command.name, command.uid, command.resource_version)
        except ApiError as error:
            if error.not_found:
                self._cache.drop("pods", command.uid)
                return
            self._settle("delete", record, command.name, error)
            raise
        if left is not None and left.deleting:
            self._cache.put_pod(record.key, left)

    async def _patch_pod(self, record: PoolRecord, command: PatchPod) -> None:
        pod = self._cache.pod(record.key, command.uid)
        if pod is None or pod.resource_version != command.resource_version:
            raise Stale(f"pod {command.name} has changed")
        if command.adopt:
            await self._check_adoption(record)
        self._expectations.patch(record.key, command.slot, command.name, command.uid, command.resource_version)
        try:
            view = await self._cluster.patch_pod(
                record.namespace, command.name, pod_patch(record, command), strategic=command.adopt
            )
        except ApiError as error:
            self._settle("patch", record, command.name, error)
            raise
        self._cache.put_pod(record.key, view)
        self._expectations.settled(record.key, "patch", command.name)
        if command.config is not None and view.ip and view.phase == "Running":
            self._pusher.submit(record, view.uid, view.ip, command.config)

    async def _check_adoption(self, record: PoolRecord) -> None:
        """As ReplicaSets do: a cached pool may be one that is being deleted right now."""
        live = await self._cluster.get_pool(record.namespace, record.name)
        if live is None or live[0].uid != record.uid or live[0].deleting:
            raise Stale("the pool is being deleted: nothing is adopted")

    def _settle(self, what: str, record: PoolRecord, name: str, error: ApiError) -> None:
        if error.certain:
            self._expectations.settled(record.key, what, name)
        else:
            self._expectations.uncertain(record.key, what, name)

    # --- the pool ------------------------------------------------------------------------------------------------

    async def _scale_pool(self, record: PoolRecord, command: ScalePool) -> None:
        """Nobody else may have written the pool since: not the user, and no other autoscaler."""
        await self._cluster.scale_pool(record.namespace, record.name, command.replicas, record.resource_version)

    # --- services ------------------------------------------------------------------------------------------------

    async def _put_service(self, record: PoolRecord, command: PutService) -> None:
        name = str(command.manifest["metadata"]["name"])
        if command.uid is not None:
            current = next((view for view in self._cache.services(record.key) if view.uid == command.uid), None)
            if current is None or current.resource_version != command.resource_version:
                raise Stale(f"Service {name} has changed")
            if current.orphan:
                await self._check_adoption(record)
            view = await self._cluster.patch_service(record.namespace, name, service_patch(command, current))
        else:
            try:
                view = await self._cluster.create_service(record.namespace, command.manifest)
            except ApiError as error:
                if not error.already_exists:
                    raise
                existing = await self._cluster.get_service(record.namespace, name)
                if existing is None:
                    raise Stale(f"Service {name} came and went") from None
                if existing.owner_uid != record.uid:
                    self._cache.set_foreign_service(record.key, name, existing)
                    raise Stale(f"Service {name} belongs to somebody else") from None
                # Ours, but not seen by the watch: a lost answer, or somebody took our label off.
                known = replace(command, uid=existing.uid, resource_version=existing.resource_version)
                view = await self._cluster.patch_service(record.namespace, name, service_patch(known, existing))
        self._cache.put(ServiceRecord(record.namespace, view))

    async def _delete_service(self, record: PoolRecord, command: DeleteService) -> None:
        try:
            await self._cluster.delete_service(record.namespace, command.name, command.uid)
        except ApiError as error:
            if not error.not_found:
                raise
        self._cache.drop("services", command.uid)


def pod_patch(record: PoolRecord, command: PatchPod) -> Mapping[str, Any]:
    """Merge patch (strategic for an adoption: it must not drop other owners) of exactly the pod decided on."""
    annotations = dict(command.annotations)
    if command.config is not None:
        annotations[labels.WORKER_CONFIG] = command.config.to_json()
    metadata: dict[str, Any] = {"uid": command.uid, "resourceVersion": command.resource_version}
    if command.labels:
        metadata["labels"] = dict(command.labels)
    if annotations:
        metadata["annotations"] = annotations
    if command.adopt:
        metadata["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": record.name,
                "uid": record.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return {"metadata": metadata}


def service_patch(command: PutService, current: ServiceView) -> Mapping[str, Any]:
    """Merge patch that also removes what the selector must not have; a PUT would reset fields that others own."""
    manifest = command.manifest
    wanted = dict(manifest["spec"]["selector"])
    selector: dict[str, str | None] = {key: None for key in current.selector if key not in wanted}
    selector.update(wanted)
    metadata: dict[str, Any] = {
        "uid": command.uid,
        "resourceVersion": command.resource_version,
        "labels": dict(manifest["metadata"].get("labels") or {}),
        "annotations": {labels.CLASS_REMOVED: None, **(manifest["metadata"].get("annotations") or {})},
    }
    if current.orphan:
        metadata["ownerReferences"] = list(manifest["metadata"]["ownerReferences"])
    return {"metadata": metadata, "spec": {"selector": selector, "ports": list(manifest["spec"]["ports"])}}


def _name(command: Command) -> str:
    if isinstance(command, CreatePod | DryRunPod):
        return f"create pod {command.manifest['metadata']['name']}"
    if isinstance(command, PutService):
        return f"put Service {command.manifest['metadata']['name']}"
    if isinstance(command, ScalePool):
        return f"scale to {command.replicas}"
    verb = {DeletePod: "delete pod", PatchPod: "patch pod", DeleteService: "delete Service"}
    return f"{verb.get(type(command), 'push to pod')} {command.name}"
