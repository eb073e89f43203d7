"""What is laid over vLLM's scheduler classes. Every override calls vLLM's method exactly once and guards its own part.

vLLM's code stays as it is: the waiting queue is replaced, the running list is sorted before a pass, and the queue says
"empty" during a pass when the next request may not enter yet.
"""

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.metrics import UsagePeaks
from evenflow_worker.predict.batches import BatchPredictor
from evenflow_worker.predict.length_model import Prompt, load_length_model
from evenflow_worker.scheduling.victims import eviction_possible
from evenflow_worker.vllm.cached import cached_tokens
from evenflow_worker.vllm.names import missing_attributes
from evenflow_worker.vllm.queue import VolumeQueue
from evenflow_worker.vllm.steering import FellBack, ModelAsked, Steering

if TYPE_CHECKING:

    class _Scheduler:
        """The part of vLLM's Scheduler that is used here."""

        waiting: Any
        running: list[Any]
        requests: dict[str, Any]
        kv_cache_manager: Any
        kv_cache_config: Any
        lora_config: Any
        policy: Any
        pause_state: Any
        block_size: int
        max_model_len: int
        max_num_scheduled_tokens: int

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def schedule(self, *args: Any, **kwargs: Any) -> Any: ...
        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any: ...
        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any: ...
        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any: ...
        def shutdown(self) -> None: ...
else:
    _Scheduler = object

COMPLETED = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION"})
CAN_RUN = frozenset({"WAITING", "PREEMPTED"})


