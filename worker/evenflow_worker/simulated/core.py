"""The simulated engine's core: vLLM V1's scheduler and a runner that takes the modelled time. Pure and deterministic.

One `step` is one engine iteration: running requests first, in the order whose last is the victim, then the waiting
queue from its head until something doesn't fit. An evicted request keeps its tokens and computes them again. Prefix
caching is off. Time is engine time, in seconds; nothing here waits, reads a clock or draws a random number.
"""

import math
from collections import Counter

from evenflow_contract.names import DEFAULT_CLASS
from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.steptime import step_time_model
from evenflow_model.volume import proxy_block_volume
from evenflow_worker.predict.guarded import GuardedPredictor
from evenflow_worker.predict.protocol import Predictor
from evenflow_worker.scheduling.bucket import AdmissionBucket
from evenflow_worker.scheduling.keys import Ordering, QueueKey, predicted_volume
from evenflow_worker.scheduling.queue import WaitingQueue
from evenflow_worker.scheduling.victims import eviction_possible, sort_running
from evenflow_worker.simulated.batch import Batch
from evenflow_worker.simulated.kv import BlockPool
from evenflow_worker.simulated.records import (
    EngineCounters,
    EngineRequest,
    EngineSpec,
    FinishedRequest,
    RequestTooLarge,
    StepOutcome,
)
from evenflow_worker.simulated.sequence import Sequence, progress, victim_volume


