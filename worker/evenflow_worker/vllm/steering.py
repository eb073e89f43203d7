"""The worker's decisions for one vLLM scheduler: order, admission, victims. No vLLM import, so it is tested without.

Everything here runs in the engine's thread, except `offer` and `events`. Requests are vLLM's; what is read of them:
num_prompt_tokens, num_tokens, num_computed_tokens, num_output_tokens, max_tokens, num_preemptions, sampling_params.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from evenflow_contract.environment import TRAFFIC_CLASS_ARG
from evenflow_contract.names import DEFAULT_CLASS
from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.volume import proxy_block_volume
from evenflow_worker.control.classes import route
from evenflow_worker.predict.guarded import GuardedPredictor
from evenflow_worker.scheduling.bucket import AdmissionBucket
from evenflow_worker.scheduling.keys import FRONT, HOLDING, LARGEST, Ordering, QueueKey, predicted_volume
from evenflow_worker.scheduling.queue import WaitingQueue
from evenflow_worker.scheduling.victims import sort_running
from evenflow_worker.vllm.events import Completion, Counters, Event, HookFailed, Misrouted
from evenflow_worker.vllm.record import ATTRIBUTE, Record, progress, record_of, victim_volume

log = logging.getLogger(__name__)

MAX_EVENTS: Final = 100_000
CACHED_LOOKUPS_PER_REKEY: Final = 512
"""Prefix-cache look-ups cost some microseconds each; a longer queue keeps what was found at enqueue."""
HOLD_AFTER_AGINGS: Final = 3.0
"""A request that the engine keeps skipping is due after this many times agingSeconds."""


class Steering:
    """`queue` is filled here and by vLLM; `cached_tokens(request)` tells how many of a request's tokens lie in the
    prefix cache now; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        queue: WaitingQueue[Any],
        *,
        capacity_tokens: int,
        block_size: int,
        max_model_len: int,
        cached_tokens: Callable[[Any], int],
        clock: Callable[[], float],
    ) -> None:
        self.config = WorkerConfig()
        self.counters = Counters()
        self.queue = queue
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.predictor = GuardedPredictor(None, self.counters.predictor_fallbacks, models_beside=True)
        self.bucket = AdmissionBucket(capacity_tokens)
        self.hold_back = False
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._cached_tokens = cached_tokens
        self.clock = clock
        # Of any number that an idle engine is offered only the newest counts.
        self.offered: deque[WorkerConfig] = deque(maxlen=1)
        """The config that waits for the engine's next scheduling pass."""
        self._logged: set[str] = set()
        self._added = 0
        self._evicted = 0
        self._steps = 0
        self._rekeyed_s = clock()
        self._rekeyed_step = 0
        self._recomputing: dict[Any, None] = {}
        self._ordering = Ordering.from_config(self.config, max_model_len)
        self.apply(self.config)

    # ------------------------------------------------------------------ control

    def offer(self, config: WorkerConfig) -> None:
        """Hand a config over from another thread; it is in force before the next scheduling decision."""
        self.offered.append(config)

    def take_offered(self) -> bool:
        """In the engine's thread: put the newest offered config in force. False if there was none."""
        if not self.offered:
            return False
        self.apply(self.offered.popleft())
        return True

    def apply(self, config: WorkerConfig) -> None:
        """Take a config live: the queue is re-keyed, running requests keep their memory."""
        ordering = Ordering.from_config(config, self._max_model_len)
        self.bucket.configure(config.admission)
        self.predictor.configure(config)
        if ordering != self._ordering:
            self._ordering = ordering
            for request in self.queue:
                self._measure(request)
        self._rekey(self.clock())
        self.config = config

    def failed(self, hook: str) -> None:
        """Count an exception that a guard caught; call it in the handler. The first of each hook is logged."""
        self.events.append(HookFailed(hook))
        if hook not in self._logged:
            self._logged.add(hook)
            log.exception("evenflow hook %s failed; the engine goes on, further failures are only counted", hook)

    # ------------------------------------------------------------------ requests

    def register(self, request: Any) -> None:
        """A request enters the engine: its class, its prediction, its place. Every later call expects this first."""
        self._added += 1
        asked = _asked_class(request)
        found = route(self.config, asked)
        prompt = max(int(request.num_prompt_tokens), 0)
        limit = float(max(min(request.max_tokens, self._max_model_len - prompt), 1))
        record = Record(found.traffic_class, prompt, limit, self.clock(), self._added)
        if found.misrouted:
            self.events.append(Misrouted())
        setattr(request, ATTRIBUTE, record)
        self._look_up_cached(request)
        if request.sampling_params is not None:
            self.predict(request, self.predictor.predict(record.traffic_class, prompt))
        else:
            # Pooling: one pass over the prompt and no output.
            self.predict(request, 1.0)

    def predict(self, request: Any, tokens: float) -> None:
        """Take a predicted output length: a waiting request moves to where it belongs then, a running one keeps its
        place and is another victim."""
        record = record_of(request)
        if record is None:
            return
        predicted = min(max(tokens, 1.0), record.limit)
        record.predicted = max(predicted, request.num_output_tokens + 1.0) if record.evictions else predicted
        self._measure(request)
        if request in self.queue:
            self.queue.rekey(request, self.key(request))
        elif record.admitted:
            record.victim_volume = predicted_volume(record.own_prompt, record.predicted)

    def class_of(self, request: Any) -> str:
        record = record_of(request)
        return DEFAULT_CLASS if record is None else record.traffic_class

    def enqueue(self, request: Any) -> None:
        """Put a request where its key belongs: new, skipped by the scheduler, evicted, or back with more input."""
        try:
            record = getattr(request, ATTRIBUTE, None)
            if record is None:
                self.register(request)
                record = getattr(request, ATTRIBUTE)
            elif record.prompt != request.num_prompt_tokens:
                record.prompt = int(request.num_prompt_tokens)
                record.limit = float(max(min(request.max_tokens, self._max_model_len - record.prompt), 1))
                self._measure(request)
            elif record.ordering is not self._ordering:
                # It wasn't in the queue when another policy was applied.
                self._measure(request)
            key = self._key_of(record)
        except Exception:
            self.failed("enqueue")
            self._added += 1
            key = (LARGEST, self.clock(), self._added)
        try:
            self.queue.add(request, key)
        except ValueError:
            self.queue.rekey(request, key)

    def evicted(self, request: Any, computed: int, *, counted: bool) -> None:
        """A running request is about to lose its memory; `computed` tokens of it were in KV. Not `counted`: the engine
        was told to drop everything (cache reset, sleep), which is no sign of load."""
        record = record_of(request)
        if record is None:
            return
        self._evicted += 1
        record.evictions += 1
        record.last_eviction = self._evicted
        record.lost_memory = True
        record.highest_computed = max(record.highest_computed, computed)
        record.predicted = max(record.predicted, request.num_output_tokens + 1.0)
        self._measure(request)
        if counted:
            self.counters.evictions[record.traffic_class] += 1

    def finished(self, request: Any, *, completed: bool) -> None:
        """A request leaves; only one that ran to its end is counted and learnt from."""
        record = record_of(request)
        if record is None or not completed:
            return
        output = int(request.num_output_tokens)
        self.counters.completed[record.traffic_class] += 1
        self.events.append(Completion(record.traffic_class, record.prompt, output, record.predicted))
        if request.sampling_params is not None:
            self.predictor.observe(record.traffic_class, record.prompt, output)

    # ------------------------------------------------------------------ one scheduling pass

    def begin(self, *, paused: bool) -> None:
        """Before the engine schedules."""
        self._steps += 1
        if self.bucket.limited:
            self.bucket.refill(paused=paused)
        if not self._ordering.aging_rate:
            return
        now = self.clock()
        waiting = len(self.queue)
        if waiting and self._ordering.rekey_due(
            elapsed_s=now - self._rekeyed_s, iterations=self._steps - self._rekeyed_step, waiting=waiting
        ):
            if self.config.policy != "FCFS" and len(self.queue) <= CACHED_LOOKUPS_PER_REKEY:
                for request in self.queue:
                    self._look_up_cached(request)
            self._rekey(now)

    def sort(self, running: list[Any]) -> None:
        """Order the running list so that the victim comes last."""
        sort_running(running, self.config.victim, volume=victim_volume, progress=progress)

    def allows_head(self, *, idle: bool) -> bool:
        """May the head of the queue be admitted now?"""
        request = self.queue.peek()
        record = record_of(request)
        if record is None or record.admitted:
            return True
        # Idle, nobody is in the way of those held back for; they were asked before the head of the queue.
        if self.hold_back and not idle and self.queue.key(request)[0] != FRONT:
            return False
        return not self.bucket.limited or self.bucket.allows(self._cost(record), idle=idle)

    def loads(self, request: Any, *, idle: bool) -> None:
        """A request took memory and waits for KV from elsewhere: a new one is admitted now, not when it runs."""
        record = record_of(request)
        if record is not None and not record.admitted:
            self.admitted(request, idle=idle)

    def admitted(self, request: Any, *, idle: bool) -> None:
        """A request entered the running batch; `idle`: nothing ran before it."""
        record = record_of(request)
        if record is None:
            return
        record.victim_volume = predicted_volume(record.own_prompt, record.predicted)
        if not record.admitted:
            record.admitted = True
            self.counters.admitted_new[record.traffic_class] += 1
            if self.bucket.limited:
                self.bucket.take(self._cost(record), idle=idle)
        elif record.lost_memory:
            self.counters.admitted_resumed[record.traffic_class] += 1
            # Once: dropping the cache may send it back before it was all computed again.
            self._recomputing[request] = None
        record.lost_memory = False

    def recompute(self, scheduled: dict[str, int]) -> None:
        """After a pass: count what was computed again; `scheduled` is tokens by request id, already in the requests."""
        if not self._recomputing:
            return
        going_on: dict[Any, None] = {}
        for request in self._recomputing:
            record = record_of(request)
            tokens = scheduled.get(request.request_id, 0)
            if record is None or record.lost_memory:
                continue
            end = request.num_computed_tokens
            if tokens:
                self.counters.recomputed_tokens += max(min(end, record.highest_computed) - (end - tokens), 0)
            if end < record.highest_computed and not request.is_finished():
                going_on[request] = None
        self._recomputing = going_on

    def due(self, request: Any) -> bool:
        """Has a request that the engine keeps skipping waited so long that later ones should wait for it?"""
        record = record_of(request)
        hold = HOLD_AFTER_AGINGS * self.config.aging_seconds
        return record is not None and 0.0 < hold <= self.clock() - record.arrival_s

    def to_front(self, request: Any) -> None:
        """Let a waiting request be the next, without changing what it is measured by."""
        record = record_of(request)
        if record is not None and request in self.queue:
            self.queue.rekey(request, (FRONT, record.arrival_s, record.sequence))

    # ------------------------------------------------------------------ order

    def key(self, request: Any) -> QueueKey:
        record = record_of(request)
        return (LARGEST, self.clock(), 0) if record is None else self._key_of(record)

    def _key_of(self, record: Record) -> QueueKey:
        if record.admitted:
            if not record.lost_memory:
                # A session with more input, or what came from another engine: nobody may stand before it.
                return (HOLDING, record.arrival_s, record.sequence)
            return self._ordering.evicted_key(
                record.metric, record.arrival_s, record.sequence, self.clock(), record.last_eviction
            )
        if not self._ordering.aging_rate:
            return (record.metric, record.arrival_s, record.sequence)
        return self._ordering.key(record.metric, record.arrival_s, record.sequence, self.clock())

    def _cost(self, record: Record) -> float:
        """What the cap charges for it, in token-iterations. The head of the queue is asked for in every pass."""
        if record.cost is None:
            record.cost = proxy_block_volume(record.own_prompt, record.predicted, self._block_size)
        return record.cost

    def _measure(self, request: Any) -> None:
        record = record_of(request)
        if record is not None:
            record.metric = self._ordering.metric(record.own_prompt, record.predicted)
            record.ordering = self._ordering
            record.cost = None

    def _look_up_cached(self, request: Any) -> None:
        """Own guard: without the prefix cache's answer, prediction, order and cap are as good as they were."""
        record = record_of(request)
        if record is None:
            return
        try:
            cached = self._cached_tokens(request)
        except Exception:
            self.failed("cached")
            return
        if cached != record.cached:
            record.cached = cached
            self._measure(request)

    def _rekey(self, now: float) -> None:
        self.queue.rekey_all(self.key)
        self._rekeyed_s = now
        self._rekeyed_step = self._steps


def _asked_class(request: Any) -> str | None:
    parameters = request.sampling_params
    extra = getattr(parameters, "extra_args", None) if parameters is not None else None
    name = extra.get(TRAFFIC_CLASS_ARG) if isinstance(extra, dict) else None
    return name if isinstance(name, str) else None