class EvenflowScheduling(_Scheduler):
    """Stands before Scheduler or AsyncScheduler in the bases. `steering` is None where stock scheduling runs, and
    `stock_reason` says why."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.steering: Steering | None = None
        self.stock_reason: str | None = None
        self.peaks = UsagePeaks()
        self.clock = time.monotonic
        super().__init__(*args, **kwargs)
        missing = missing_attributes(self)
        if missing:
            self.stock_reason = f"this vLLM lacks {', '.join(missing)}"
        elif getattr(self.policy, "value", "fcfs") != "fcfs":
            self.stock_reason = "--scheduling-policy priority is set; evenflow orders by itself only under fcfs"
        else:
            self._attach()

    def _attach(self) -> None:
        pool = self.kv_cache_manager.block_pool
        usable = max(int(pool.num_gpu_blocks) - 1, 1)
        self._usable_blocks = usable
        self._kv_groups = max(len(self.kv_cache_config.kv_cache_groups), 1)
        self._own_watermark_blocks = self.kv_cache_manager.watermark_blocks
        steering = Steering(
            capacity_tokens=usable * self.block_size,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            cached_tokens=partial(cached_tokens, self),
            clock=self._now,
        )
        self._models: BatchPredictor[Any] = BatchPredictor(
            lambda reason, count: steering.events.append(FellBack(reason, count)),
            lambda batch, seconds: steering.events.append(ModelAsked(batch, seconds)),
        )
        self._model_path: str | None = None
        self._accounted = 0
        self._in_pass = False
        self._free_low = usable
        self.waiting = VolumeQueue(steering)
        self.steering = steering

    def _now(self) -> float:
        return self.clock()

    # ------------------------------------------------------------------ vLLM calls these

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        steering = self.steering
        if steering is None:
            return super().schedule(*args, **kwargs)
        self._open_pass(steering)
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.waiting.gate = None
            self._in_pass = False
        self._close_pass(steering, output)
        return output

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        steering = self.steering
        # A known id brings more input for a streaming session: that isn't a request of its own.
        new = steering is not None and request.request_id not in self.requests
        if new and steering is not None:
            try:
                self._take_config(steering)
                steering.register(request)
            except Exception:
                steering.failed("register")
        result = super().add_request(request, *args, **kwargs)
        if new and steering is not None and self._models.enabled:
            try:
                self._ask_model(request)
            except Exception:
                steering.failed("predict")
        return result

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        steering = self.steering
        if steering is not None:
            try:
                self._free_low = min(self._free_low, self._free_blocks())
                steering.evicted(request, request.num_computed_tokens, counted=self._in_pass)
            except Exception:
                steering.failed("evict")
        return super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        steering = self.steering
        if steering is not None:
            try:
                steering.finished(request, completed=request.status.name in COMPLETED)
            except Exception:
                steering.failed("finish")
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        if self.steering is not None:
            self._models.close()
        super().shutdown()

    # ------------------------------------------------------------------ around one pass

    def _open_pass(self, steering: Steering) -> None:
        self._accounted = len(self.running)
        self._in_pass = True
        try:
            self._take_config(steering)
            self._take_predictions(steering)
            steering.begin(paused=self.pause_state.name != "UNPAUSED")
            self._free_low = free = self._free_blocks()
            if eviction_possible(
                free_blocks=free,
                running=len(self.running) * self._kv_groups,
                token_budget=self.max_num_scheduled_tokens * self._kv_groups,
                block_size=self.block_size,
            ):
                steering.sort(self.running)
            if self.lora_config is not None:
                self._hold_back_for_due(steering)
            self.waiting.gate = self._gate
        except Exception:
            self.waiting.gate = None
            steering.failed("open")

    def _gate(self) -> bool:
        """Asked by vLLM's admission loop before each request that it takes from the queue."""
        steering = self.steering
        if steering is None:
            return True
        try:
            self._account(steering)
            return steering.allows_head(idle=not self.running)
        except Exception:
            steering.failed("gate")
            return True

    def _close_pass(self, steering: Steering, output: Any) -> None:
        try:
            self._account(steering)
            scheduled = output.num_scheduled_tokens
            if scheduled:
                steering.counters.iterations += 1
                steering.recompute(scheduled)
            low = min(self._free_low, self._free_blocks())
            self.peaks.observe(self._now(), 1.0 - low / self._usable_blocks)
        except Exception:
            steering.failed("close")

    def _account(self, steering: Steering) -> None:
        """Charge whatever the pass has admitted since the last look. Exact: a pass that evicts admits nothing."""
        running = self.running
        while self._accounted < len(running):
            index = self._accounted
            self._accounted = index + 1
            steering.admitted(running[index], idle=index == 0)

    def _hold_back_for_due(self, steering: Steering) -> None:
        """Requests that the LoRA limit keeps out are skipped in every pass, however old: once due, nobody new enters
        before them, so that the adapters in use run out."""
        skipped: Iterable[Any] = getattr(self, "deferred_waiting", getattr(self, "skipped_waiting", ()))
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
        """Put an offered config in force now; for the engine's thread, before its first request."""
        if self.steering is not None:
            self._take_config(self.steering)

    def _take_config(self, steering: Steering) -> None:
        if not steering.pending:
            return
        try:
            if steering.take_offered():
                self._apply_to_vllm(steering.config)
        except Exception:
            steering.failed("apply")

    def _apply_to_vllm(self, config: WorkerConfig) -> None:
        blocks = self._own_watermark_blocks
        if config.generation > 0:
            # Rounded as vLLM rounds its own option. Without an operator the server's --watermark stands.
            blocks = int(config.admission.watermark * self.kv_cache_manager.block_pool.num_gpu_blocks)
        self.kv_cache_manager.watermark_blocks = blocks
        path = config.predictor.path if config.predictor.type == "Model" else None
        if path != self._model_path:
            self._model_path = path
            self._models.use(None if path is None else partial(load_length_model, Path(path)))

    def _ask_model(self, request: Any) -> None:
        steering = self.steering
        if steering is None or request.sampling_params is None:
            return
        token_ids = request.prompt_token_ids
        prompt = Prompt(
            steering.class_of(request), request.num_prompt_tokens, None if token_ids is None else tuple(token_ids)
        )
        self._models.submit(request, prompt)

    def _take_predictions(self, steering: Steering) -> None:
        for request, tokens in self._models.drain():
            # The same object under the same id: not a later request that reuses it.
            if self.requests.get(request.request_id) is request:
                steering.predict(request, tokens)

    def _free_blocks(self) -> int:
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks())
