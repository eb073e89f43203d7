"""Runs the core against the clock and hands tokens to whoever waits for them.

One task of the event loop: a step is computed when the one before it is over by the engine's clock, and its tokens are
delivered when it is over itself. Requests that arrive meanwhile enter with the next step, as in an engine.
"""

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_model.fleet.records import EngineRequest, FinishedRequest
from evenflow_worker.control.classes import exported_classes, listed
from evenflow_worker.control.lengths import LengthObservations
from evenflow_worker.control.settings import Settings
from evenflow_worker.metrics import EngineFigures, UsagePeaks, WorkerMetrics
from evenflow_worker.simulated.clock import EngineClock
from evenflow_worker.simulated.core import EngineCore
from evenflow_worker.simulated.records import StepOutcome
from evenflow_worker.simulated.vllm_metrics import VllmMetrics

log = logging.getLogger(__name__)

_SHORTEST_SLEEP_SECONDS = 0.0005
"""Shorter waits are skipped: the event loop's timer has a resolution of a millisecond, and the clock is absolute, so a
step that starts early or late doesn't move those after it."""
_LOOK_AHEAD_STEPS = 256
"""A streaming request is looked at again at least this often, so that nothing refers for long to one that is gone."""
_YIELD_EVERY_SECONDS = 0.002
"""How long steps may run on without letting HTTP have its turn."""


class QueueFull(Exception):
    """As many requests wait as may."""


class EngineStopped(Exception):
    """The engine's task ended; nothing will be generated any more."""


class Generation:
    """One choice being generated. `produced` counts the tokens delivered so far; `changed` is set when it moves, or
    when `finished` or `failed` is."""

    __slots__ = ("arrival_s", "changed", "failed", "finished", "interval", "produced", "request_id")

    def __init__(self, request_id: str, arrival_s: float, changed: asyncio.Event, interval: int | None) -> None:
        self.request_id = request_id
        self.arrival_s = arrival_s
        self.changed = changed
        self.interval = interval
        self.produced = 0
        self.finished: FinishedRequest | None = None
        self.failed = False


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Lengths in tokens. `interval` is the tokens between two deliveries after the first, None: deliver at the end.
    `arrival_s` is engine time."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    traffic_class: str
    interval: int | None


