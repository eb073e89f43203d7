"""What happens around vLLM's own scheduling: the guarded part of every override, and what the engine is told.

Each method here may fail without harm: it catches what it raises, counts it and lets vLLM go on.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.metrics import UsagePeaks
from evenflow_worker.predict.batches import BatchPredictor
from evenflow_worker.predict.length_model import Prompt, load_length_model
from evenflow_worker.scheduling.victims import eviction_possible
from evenflow_worker.vllm.cached import cached_tokens
from evenflow_worker.vllm.events import FellBack, ModelAsked
from evenflow_worker.vllm.queue import VolumeQueue
from evenflow_worker.vllm.steering import Steering

COMPLETED = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION"})
CAN_RUN = frozenset({"WAITING", "PREEMPTED"})
LOADING = "WAITING_FOR_REMOTE_KVS"
WITHOUT_MEMORY = CAN_RUN | {"WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"}


class Hooks:
    """Belongs to one scheduler and replaces its waiting queue. Runs in the engine's thread."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.peaks = UsagePeaks()
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self._free_blocks: Callable[[], int] = self._pool.get_num_free_blocks
        self._usable_blocks = max(int(self._pool.num_gpu_blocks) - 1, 1)
        self._kv_groups = max(len(scheduler.kv_cache_config.kv_cache_groups), 1)
        self._own_watermark_blocks = manager.watermark_blocks
        self._queue = queue = VolumeQueue()
        self.steering = steering = Steering(
            queue,
            capacity_tokens=self._usable_blocks * scheduler.block_size,
            block_size=scheduler.block_size,
            max_model_len=scheduler.max_model_len,
            cached_tokens=partial(cached_tokens, scheduler),
            clock=time.monotonic,
        )
        self.models: BatchPredictor[Any] = BatchPredictor(
            lambda reason, count: steering.events.append(FellBack(reason, count)),
            lambda batch, seconds: steering.events.append(ModelAsked(batch, seconds)),
        )
        self.at_shutdown: list[Callable[[], None]] = [self.models.close]
        self._model_path: str | None = None
        self._accounted = 0
        self._in_pass = False
        self._free_low = self._usable_blocks
        self._looks_at_skipped = hasattr(scheduler, "skipped_waiting") or scheduler.lora_config is not None
        self._connected = getattr(scheduler, "connector", None) is not None
        self._let_in: Any = None
        self._loading: list[Any] = []
        queue.enqueue = steering.enqueue
        scheduler.waiting = queue

    def close(self) -> None:
        """The engine shuts down; its process may go on and start another one."""
        for end in self.at_shutdown:
            try:
                end()
            except Exception:
                self.steering.failed("shutdown")

    # ------------------------------------------------------------------ requests

    def entering(self, request: Any) -> None:
        """A request that the engine doesn't know yet, before it is queued."""
        try:
            self.take_config()
            self.steering.register(request)
        except Exception:
            self.steering.failed("register")

    def entered(self, request: Any) -> None:
        """The same request, now that the engine holds it and can't lose it: a trained model may look at it."""
        try:
            if not self.models.enabled or request.sampling_params is None:
                return
            # The list itself, not a copy: a long prompt must cost the engine's thread nothing.
            prompt = Prompt(self.steering.class_of(request), request.num_prompt_tokens, request.prompt_token_ids)
            self.models.submit(request, prompt)
        except Exception:
            self.steering.failed("predict")

    def evicting(self, request: Any) -> None:
        """A running request is about to lose its memory; outside a pass because the engine was told to drop it."""
        try:
            self._free_low = min(self._free_low, self._free_blocks())
            self.steering.evicted(request, request.num_computed_tokens, counted=self._in_pass)
        except Exception:
            self.steering.failed("evict")

    def leaving(self, request: Any) -> None:
        """A request ended in any way."""
        try:
            self.steering.finished(request, completed=_completed(request))
        except Exception:
            self.steering.failed("finish")

    # ------------------------------------------------------------------ around one pass

    def open_pass(self) -> None:
        """Before vLLM schedules: config, predictions, bucket, order of the running, and the gate.

        Called some hundred times a second between steps that must not wait: what mostly has nothing to do is asked
        for by a look, not by a call.
        """
        scheduler, steering = self.scheduler, self.steering
        running = scheduler.running
        self._accounted = len(running)
        self._in_pass = True
        try:
            if steering.offered:
                self.take_config()
            if self.models.done:
                self._take_predictions()
            limited = steering.bucket.limited
            steering.begin(paused=limited and scheduler.pause_state.name != "UNPAUSED")
            self._free_low = free = self._free_blocks()
            if eviction_possible(
                free_blocks=free,
                running=len(running) * self._kv_groups,
                token_budget=scheduler.max_num_scheduled_tokens * self._kv_groups,
                block_size=scheduler.block_size,
            ):
                steering.sort(running)
            if self._looks_at_skipped:
                skipped = self._skipped()
                if scheduler.lora_config is not None:
                    self._hold_back_for_due(skipped)
            self._queue.gate = self._gate if limited or steering.hold_back else None
        except Exception:
            self._queue.gate = None
            steering.failed("open")

    def end_pass(self) -> None:
        """After vLLM scheduled, even if it raised: the queue tells the truth again."""
        self._queue.gate = None
        self._in_pass = False

    def close_pass(self, output: Any) -> None:
        """After a pass that went well: what it admitted, computed again, and how full the memory was."""
        try:
            self._account()
            if self._let_in is not None:
                self._account_load(idle=not self.scheduler.running)
            scheduled = output.num_scheduled_tokens
            if scheduled:
                self.steering.counters.iterations += 1
                self.steering.recompute(scheduled)
            low = min(self._free_low, self._free_blocks())
            self.peaks.observe(self.steering.clock(), 1.0 - low / self._usable_blocks)
        except Exception:
            self.steering.failed("close")

    def _gate(self) -> bool:
        """Asked by vLLM's admission loop before each request that it takes from the queue."""
        try:
            self._account()
            idle = not self.scheduler.running
            if not self._connected:
                return self.steering.allows_head(idle=idle)
            allowed = self.steering.allows_head(idle=self._account_load(idle=idle))
            self._let_in = self._queue.peek() if allowed else None
            return allowed
        except Exception:
            self.steering.failed("gate")
            return True

    def _account(self) -> None:
        """Charge whatever the pass has admitted since the last look. Exact: a pass that evicts admits nothing."""
        running = self.scheduler.running
        while self._accounted < len(running):
            index = self._accounted
            self._accounted = index + 1
            self.steering.admitted(running[index], idle=index == 0)

    def _account_load(self, *, idle: bool) -> bool:
        """Charge the request that the gate let in last if it takes memory now and runs later: its KV is being loaded
        from elsewhere. Returns whether the engine is idle even so: an engine that loads isn't."""
        let_in, self._let_in = self._let_in, None
        self._loading = [request for request in self._loading if request.status.name == LOADING]
        idle = idle and not self._loading
        if let_in is not None and let_in.status.name == LOADING and let_in not in self._loading:
            self._loading.append(let_in)
            self.steering.loads(let_in, idle=idle)
            return False
        return idle

    def _skipped(self) -> Iterable[Any]:
        """What vLLM skipped in earlier passes and still waits; after this it waits in our queue.

        Up to 0.30 vLLM keeps such requests in a list of its own that it asks first, past order and cap. Those that hold
        no memory are taken back from it. The others stay first: what holds memory without running must never stand
        behind a request that doesn't fit beside it.
        """
        listed = getattr(self.scheduler, "skipped_waiting", None)
        if listed is None:
            deferred: Iterable[Any] = getattr(self.scheduler, "deferred_waiting", ())
            return deferred
        ours = [
            request for request in listed if request.status.name in WITHOUT_MEMORY and not request.num_computed_tokens
        ]
        if ours:
            listed.remove_requests(ours)
            self._queue.prepend_requests(ours)
        return ours

    def _hold_back_for_due(self, skipped: Iterable[Any]) -> None:
        """Requests that the LoRA limit keeps out are skipped in every pass, however old: once due, nobody new enters
        before them, so that the adapters in use run out."""
        steering = self.steering
        due = [
            request
            for request in skipped
            if request.lora_request is not None and request.status.name in CAN_RUN and steering.due(request)
        ]
        steering.hold_back = bool(due)
        for request in due:
            steering.to_front(request)

    # ------------------------------------------------------------------ control and predictions

    def take_config(self) -> None:
        """Put an offered config in force now; in the engine's thread only."""
        try:
            if self.steering.take_offered():
                self._apply_to_vllm(self.steering.config)
        except Exception:
            self.steering.failed("apply")

    def _apply_to_vllm(self, config: WorkerConfig) -> None:
        blocks = self._own_watermark_blocks
        if config.generation > 0:
            # Rounded as vLLM rounds its own option. Without an operator the server's --watermark stands.
            blocks = int(config.admission.watermark * self._pool.num_gpu_blocks)
        self.scheduler.kv_cache_manager.watermark_blocks = blocks
        path = config.predictor.path if config.predictor.type == "Model" else None
        if path != self._model_path:
            self._model_path = path
            self.models.use(None if path is None else partial(load_length_model, Path(path)))

    def _take_predictions(self) -> None:
        for request, tokens in self.models.drain():
            # The same object under the same id: not a later request that reuses it.
            if self.scheduler.requests.get(request.request_id) is request:
                self.steering.predict(request, tokens)


def _completed(request: Any) -> bool:
    """Did it run to its end? vLLM's front end looks for stop strings and then aborts the request: with stop strings, an
    abort after the first token counts as an end. A client that leaves such a request is counted wrongly, and rarely."""
    if request.status.name in COMPLETED:
        return True
    stops = getattr(request.sampling_params, "stop", None)
    return bool(stops) and request.status.name == "FINISHED_ABORTED" and request.num_output_tokens > 0
