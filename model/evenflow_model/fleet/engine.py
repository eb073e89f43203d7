"""One simulated engine: vLLM V1's scheduler and a runner that takes the modelled time. Pure and deterministic.

One iteration: running requests first, in the order whose last is the victim, then the waiting queue from its head
until something doesn't fit. An evicted request keeps its tokens and computes them again. Time is engine time, in
seconds; nothing here waits, reads a clock or draws a random number.
"""

import math
from collections import Counter

from evenflow_model.fleet.batch import Batch
from evenflow_model.fleet.kv import BlockPool
from evenflow_model.fleet.leap import Leap, leap_of
from evenflow_model.fleet.prefix import PrefixCache
from evenflow_model.fleet.records import EngineCounters, EngineRequest, EngineSpec, FinishedRequest, RequestTooLarge
from evenflow_model.fleet.scheduling import QueueKey, Scheduling
from evenflow_model.fleet.sequence import Sequence
from evenflow_model.steptime import step_time_model
from evenflow_model.volume import proxy_block_volume


class Engine:
    """One engine. Not thread-safe; call `iterate` and `leap` only while `has_work` is true.

    `prefix_cache` turns prefix caching on for requests that name their prompt's blocks; its blocks must be whole
    multiples of the engine's, else ValueError.
    """

    def __init__(self, spec: EngineSpec, scheduling: Scheduling, *, prefix_cache: PrefixCache | None = None) -> None:
        self.spec = spec
        self.now = 0.0
        self.counters = EngineCounters()
        self._pool = BlockPool.of_tokens(spec.kv_tokens, spec.block_size, prefix_cache)
        self._step_time = step_time_model(spec.step_time_model, spec.overhead_ms)
        self._scheduling = scheduling
        self._bucket = scheduling.bucket
        self._queue = scheduling.queue
        self._running: list[Sequence] = []
        self._requests: dict[str, Sequence] = {}
        self._steady = False
        self._usage_peak = 0.0
        self._added = 0
        self._evicted = 0
        self._rekeyed_s = 0.0
        self._rekeyed_iteration = 0
        self.rescheduled()

    # ------------------------------------------------------------------ what it is told

    def rescheduled(self) -> None:
        """The scheduling code was changed: take the new ordering and watermark, and re-key the queue."""
        self._ordering = self._scheduling.ordering
        self._pool.set_watermark(self._scheduling.watermark)
        for sequence in self._queue:
            sequence.metric = self._ordering.metric(sequence.own_prompt, sequence.predicted_output)
        self._rekey()

    def add(self, request: EngineRequest) -> float:
        """Queue a request; returns its predicted output tokens.

        Raises RequestTooLarge if it can never fit, ValueError if it is malformed or known.
        """
        self._check(request)
        self._added += 1
        sequence = Sequence(request, self._added, self._scheduling.class_of(request.traffic_class))
        sequence.own_prompt -= self._pool.cached(sequence)
        self._predict(sequence, request.predicted_output)
        self._requests[request.request_id] = sequence
        self._queue.add(sequence, self._key(sequence))
        return sequence.predicted_output

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its memory; False if it isn't here (any more)."""
        sequence = self._requests.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.running:
            self._running.remove(sequence)
            self._pool.release(sequence)
        else:
            self._queue.remove(sequence)
        self.counters.aborted += 1
        return True

    def advance_idle(self, to_s: float) -> None:
        """Move the clock of an engine without work; time never runs backwards."""
        if self.has_work:
            raise RuntimeError(f"the engine has {len(self._requests)} requests: only steps move its clock")
        self.now = max(self.now, to_s)

    # ------------------------------------------------------------------ many iterations at once

    def plan_leap(self, limit: int) -> Leap | None:
        """The next iterations, at most `limit`, in which all that happens is that every running request decodes.

        A completion may end the last of them. None if something else may happen in the next one. Anything added,
        aborted or rescheduled makes the plan void.
        """
        running, queue, pool = self._running, self._queue, self._pool
        if not self._steady or not running or len(running) > self.spec.max_num_batched_tokens:
            return None
        limit = min(limit, min([sequence.stop_length - sequence.length for sequence in running]))
        if queue and len(running) < self.spec.max_num_seqs:
            head = queue.peek()
            if pool.needed(head, pool.cached(head)) + pool.watermark <= pool.free:
                limit = min(limit, 0 if head.evictions else self._bucket.refills_refused(self._cost(head)))
        leap = leap_of(running, limit, pool, self._step_time)
        if leap is not None and queue:
            return leap.before(self._rekey_due_after)
        return leap

    def leap(self, plan: Leap, steps: int) -> tuple[FinishedRequest, ...]:
        """Make the first `steps` iterations of a plan; returns the requests that completed in the last."""
        pool, running, counters = self._pool, self._running, self.counters
        used = pool.used_ratio
        before_last = pool.free - plan.blocks(running, steps - 1)
        if self._may_evict(before_last):
            self._scheduling.sort_running(running)
        pool.free -= plan.blocks(running, steps)
        pool.forget_cached()
        size = pool.block_size
        done = []
        for sequence in running:
            sequence.computed = computed = sequence.computed + steps
            sequence.length += steps
            sequence.output += steps
            if computed > sequence.capacity:
                sequence.capacity = -(-computed // size) * size
            if sequence.length >= sequence.stop_length:
                done.append(sequence)
        self._bucket.refill(steps)
        duration = plan.seconds(steps)
        self.now += duration
        counters.iterations += steps
        counters.generation_tokens += steps * len(running)
        self._used(duration, (used + pool.used_ratio) / 2.0, pool.used_ratio)
        return self._complete(done)

    # ------------------------------------------------------------------ one iteration

    def iterate(self) -> Batch:
        """One engine iteration; `now` advances by its duration."""
        if not self._requests:
            raise RuntimeError("the engine has no work: use advance_idle")
        pool = self._pool
        self._bucket.refill()
        if self._queue and self._rekey_due_after(0, 0.0):
            self._rekey()
        if self._may_evict(pool.free):
            self._scheduling.sort_running(self._running)
        batch = Batch(self.spec.max_num_batched_tokens, pool.free)
        batch.started_s = self.now
        self._serve_running(batch)
        if not batch.evicted:
            self._admit(batch)
        batch.free_low = min(batch.free_low, pool.free)
        batch.usage_peak = 1.0 - batch.free_low / pool.usable
        batch.duration_s = self._step_time.step_ms(batch.scheduled, batch.decode_context, batch.chunks) / 1000.0
        self.now += batch.duration_s
        self._steady = len(batch.sampled) == len(self._running)
        self._sample(batch)
        counters = self.counters
        counters.iterations += 1
        counters.generation_tokens += len(batch.sampled)
        counters.recomputed_tokens += batch.recomputed
        self._used(batch.duration_s, batch.usage_peak, batch.usage_peak)
        return batch

    def _may_evict(self, free_blocks: int) -> bool:
        return self._scheduling.eviction_possible(
            free_blocks=free_blocks,
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
        pool.forget_cached()
        sequence.capacity += needed * pool.block_size
        return True

    def _evict(self, sequence: Sequence, batch: Batch) -> None:
        self._pool.release(sequence)
        sequence.highest_computed = max(sequence.highest_computed, sequence.computed)
        sequence.computed = 0
        sequence.evictions += 1
        self._evicted += 1
        sequence.last_eviction = self._evicted
        # A request that outlived its prediction is at least as long as it has become.
        sequence.predicted_output = max(sequence.predicted_output, sequence.output + 1.0)
        sequence.metric = self._ordering.metric(sequence.own_prompt, sequence.predicted_output)
        self._queue.add(sequence, self._key(sequence))
        self.counters.evictions[sequence.traffic_class] += 1
        batch.evicted.append(sequence)

    def _admit(self, batch: Batch) -> None:
        """From the head of the queue until one doesn't fit: nothing smaller behind it is tried."""
        queue, running, pool, bucket = self._queue, self._running, self._pool, self._bucket
        while queue and batch.budget > 0 and len(running) < self.spec.max_num_seqs:
            sequence = queue.peek()
            idle = not running
            if bucket.limited and not sequence.evictions and not bucket.allows(self._cost(sequence), idle=idle):
                return
            cached = pool.cached(sequence)
            # The whole of prompt and output so far must fit, though only a chunk may be computed now.
            if pool.needed(sequence, cached) + (0 if idle else pool.watermark) > pool.free:
                return
            queue.pop()
            if pool.prefix_cache is not None:
                pool.hold_cached(sequence, cached)
                self.counters.cached_tokens += cached
            if sequence.evictions:
                batch.admitted_resumed.append(sequence)
                self.counters.admitted_resumed[sequence.traffic_class] += 1
            else:
                batch.admitted_new.append(sequence)
                self.counters.admitted_new[sequence.traffic_class] += 1
                if bucket.limited:
                    bucket.take(self._cost(sequence), idle=idle)
            end = cached + min(sequence.length - cached, batch.budget)
            blocks = pool.blocks_for(end)
            pool.free -= blocks - cached // pool.block_size
            pool.forget_cached()
            sequence.capacity = blocks * pool.block_size
            sequence.running = True
            if sequence.admitted_s < 0.0:
                sequence.admitted_s = self.now
            sequence.victim_volume = self._scheduling.volume(sequence.own_prompt, sequence.predicted_output)
            running.append(sequence)
            batch.schedule(sequence, end)

    def _cost(self, sequence: Sequence) -> float:
        """What the cap charges for it, in token-iterations."""
        return proxy_block_volume(sequence.own_prompt, sequence.predicted_output, self.spec.block_size)

    def _sample(self, batch: Batch) -> None:
        """Every sequence whose tokens are all computed gains one; those at their end leave."""
        now = self.now
        done: list[Sequence] = []
        for sequence in batch.sampled:
            sequence.length = length = sequence.length + 1
            sequence.output = output = sequence.output + 1
            if output == 1:
                sequence.first_token_s = now
                self.counters.prompt_tokens += sequence.prompt
                batch.first.append(sequence)
            if length >= sequence.stop_length:
                done.append(sequence)
        self._pool.remember(batch.prefilled)
        batch.done = self._complete(done)

    def _complete(self, done: list[Sequence]) -> tuple[FinishedRequest, ...]:
        if not done:
            return ()
        for sequence in done:
            self._pool.release(sequence)
            del self._requests[sequence.request_id]
            self.counters.completed[sequence.traffic_class] += 1
            self._scheduling.observe(sequence.traffic_class, sequence.prompt, sequence.output)
        self._running[:] = [sequence for sequence in self._running if sequence.running]
        return tuple([sequence.finished(self.now) for sequence in done])

    def _used(self, duration_s: float, mean: float, peak: float) -> None:
        counters = self.counters
        counters.busy_s += duration_s
        counters.kv_use_s += mean * duration_s
        self._usage_peak = max(self._usage_peak, peak)

    # ------------------------------------------------------------------ order and prediction

    def _key(self, sequence: Sequence) -> QueueKey:
        if sequence.evictions:
            return self._ordering.evicted_key(
                sequence.metric, sequence.arrival_s, sequence.sequence, self.now, sequence.last_eviction
            )
        return self._ordering.key(sequence.metric, sequence.arrival_s, sequence.sequence, self.now)

    def _rekey_due_after(self, steps: int, seconds: float) -> bool:
        """Will the queue have to be re-keyed so many iterations, and seconds, from now?"""
        return self._ordering.rekey_due(
            elapsed_s=self.now + seconds - self._rekeyed_s,
            iterations=self.counters.iterations + steps - self._rekeyed_iteration,
            waiting=len(self._queue),
        )

    def _rekey(self) -> None:
        self._queue.rekey_all(self._key)
        self._rekeyed_s = self.now
        self._rekeyed_iteration = self.counters.iterations

    def _predict(self, sequence: Sequence, given: float | None) -> None:
        predicted = self._scheduling.predict(sequence.traffic_class, sequence.prompt) if given is None else given
        # More than the engine can hold is impossible; the client's max_tokens is a limit, not a hint, and isn't used.
        sequence.predicted_output = min(max(predicted, 1.0), float(max(self.max_request_tokens - sequence.prompt, 1)))
        sequence.metric = self._ordering.metric(sequence.own_prompt, sequence.predicted_output)

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

    def take_usage_peak(self) -> float:
        """Largest share of KV in use since the last call."""
        peak, self._usage_peak = max(self._usage_peak, self.kv_usage), 0.0
        return peak

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def waiting_by_class(self) -> Counter[str]:
        return Counter(sequence.traffic_class for sequence in self._requests.values() if not sequence.running)

    def in_flight_by_class(self) -> Counter[str]:
        """Running and waiting requests."""
        return Counter(sequence.traffic_class for sequence in self._requests.values())

    def output_tokens(self, request_id: str) -> int:
        """Tokens that a request in the engine has produced; raises KeyError if it isn't there."""
        return self._requests[request_id].output