class EngineRunner:
    """Owns the core: every other part of the server reaches it through here. Serves the admin API as AdminEngine."""

    def __init__(
        self,
        core: EngineCore,
        clock: EngineClock,
        *,
        version: str,
        max_num_queued: int,
    ) -> None:
        self.core = core
        self.clock = clock
        self.settings = Settings(self._apply, core.config)
        self._version = version
        self._max_num_queued = max_num_queued
        self._generations: dict[str, Generation] = {}
        self._due: defaultdict[int, list[Generation]] = defaultdict(list)
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._lengths = LengthObservations()
        self._lengths.retain(exported_classes(core.config))
        self._peaks = UsagePeaks()
        self._stopped = False
        self._last_yield = 0.0
        self._vllm: VllmMetrics | None = None
        self._metrics: WorkerMetrics | None = None

    def observe_with(self, vllm: VllmMetrics, metrics: WorkerMetrics) -> None:
        """Where steps and completions are reported to."""
        self._vllm, self._metrics = vllm, metrics

    # ------------------------------------------------------------------ requests

    @property
    def in_flight(self) -> int:
        return len(self._generations)

    def submit(self, spec: GenerationSpec, changed: asyncio.Event) -> Generation:
        """Queue one choice. Raises RequestTooLarge, QueueFull or EngineStopped; then nothing was queued."""
        if self._stopped:
            raise EngineStopped
        if self.core.waiting >= self._max_num_queued:
            raise QueueFull(f"{self._max_num_queued} requests are waiting already; try again later")
        if not self.core.has_work:
            self.core.advance_idle(spec.arrival_s)
        self.core.add(
            EngineRequest(
                request_id=spec.request_id,
                prompt_tokens=spec.prompt_tokens,
                output_tokens=spec.output_tokens,
                max_tokens=spec.max_tokens,
                traffic_class=spec.traffic_class,
                arrival_s=spec.arrival_s,
            )
        )
        generation = Generation(spec.request_id, spec.arrival_s, changed, spec.interval)
        self._generations[spec.request_id] = generation
        self._empty.clear()
        self._work.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """Forget a request, wherever it stands; its KV memory is free at once."""
        if self._generations.pop(generation.request_id, None) is None:
            return
        self.core.abort(generation.request_id)
        if self._vllm is not None:
            self._vllm.forget(generation.request_id)
        self._check_empty()

    async def drained(self) -> None:
        """Wait until no request is left."""
        await self._empty.wait()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Step for ever; cancel to stop. Whoever waits for tokens then is told so."""
        try:
            while True:
                if not self.core.has_work:
                    self._work.clear()
                    await self._work.wait()
                outcome = self.core.step()
                await self._until(self.core.now)
                self._deliver(outcome)
                self.clock.ran(outcome.duration_s, self.core.now)
        finally:
            self._stopped = True
            for generation in self._generations.values():
                generation.failed = True
                generation.changed.set()

    async def _until(self, engine_s: float) -> None:
        delay = self.clock.wall_seconds_until(engine_s)
        if delay > _SHORTEST_SLEEP_SECONDS:
            await asyncio.sleep(delay)
        elif time.monotonic() - self._last_yield > _YIELD_EVERY_SECONDS:
            await asyncio.sleep(0)
        else:
            return
        self._last_yield = time.monotonic()

    def _deliver(self, outcome: StepOutcome) -> None:
        ended = outcome.started_s + outcome.duration_s
        iteration = self.core.counters.iterations
        self._peaks.observe(ended, outcome.kv_usage_peak)
        if self._vllm is not None:
            self._vllm.step(outcome)
        for request_id in outcome.first_tokens:
            generation = self._generations.get(request_id)
            if generation is None:
                continue
            if self._vllm is not None:
                self._vllm.first_token(ended - generation.arrival_s)
            if generation.interval is not None:
                generation.produced = 1
                generation.changed.set()
                self._look_again(generation, iteration, generation.interval)
        for finished in outcome.finished:
            self._finish(finished)
        for generation in self._due.pop(iteration, ()):
            self._deliver_due(generation, iteration)

    def _deliver_due(self, generation: Generation, iteration: int) -> None:
        """A request gains at most a token per step, so it is looked at again only when it can have enough."""
        if generation.finished is not None or generation.request_id not in self._generations:
            return
        interval = generation.interval or 1
        produced = self.core.output_tokens(generation.request_id)
        new = produced - generation.produced
        if new >= interval:
            generation.produced = produced
            generation.changed.set()
            new = 0
        self._look_again(generation, iteration, interval - new)

    def _look_again(self, generation: Generation, iteration: int, steps: int) -> None:
        self._due[iteration + min(steps, _LOOK_AHEAD_STEPS)].append(generation)

    def _finish(self, finished: FinishedRequest) -> None:
        # What the engine did counts, even if the client left after the step was computed.
        self._lengths.add(
            listed(self.settings.config, finished.traffic_class), finished.prompt_tokens, finished.output_tokens
        )
        if self._vllm is not None and self._metrics is not None:
            self._vllm.finished(finished)
            self._metrics.completed(
                finished.traffic_class, finished.prompt_tokens, finished.output_tokens, finished.predicted_output
            )
        generation = self._generations.pop(finished.request_id, None)
        if generation is not None:
            generation.produced = finished.output_tokens
            generation.finished = finished
            generation.changed.set()
        self._check_empty()

    def _check_empty(self) -> None:
        if not self._generations:
            self._empty.set()

    # ------------------------------------------------------------------ control

    def _apply(self, config: WorkerConfig) -> None:
        self.core.apply(config)
        self._lengths.retain(exported_classes(config))

    def state(self) -> WorkerState:
        """See AdminEngine."""
        core, config = self.core, self.settings.config
        in_flight = dict.fromkeys(exported_classes(config), 0)
        for name, count in core.in_flight_by_class().items():
            in_flight[listed(config, name)] += count
        return WorkerState(
            applied_generation=config.generation,
            config_hash=self.settings.config_hash,
            engine=self._version,
            scheduler="evenflow",
            policy=config.policy,
            kv_capacity_tokens=core.kv_capacity_tokens,
            block_size=core.spec.block_size,
            iterations=core.counters.iterations,
            running=core.running,
            waiting=core.waiting,
            in_flight=in_flight,
        )

    def lengths(self) -> WorkerLengths:
        """See AdminEngine."""
        return self._lengths.document()

    def figures(self) -> EngineFigures:
        """What WorkerMetrics reads at each scrape."""
        core, counters = self.core, self.core.counters
        now = max(self.clock.now(), core.now) if not core.has_work else core.now
        return EngineFigures(
            iterations=counters.iterations,
            recomputed_tokens=counters.recomputed_tokens,
            kv_capacity_tokens=core.kv_capacity_tokens,
            admitted_new=counters.admitted_new,
            admitted_resumed=counters.admitted_resumed,
            evictions=counters.evictions,
            completed=counters.completed,
            waiting=core.waiting_by_class(),
            predictor_fallbacks=core.predictor_fallbacks,
            kv_usage_peaks=self._peaks.peaks(now, core.kv_usage),
        )
