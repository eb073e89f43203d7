"""One pass over one pool: gather a snapshot, decide in a thread, check again, act, report.

Level-triggered: a pass looks at everything and remembers nothing that could not be rebuilt.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from evenflow_operator.api.conditions import DecisionReason, DegradedReason
from evenflow_operator.api.enums import DecisionType
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.plan import Command, CreatePod, Decision, DeletePod, Notice, PatchPod, Plan, ScalePool
from evenflow_operator.core.slots.dry_run import answered
from evenflow_operator.core.slots.refill import refused
from evenflow_operator.core.snapshot import PodView, Snapshot
from evenflow_operator.engine.act import Actor, Outcome
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.push import Pusher
from evenflow_operator.engine.readings import Readings
from evenflow_operator.engine.settle import settle_plan
from evenflow_operator.engine.workqueue import Retry, WorkQueue
from evenflow_operator.outages import unless_outage
from evenflow_operator.ports import ApiError, Clock, Cluster, Events, Key, PoolRecord
from evenflow_operator.telemetry import Telemetry

SLOWEST_LOOK_SECONDS = 300.0
"""Every pool is looked at this often even if nothing happens."""
STALE_RETRY_SECONDS = 0.05
FOREIGN_CHECK_SECONDS = 30.0
STATUS_TRIES = 3
CLOCK_STEP_SECONDS = 5.0
"""A clock set back by more makes what is remembered by its times worthless: old samples would count as fresh."""

log = logging.getLogger(__name__)

Decide = Callable[[Snapshot], Plan]
Restore = Callable[[Mapping[str, Any], Sequence[PodView]], PoolMemory]


@dataclass(slots=True)
class _Pool:
    """What the engine keeps of one pool between passes."""

    uid: str
    memory: PoolMemory
    refusals: dict[int, str] = field(default_factory=dict)
    scale_refusal: str | None = None
    foreign_checked_at: float = 0.0
    seen_at: float = 0.0
    """Time of the last pass, by the clock on the wall."""


@dataclass(frozen=True, slots=True)
class Core:
    """The pure part, and the thread that it runs in: one at a time, so that its cache needs no lock."""

    decide: Decide
    restore: Restore
    executor: Executor
    facts: Mapping[str, str] = field(default_factory=dict)


class Reconciler:
    """The work queue's handler."""

    def __init__(
        self,
        *,
        core: Core,
        cluster: Cluster,
        cache: Cache,
        expectations: Expectations,
        readings: Readings,
        actor: Actor,
        pusher: Pusher,
        events: Events,
        queue: WorkQueue[Key],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._cache = cache
        self._expectations = expectations
        self._readings = readings
        self._actor = actor
        self._pusher = pusher
        self._events = events
        self._queue = queue
        self._clock = clock
        self._telemetry = telemetry
        self._pools: dict[Key, _Pool] = {}

    async def __call__(self, key: Key, waited: float) -> None:
        """One pass. Raises Retry when the key must be looked at again."""
        if not self._cache.synced:
            raise Retry("the first lists of pools and pods are not complete", after=0.1)
        started = self._clock.monotonic()
        try:
            await self._pass(key)
        except ApiError as error:
            self._telemetry.reconcile_failed("api")
            log.warning("pool %s/%s: %s; trying again", *key, error, extra=unless_outage(error))
            raise Retry(str(error), error.retry_after) from error
        except Retry:
            raise
        except Exception:
            self._telemetry.reconcile_failed("bug")
            log.exception("pool %s/%s: pass failed; trying again", *key)
            raise
        finally:
            self._telemetry.reconciled(self._clock.monotonic() - started, waited)

    async def _pass(self, key: Key) -> None:
        record = self._cache.pool(key)
        if record is None or record.deleting:
            # The children go by their ownerReferences.
            self._forget(key)
            return
        pool = await self._pool(record)
        await self._settle(key)
        snapshot = await self._snapshot(record, pool)
        plan = await asyncio.get_running_loop().run_in_executor(self._core.executor, self._core.decide, snapshot)
        current = self._cache.pool(key)
        if current is None or (current.uid, current.generation, current.deleting) != (
            record.uid,
            record.generation,
            False,
        ):
            raise Retry("the pool changed while it was decided about", after=0.0)
        outcome = await self._actor.act(record, plan.commands)
        self._note_refusals(pool, plan, outcome)
        done = {id(command) for command in outcome.done}
        undone = [command for command in plan.commands if id(command) not in done]
        memory, status, decisions = settle_plan(plan, pool.memory, undone)
        memory = refused(memory, _refused_creates(outcome), snapshot.now)
        pool.memory = answered(memory, outcome.answers, snapshot.now)
        self._report(record, decisions, outcome)
        self._tell(record, plan.notices)
        self._telemetry.scaling(key, plan.scaling)
        if status is not None:
            await self._write_status(record, pool, status)
        self._again(key, plan, outcome)

    async def _pool(self, record: PoolRecord) -> _Pool:
        known = self._pools.get(record.key)
        now = self._clock.now()
        if known is not None and known.uid == record.uid and now >= known.seen_at - CLOCK_STEP_SECONDS:
            known.seen_at = now
            return known
        if known is not None and known.uid == record.uid:
            log.warning("pool %s/%s: the clock was set back; what is known is read again", *record.key)
            self._readings.forget(record.key)
        elif known is not None:
            self._forget(record.key)
        live = await self._cluster.get_pool(record.namespace, record.name)
        if live is None or live[0].uid != record.uid:
            raise Retry("the pool was deleted or made again")
        memory = self._core.restore(live[1], self._cache.pods(record.key))
        known = self._pools[record.key] = _Pool(record.uid, memory, seen_at=now)
        return known

    async def _settle(self, key: Key) -> None:
        """An own write that never showed: look at what is really there, assume nothing."""
        if not self._expectations.overdue(key):
            return
        mark = self._cache.mark()
        views = await self._cluster.list_pods(*key)
        self._cache.replace_pods(key, views, mark)
        self._expectations.reset(key)

    async def _snapshot(self, record: PoolRecord, pool: _Pool) -> Snapshot:
        key = record.key
        await self._check_foreign(key, pool)
        pods = self._cache.pods(key)
        self._readings.retain(key, {pod.uid for pod in pods})
        stale_after = record.pool.spec.metrics.stale_after_seconds if record.pool else 90
        filled = {pod.slot for pod in pods if not pod.deleting and pod.owner_uid == record.uid}
        return Snapshot(
            now=self._clock.now(),
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            generation=record.generation,
            pool=record.pool,
            spec_problem=record.problem,
            pods=pods,
            services=self._cache.services(key),
            routable=self._cache.routable(key),
            readings=self._readings.view(key, float(stale_after)),
            memory=pool.memory,
            lost_nodes=self._cache.lost_nodes(key),
            unsettled_slots=self._expectations.unsettled(key),
            metrics_source_problem=self._readings.source_problem(key),
            create_refusals={slot: why for slot, why in pool.refusals.items() if slot not in filled},
            scale_refusal=pool.scale_refusal,
            admin_token_problem=await self._pusher.token_problem(record),
            replica_writers=record.replica_writers,
            extra=self._core.facts,
        )

    async def _check_foreign(self, key: Key, pool: _Pool) -> None:
        """Services of others aren't watched: see from time to time whether the name has become free."""
        names = self._cache.foreign_services(key)
        now = self._clock.monotonic()
        if not names or now - pool.foreign_checked_at < FOREIGN_CHECK_SECONDS:
            return
        pool.foreign_checked_at = now
        for name in names:
            self._cache.set_foreign_service(key, name, await self._cluster.get_service(key[0], name))

    def _note_refusals(self, pool: _Pool, plan: Plan, outcome: Outcome) -> None:
        scaling = [command for command in plan.commands if isinstance(command, ScalePool)]
        if all(command in outcome.done for command in scaling):
            pool.scale_refusal = None
        for command in outcome.done:
            if isinstance(command, CreatePod):
                pool.refusals.pop(command.slot, None)
        for failure in outcome.failures:
            if isinstance(failure.command, CreatePod) and failure.refused:
                pool.refusals[failure.command.slot] = failure.problem
            if isinstance(failure.command, ScalePool) and failure.refused:
                pool.scale_refusal = failure.problem

    def _report(self, record: PoolRecord, decisions: Sequence[Decision], outcome: Outcome) -> None:
        for decision in decisions:
            self._telemetry.decided(decision.type, decision.reason)
            removed = decision.reason == DecisionReason.CLASS_REMOVED
            warning = removed or decision.type in (DecisionType.HOLD, DecisionType.REFUSE)
            level = logging.WARNING if warning else logging.INFO
            log.log(level, "pool %s/%s: %s %s: %s", *record.key, decision.type, decision.reason, decision.message)
            self._events.post(record, warning=warning, reason=decision.reason, message=decision.message)
        for failure in outcome.failures:
            # A pod that is refused shows in Degraded, which tells it.
            if failure.refused and not isinstance(failure.command, CreatePod):
                self._events.post(record, warning=True, reason=_refusal(failure.command), message=failure.problem)

    def _tell(self, record: PoolRecord, notices: Sequence[Notice]) -> None:
        for one in notices:
            level = logging.WARNING if one.warning else logging.INFO
            log.log(level, "pool %s/%s: %s %s: %s", *record.key, one.condition, one.reason, one.message)
            self._events.post(record, warning=one.warning, reason=one.reason, message=one.message)

    async def _write_status(self, record: PoolRecord, pool: _Pool, status: Mapping[str, Any]) -> None:
        for attempt in range(1, STATUS_TRIES + 1):
            try:
                await self._cluster.patch_pool_status(record.namespace, record.name, record.uid, status)
                return
            except ApiError as error:
                if error.not_found or (error.status in (409, 422) and not await self._exists(record)):
                    self._forget(record.key)
                    return
                if attempt == STATUS_TRIES or not (error.transient or error.conflict):
                    pool.memory = pool.memory.status_lost()
                    raise
                await asyncio.sleep(min(error.retry_after or 0.1 * attempt, 1.0))

    async def _exists(self, record: PoolRecord) -> bool:
        live = await self._cluster.get_pool(record.namespace, record.name)
        return live is not None and live[0].uid == record.uid

    def _again(self, key: Key, plan: Plan, outcome: Outcome) -> None:
        if outcome.failures:
            refused = [failure.error for failure in outcome.failures if failure.error is not None]
            after = max((error.retry_after or 0.0 for error in refused), default=0.0) or None
            first = self._queue.failures(key) == 0
            raise Retry(outcome.failures[0].problem, STALE_RETRY_SECONDS if outcome.stale and first else after)
        pauses = [SLOWEST_LOOK_SECONDS, plan.requeue_after, self._expectations.next_deadline(key)]
        self._queue.add_after(key, max(0.02, min(pause for pause in pauses if pause is not None)))

    def _forget(self, key: Key) -> None:
        self._pools.pop(key, None)
        self._telemetry.scaling(key, None)
        self._readings.forget(key)
        self._expectations.reset(key)
        self._queue.forget(key)


def _refused_creates(outcome: Outcome) -> list[CreatePod]:
    return [one.command for one in outcome.failures if one.refused and isinstance(one.command, CreatePod)]


def _refusal(command: Command) -> str:
    """Reason of the Event when the API server said no: why it was tried, where that says more than that it failed."""
    if isinstance(command, DeletePod | ScalePool):
        return command.decision.reason
    patched = isinstance(command, PatchPod)
    return (DegradedReason.CONFIG_NOT_APPLIED if patched else DegradedReason.CREATE_REFUSED).value
