"""What one engine of vLLM's tells the admin API and the metrics, from the admin server's thread."""

from collections import Counter
from typing import Any

from prometheus_client import CollectorRegistry

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerLengths, WorkerState
from evenflow_worker.control.classes import exported_classes, listed
from evenflow_worker.control.lengths import LengthObservations
from evenflow_worker.control.settings import Settings
from evenflow_worker.metrics import EngineFigures, WorkerMetrics
from evenflow_worker.vllm.events import HOOKS, Completion, FellBack, HookFailed, Misrouted, ModelAsked
from evenflow_worker.vllm.hooks import Hooks
from evenflow_worker.vllm.record import record_of
from evenflow_worker.vllm.steering import Steering


class EngineReport:
    """Serves AdminEngine and WorkerMetrics. The engine's thread only appends to a bounded queue of events, which is
    drained here; everything else is read as copies that one C call makes, so no lock is needed."""

    def __init__(
        self,
        scheduler: Any,
        registry: CollectorRegistry,
        hooks: Hooks | None,
        *,
        version: str,
        stock_reason: str | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._hooks = hooks
        self._steering: Steering | None = None if hooks is None else hooks.steering
        self._version = version
        self._reason = stock_reason
        self._kind = "evenflow" if self._steering is not None else "stock"
        self._lengths = LengthObservations()
        self._fallbacks: Counter[str] = Counter()
        self.settings = Settings(self._offer)
        self._lengths.retain(exported_classes(self.settings.config))
        self.metrics = WorkerMetrics(
            registry,
            self.settings,
            self.figures,
            self._in_force,
            engine=version,
            scheduler=self._kind,
            hooks=() if hooks is None else HOOKS,
        )

    def _offer(self, config: WorkerConfig) -> None:
        if self._steering is not None:
            self._steering.offer(config)
        self._lengths.retain(exported_classes(config))

    # ------------------------------------------------------------------ AdminEngine

    def state(self) -> WorkerState:
        """See AdminEngine. The generation is the one by which the next request will be scheduled."""
        scheduler = self._scheduler
        config = self._in_force()
        in_flight = dict.fromkeys(exported_classes(config), 0)
        for name, count in self._by_class(waiting_only=False).items():
            in_flight[listed(config, name)] += count
        running, waiting = self._counts()
        return WorkerState(
            applied_generation=config.generation,
            config_hash=config.content_hash(),
            engine=self._version,
            scheduler=self._kind,
            policy=config.policy if self._steering is not None else "FCFS",
            kv_capacity_tokens=self._capacity(),
            block_size=max(int(getattr(scheduler, "block_size", 1)), 1),
            iterations=0 if self._steering is None else self._steering.counters.iterations,
            running=running,
            waiting=waiting,
            in_flight=in_flight,
            reason=self._reason,
        )

    def lengths(self) -> WorkerLengths:
        """See AdminEngine."""
        self.drain()
        return self._lengths.document()

    def figures(self) -> EngineFigures | None:
        """What WorkerMetrics reads at each scrape; None under stock scheduling, which only vLLM's own page measures."""
        self.drain()
        hooks = self._hooks
        if hooks is None:
            return None
        counters = hooks.steering.counters
        pool = self._scheduler.kv_cache_manager.block_pool
        usage = 1.0 - pool.get_num_free_blocks() / max(pool.num_gpu_blocks - 1, 1)
        return EngineFigures(
            iterations=counters.iterations,
            recomputed_tokens=counters.recomputed_tokens,
            kv_capacity_tokens=self._capacity(),
            admitted_new=dict(counters.admitted_new),
            admitted_resumed=dict(counters.admitted_resumed),
            evictions=dict(counters.evictions),
            completed=dict(counters.completed),
            waiting=self._by_class(waiting_only=True),
            predictor_fallbacks=self._fallbacks + Counter(dict(counters.predictor_fallbacks)),
            kv_usage_peaks=hooks.peaks.peaks(hooks.steering.clock(), usage),
        )

    # ------------------------------------------------------------------ helpers

    def drain(self) -> None:
        """Count what the engine has reported since the last call; also called while nobody asks, to stay small."""
        if self._steering is None:
            return
        events = self._steering.events
        while events:
            match events.popleft():
                case Completion() as done:
                    name = listed(self.settings.config, done.traffic_class)
                    self._lengths.add(name, done.prompt_tokens, done.output_tokens)
                    self.metrics.completed(name, done.prompt_tokens, done.output_tokens, done.predicted)
                case HookFailed(hook):
                    self.metrics.hook_failed(hook)
                case FellBack(reason, count):
                    self._fallbacks[reason] += count
                case ModelAsked(batch, seconds):
                    self.metrics.predicted(batch, seconds)
                case Misrouted():
                    self.metrics.misrouted()

    def _in_force(self) -> WorkerConfig:
        """The applied config; one that was handed over counts as soon as no pass by an older one can follow: every
        pass and every new request begins by taking it, so only a pass that is running now may still be older."""
        steering = self._steering
        newest = self.settings.config
        if steering is None or steering.config is newest:
            return newest
        idle = self._scheduler.get_num_unfinished_requests() == 0
        return newest if steering.offered and idle else steering.config

    def _capacity(self) -> int:
        """In tokens; 0 where this vLLM no longer says it, which the operator takes as unknown."""
        try:
            pool = self._scheduler.kv_cache_manager.block_pool
            return max(int(pool.num_gpu_blocks) - 1, 1) * int(self._scheduler.block_size)
        except AttributeError:
            return 0

    def _counts(self) -> tuple[int, int]:
        """Running and waiting requests. Must answer under stock scheduling, too, whatever name is missing there."""
        scheduler = self._scheduler
        try:
            running, waiting = scheduler.get_request_counts()
        except AttributeError:
            running = len(scheduler.running)
            waiting = len(scheduler.requests) - running
        return running, waiting

    def _by_class(self, *, waiting_only: bool) -> dict[str, int]:
        running = set(map(id, list(self._scheduler.running))) if waiting_only else ()
        counts: Counter[str] = Counter()
        for request in list(self._scheduler.requests.values()):
            if id(request) not in running and not _finished(request):
                record = record_of(request)
                counts["" if record is None else record.traffic_class] += 1
        return dict(counts)


def _finished(request: Any) -> bool:
    """A finished request stays with vLLM while its KV is sent to another engine. Asked under stock scheduling, too."""
    asked = getattr(request, "is_finished", None)
    return asked is not None and bool(asked())