class EngineCore:
    """One engine. Not thread-safe; call `step` only while `has_work` is true."""

    def __init__(self, spec: EngineSpec, config: WorkerConfig, *, predictor: Predictor | None = None) -> None:
        self.spec = spec
        self.now = 0.0
        self.counters = EngineCounters()
        self._pool = BlockPool.of_tokens(spec.kv_tokens, spec.block_size)
        self._step_time = step_time_model(spec.step_time_model, spec.overhead_ms)
        self._bucket = AdmissionBucket(self._pool.capacity_tokens)
        self._queue: WaitingQueue[Sequence] = WaitingQueue()
        self._running: list[Sequence] = []
        self._requests: dict[str, Sequence] = {}
        self._predictor = GuardedPredictor(predictor, self.counters.predictor_fallbacks)
        self._added = 0
        self._evicted = 0
        self._rekeyed_s = 0.0
        self._rekeyed_iteration = 0
        self.apply(config)

    # ------------------------------------------------------------------ what it is told

    def apply(self, config: WorkerConfig) -> None:
        """Take a config live: policy, victim, aging, cap, watermark, classes and priors. The queue is re-keyed."""
        self.config = config
        self._ordering = Ordering.from_config(config, self.spec.max_model_len)
        self._bucket.configure(config.admission)
        self._pool.set_watermark(config.admission.watermark)
        self._predictor.configure(config)
        self._classes = frozenset(config.classes)
        for sequence in self._queue:
            sequence.metric = self._ordering.metric(sequence.prompt, sequence.predicted_output)
        self._rekey()

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestTooLarge if it can never fit, ValueError if it is malformed or known."""
        self._check(request)
        self._added += 1
        traffic_class = request.traffic_class if request.traffic_class in self._classes else DEFAULT_CLASS
        sequence = Sequence(request, self._added, traffic_class)
        self._predict(sequence)
        self._requests[request.request_id] = sequence
        self._queue.add(sequence, self._key(sequence))

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its memory; False if it isn't here (any more)."""
        sequence = self._requests.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.running:
            self._running.remove(sequence)
            self._release(sequence)
        else:
            self._queue.remove(sequence)
        self.counters.aborted += 1
        return True

    def advance_idle(self, to_s: float) -> None:
        """Move the clock of an engine without work; time never runs backwards."""
        if self.has_work:
            raise RuntimeError(f"the engine has {len(self._requests)} requests: only steps move its clock")
        self.now = max(self.now, to_s)

    # ------------------------------------------------------------------ one iteration

    def step(self) -> StepOutcome:
        """One engine iteration; `now` advances by its duration."""
        if not self._requests:
            raise RuntimeError("the engine has no work: use advance_idle")
        started = self.now
        self._bucket.refill()
        self._rekey_if_due()
        if self._may_evict():
            sort_running(self._running, self.config.victim, volume=victim_volume, progress=progress)
        batch = Batch(self.spec.max_num_batched_tokens, self._pool.free)
        self._serve_running(batch)
        if not batch.evicted:
            self._admit(batch)
        batch.free_low = min(batch.free_low, self._pool.free)
        duration = self._step_time.step_ms(batch.scheduled, batch.decode_context, batch.chunks) / 1000.0
        self.now = started + duration
        first, finished = self._sample(batch)
        self.counters.iterations += 1
        self.counters.generation_tokens += len(batch.sampled)
        self.counters.recomputed_tokens += batch.recomputed
        return StepOutcome(
            started_s=started,
            duration_s=duration,
            tokens=tuple([sequence.request_id for sequence in batch.sampled]),
            first_tokens=first,
            finished=finished,
            evicted=tuple([sequence.request_id for sequence in batch.evicted]),
            admitted_new=tuple([sequence.request_id for sequence in batch.admitted_new]),
            admitted_resumed=tuple([sequence.request_id for sequence in batch.admitted_resumed]),
            scheduled_tokens=batch.scheduled,
            prefill_tokens=batch.prefill,
            recomputed_tokens=batch.recomputed,
            kv_usage_peak=1.0 - batch.free_low / self._pool.usable,
        )

    def _may_evict(self) -> bool:
        return eviction_possible(
            free_blocks=self._pool.free,
            running=len(self._running),
            token_budget=self.spec.max_num_batched_tokens,
            block_size=self.spec.block_size,
        )

    def _serve_running(self, batch: Batch) -> None:
        running = self._running
        schedule = batch.schedule
        sampled = batch.sampled
        index = 0
        context = decodes = 0
        while index < len(running) and batch.budget > decodes:
            sequence = running[index]
            computed = sequence.computed
            if sequence.length - computed == 1 and sequence.output:
                if computed == sequence.capacity and not self._grow(sequence, computed + 1, batch):
                    break
                # The common case, written out: one decode.
                sequence.computed = computed = computed + 1
                context += computed
                decodes += 1
                sampled.append(sequence)
            else:
                end = computed + min(sequence.length - computed, batch.budget - decodes)
                if end > sequence.capacity and not self._grow(sequence, end, batch):
                    break
                schedule(sequence, end)
            index += 1
        batch.add_decodes(decodes, context)

    def _grow(self, sequence: Sequence, tokens: int, batch: Batch) -> bool:
        """Blocks for the first `tokens` of a running sequence, by eviction if need be; False if it was the victim."""
        pool = self._pool
        needed = pool.blocks_for(tokens) - sequence.capacity // pool.block_size
        while needed > pool.free:
            batch.free_low = min(batch.free_low, pool.free)
            victim = self._running.pop()
            self._evict(victim, batch)
            if victim is sequence:
                return False
        pool.free -= needed
        sequence.capacity += needed * pool.block_size
        return True

    def _evict(self, sequence: Sequence, batch: Batch) -> None:
        self._release(sequence)
        sequence.highest_computed = max(sequence.highest_computed, sequence.computed)
        sequence.computed = 0
        sequence.evictions += 1
        self._evicted += 1
        sequence.last_eviction = self._evicted
        # A request that outlived its prediction is at least as long as it has become.
        sequence.predicted_output = max(sequence.predicted_output, sequence.output + 1.0)
        sequence.metric = self._ordering.metric(sequence.prompt, sequence.predicted_output)
        self._queue.add(sequence, self._key(sequence))
        self.counters.evictions[sequence.traffic_class] += 1
        batch.evicted.append(sequence)

    def _admit(self, batch: Batch) -> None:
        """From the head of the queue until one doesn't fit: nothing smaller behind it is tried."""
        queue, running, pool, bucket = self._queue, self._running, self._pool, self._bucket
        while queue and batch.budget > 0 and len(running) < self.spec.max_num_seqs:
            sequence = queue.peek()
            idle = not running
            if not sequence.evictions and not bucket.allows(idle=idle):
                return
            # The whole of prompt and output so far must fit, though only a chunk may be computed now.
            if pool.blocks_for(sequence.length) + (0 if idle else pool.watermark) > pool.free:
                return
            queue.pop()
            if sequence.evictions:
                batch.admitted_resumed.append(sequence)
                self.counters.admitted_resumed[sequence.traffic_class] += 1
            else:
                batch.admitted_new.append(sequence)
                self.counters.admitted_new[sequence.traffic_class] += 1
                self._charge(sequence, idle)
            end = min(sequence.length, batch.budget)
            blocks = pool.blocks_for(end)
            pool.free -= blocks
            sequence.capacity = blocks * pool.block_size
            sequence.running = True
            if sequence.admitted_s < 0.0:
                sequence.admitted_s = self.now
            sequence.victim_volume = predicted_volume(sequence.prompt, sequence.predicted_output)
            running.append(sequence)
            batch.schedule(sequence, end)

    def _charge(self, sequence: Sequence, idle: bool) -> None:
        if self._bucket.limited:
            cost = proxy_block_volume(sequence.prompt, sequence.predicted_output, self.spec.block_size)
            self._bucket.take(cost, idle=idle)

    def _sample(self, batch: Batch) -> tuple[tuple[str, ...], tuple[FinishedRequest, ...]]:
        """Every sequence whose tokens are all computed gains one; those at their end leave."""
        now = self.now
        first: list[str] = []
        done: list[Sequence] = []
        for sequence in batch.sampled:
            sequence.length = length = sequence.length + 1
            sequence.output = output = sequence.output + 1
            if output == 1:
                sequence.first_token_s = now
                self.counters.prompt_tokens += sequence.prompt
                first.append(sequence.request_id)
            if length >= sequence.stop_length:
                done.append(sequence)
        if done:
            for sequence in done:
                self._release(sequence)
                del self._requests[sequence.request_id]
                self.counters.completed[sequence.traffic_class] += 1
                self._predictor.observe(sequence.traffic_class, sequence.prompt, sequence.output)
            self._running[:] = [sequence for sequence in self._running if sequence.running]
        return tuple(first), tuple([sequence.finished(now) for sequence in done])

    def _release(self, sequence: Sequence) -> None:
        self._pool.free += sequence.capacity // self._pool.block_size
        sequence.capacity = 0
        sequence.running = False

    # ------------------------------------------------------------------ order and prediction

    def _key(self, sequence: Sequence) -> QueueKey:
        if sequence.evictions:
            return self._ordering.evicted_key(
                sequence.metric, sequence.arrival_s, sequence.sequence, self.now, sequence.last_eviction
            )
        return self._ordering.key(sequence.metric, sequence.arrival_s, sequence.sequence, self.now)

    def _rekey_if_due(self) -> None:
        elapsed, iterations = self.now - self._rekeyed_s, self.counters.iterations - self._rekeyed_iteration
        if self._ordering.rekey_due(elapsed_s=elapsed, iterations=iterations, waiting=len(self._queue)):
            self._rekey()

    def _rekey(self) -> None:
        self._queue.rekey_all(self._key)
        self._rekeyed_s = self.now
        self._rekeyed_iteration = self.counters.iterations

    def _predict(self, sequence: Sequence) -> None:
        predicted = self._predictor.predict(sequence.traffic_class, sequence.prompt)
        # More than the engine can hold is impossible; the client's max_tokens is a limit, not a hint, and isn't used.
        sequence.predicted_output = min(max(predicted, 1.0), float(max(self.max_request_tokens - sequence.prompt, 1)))
        sequence.metric = self._ordering.metric(sequence.prompt, sequence.predicted_output)

    def _check(self, request: EngineRequest) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"request_id {request.request_id!r} is in the engine already; ids must be unique")
        for name in ("prompt_tokens", "output_tokens", "max_tokens"):
            if getattr(request, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(request, name)}")
        if not math.isfinite(request.arrival_s):
            raise ValueError(f"arrival_s must be finite, found {request.arrival_s}")
        needed = request.prompt_tokens + request.max_tokens
        if needed > self.spec.max_model_len:
            raise RequestTooLarge(needed, self.spec.max_model_len, "the model's maximum length (max_model_len)")
        if needed > self._pool.capacity_tokens:
            raise RequestTooLarge(needed, self._pool.capacity_tokens, "this engine's KV memory (kv_tokens)")

    # ------------------------------------------------------------------ what it says

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def max_request_tokens(self) -> int:
        """Largest prompt plus max_tokens that is accepted."""
        return min(self.spec.max_model_len, self._pool.capacity_tokens)

    @property
    def kv_capacity_tokens(self) -> int:
        """Usable KV tokens M, in whole blocks."""
        return self._pool.capacity_tokens

    @property
    def num_gpu_blocks(self) -> int:
        """All blocks, the null block included, as vLLM reports them."""
        return self._pool.num_blocks

    @property
    def free_blocks(self) -> int:
        return self._pool.free

    @property
    def kv_usage(self) -> float:
        """Share of the usable KV blocks in use now, 0 to 1."""
        return self._pool.used_ratio

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def admission_credit(self) -> float:
        """What the admission bucket holds: requests or token-iterations; negative while a debt is paid off."""
        return self._bucket.credit

    def waiting_by_class(self) -> Counter[str]:
        return Counter(sequence.traffic_class for sequence in self._requests.values() if not sequence.running)

    def in_flight_by_class(self) -> Counter[str]:
        """Running and waiting requests."""
        return Counter(sequence.traffic_class for sequence in self._requests.values())

    def output_tokens(self, request_id: str) -> int:
        """Tokens that a request in the engine has produced; raises KeyError if it isn't there."""
        return self._requests[request_id].output
