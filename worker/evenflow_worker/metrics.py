"""The worker's own metric set `evenflow_…` (docs/reference/metrics.md), for both engines.

Nothing is done per engine iteration: a collector reads the engine's cumulative figures when somebody scrapes. Only
completions and predictions are observed as they happen. Durations and windows run on the engine's clock.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from evenflow_contract import metrics as names
from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.control.classes import exported_classes, listed
from evenflow_worker.control.settings import Settings

LENGTH_BUCKETS: tuple[float, ...] = tuple(
    sorted({float(round(base * 2**power)) for power in range(18) for base in (1.0, 1.5)})
)
"""1, 2, 3, 4, 6, 8, 12, … 131072, 196608 tokens: two buckets to the octave."""
DIFFERENCE_BUCKETS = (-4096.0, -1024.0, -256.0, -64.0, -16.0, 0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
LATENCY_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Buckets:
    """A histogram that can count many equal observations at once, and is rendered only when scraped."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def add_to(self, family: HistogramMetricFamily, labels: Mapping[str, str]) -> None:
        """Add the buckets under these labels, which stand in the family's order.

        A histogram with negative bounds gets no `_sum`, as Prometheus wants it: that would not be a counter.
        """
        running = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == math.inf else repr(bound), running))
        if self._bounds[0] >= 0:
            family.add_metric(list(labels.values()), buckets, self._sum)
            return
        family.add_metric(list(labels.values()), buckets, None)
        family.add_sample(f"{family.name}_count", dict(labels), running)


class UsagePeaks:
    """The largest KV usage of the last 10, 30 and 60 seconds of the engine's clock.

    Holds only samples that could still be a maximum, at most one per `resolution_seconds`: bounded, O(1) amortised.
    """

    def __init__(
        self, windows: Sequence[int] = names.PEAK_WINDOWS_SECONDS, *, resolution_seconds: float = 0.05
    ) -> None:
        self._windows = tuple(sorted(windows))
        self._resolution = resolution_seconds
        self._samples: deque[tuple[float, float]] = deque()

    def observe(self, now: float, usage: float) -> None:
        """Record that `usage` (0 to 1) was reached at engine time `now`, which never goes back."""
        samples = self._samples
        while samples and samples[-1][1] <= usage:
            samples.pop()
        if not samples or now - samples[-1][0] >= self._resolution:
            samples.append((now, usage))
        oldest = now - self._windows[-1]
        while samples and samples[0][0] < oldest:
            samples.popleft()

    def peaks(self, now: float, current: float) -> dict[int, float]:
        """Per window: the peak, at least the usage `current` that holds right now."""
        found: dict[int, float] = {}
        for window in self._windows:
            inside = (usage for when, usage in tuple(self._samples) if when >= now - window)
            found[window] = max(next(inside, current), current)
        return found


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an engine knows at the moment of a scrape. Counts are cumulative since its start.

    Per class as counted by the engine; what the config doesn't list is folded into `default`. Fallbacks are per reason.
    """

    iterations: int
    recomputed_tokens: int
    kv_capacity_tokens: int
    admitted_new: Mapping[str, int] = field(default_factory=dict)
    admitted_resumed: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    completed: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    predictor_fallbacks: Mapping[str, int] = field(default_factory=dict)
    kv_usage_peaks: Mapping[int, float] = field(default_factory=dict)


class WorkerMetrics(Collector):
    """Registers itself on `registry`. `figures` is called at each scrape, so it must be cheap and thread-safe; so is
    `in_force`, the config by which the engine schedules, which may be older than the accepted one.

    `figures` answers None where nothing of ours counts, under stock scheduling: those series are then absent, because
    a zero that never moves would say that the engine stands still.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        settings: Settings,
        figures: Callable[[], EngineFigures | None],
        in_force: Callable[[], WorkerConfig],
        *,
        engine: str,
        scheduler: str = "evenflow",
        hooks: Iterable[str] = (),
    ) -> None:
        self._settings = settings
        self._figures = figures
        self._in_force = in_force
        self._info = {"engine": engine, "scheduler": scheduler}
        self._misrouted = 0
        self._prompt: dict[str, Buckets] = {}
        self._output: dict[str, Buckets] = {}
        self._difference: dict[str, Buckets] = {}
        self._predictor_latency = Buckets(LATENCY_BUCKETS)
        self._predictor_batch = Buckets(BATCH_BUCKETS)
        self._hook_errors = dict.fromkeys(hooks, 0)
        registry.register(self)

    def completed(self, traffic_class: str, prompt_tokens: int, output_tokens: int, predicted: float | None) -> None:
        """Observe one completed request; `predicted` is the output length it was scheduled by, None if unknown."""
        name = listed(self._settings.config, traffic_class)
        _of(self._prompt, name, LENGTH_BUCKETS).observe(prompt_tokens)
        _of(self._output, name, LENGTH_BUCKETS).observe(output_tokens)
        if predicted is not None and math.isfinite(predicted):
            _of(self._difference, name, DIFFERENCE_BUCKETS).observe(predicted - output_tokens)

    def predicted(self, batch: int, seconds: float) -> None:
        """Observe one call of the predictor: requests in the batch, and its duration."""
        self._predictor_batch.observe(batch)
        self._predictor_latency.observe(seconds)

    def hook_failed(self, hook: str) -> None:
        """Count an exception that a guarded hook of ours swallowed; `hook` is the hook's name."""
        self._hook_errors[hook] = self._hook_errors.get(hook, 0) + 1

    def misrouted(self) -> None:
        """Count a request that came while draining, or for a class that this engine wasn't given."""
        self._misrouted += 1

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: so that registering doesn't call the engine."""
        return ()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        figures = self._figures()
        config, in_force = self._settings.config, self._in_force()
        classes = exported_classes(config)
        yield _gauge(names.APPLIED_GENERATION, "Generation of the worker config in force.", in_force.generation)
        if figures is not None:
            yield from self._by_class(figures, config, classes)
            yield from _memory_and_steps(figures)
            yield from _caps(in_force)
            yield from self._lengths(classes)
            yield from self._predictor(figures.predictor_fallbacks)
            yield _counter(
                names.MISROUTED_REQUESTS, "Requests served while draining or for a class not listed.", self._misrouted
            )
        yield _counter(names.CONFIG_REFUSED, "Worker configs refused.", self._settings.refused_total)
        yield _labelled(names.HOOK_ERRORS, "Exceptions swallowed by guarded hooks.", "hook", self._hook_errors)
        yield self._scheduler_info(in_force)

    def _by_class(
        self, figures: EngineFigures, config: WorkerConfig, classes: Sequence[str]
    ) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        admitted = CounterMetricFamily(
            names.ADMITTED_REQUESTS,
            "Requests admitted to the running batch; resumed ones had been evicted.",
            labels=[names.LABEL_CLASS, names.LABEL_KIND],
        )
        for kind, counts in ((names.KIND_NEW, figures.admitted_new), (names.KIND_RESUMED, figures.admitted_resumed)):
            for name, value in _folded(counts, config, classes).items():
                admitted.add_metric([name, kind], value)
        yield admitted
        for metric, text, counts in (
            (names.EVICTIONS, "Running requests that lost their KV memory.", figures.evictions),
            (names.COMPLETED_REQUESTS, "Requests that ran to their end.", figures.completed),
        ):
            yield _labelled(metric, text, names.LABEL_CLASS, _folded(counts, config, classes))
        waiting = GaugeMetricFamily(
            names.WAITING_REQUESTS, "Requests waiting for admission.", labels=[names.LABEL_CLASS]
        )
        for name, value in _folded(figures.waiting, config, classes).items():
            waiting.add_metric([name], value)
        yield waiting

    def _lengths(self, classes: Sequence[str]) -> Iterator[HistogramMetricFamily]:
        for metric, text, store, bounds in (
            (names.PROMPT_TOKENS, "Prompt tokens of completed requests.", self._prompt, LENGTH_BUCKETS),
            (names.OUTPUT_TOKENS, "Output tokens of completed requests.", self._output, LENGTH_BUCKETS),
            (
                names.PREDICTED_MINUS_ACTUAL,
                "Predicted minus actual output tokens of completed requests.",
                self._difference,
                DIFFERENCE_BUCKETS,
            ),
        ):
            family = HistogramMetricFamily(metric, text, labels=[names.LABEL_CLASS])
            for name in classes:
                _of(store, name, bounds).add_to(family, {names.LABEL_CLASS: name})
            yield family

    def _predictor(self, fallbacks: Mapping[str, int]) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        latency = HistogramMetricFamily(names.PREDICTOR_LATENCY, "Duration of one call of the predictor.", labels=[])
        self._predictor_latency.add_to(latency, {})
        yield latency
        batch = HistogramMetricFamily(names.PREDICTOR_BATCH_SIZE, "Requests in one call of the predictor.", labels=[])
        self._predictor_batch.add_to(batch, {})
        yield batch
        yield _labelled(names.PREDICTOR_FALLBACK, "Requests scheduled by the prior instead.", "reason", fallbacks)

    def _scheduler_info(self, config: WorkerConfig) -> GaugeMetricFamily:
        labels = {
            **self._info,
            "policy": config.policy,
            "victim": config.victim,
            "predictor": config.predictor.type,
        }
        family = GaugeMetricFamily(
            names.SCHEDULER_INFO, "The scheduler that runs: evenflow, or stock after a fallback.", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1.0)
        return family


def _of(store: dict[str, Buckets], name: str, bounds: Sequence[float]) -> Buckets:
    found = store.get(name)
    if found is None:
        found = store[name] = Buckets(bounds)
    return found


def _folded(counts: Mapping[str, int], config: WorkerConfig, classes: Sequence[str]) -> dict[str, int]:
    """Counts of every exported class, zeros included: a series must not appear only with its first event."""
    folded = dict.fromkeys(classes, 0)
    for name, value in counts.items():
        folded[listed(config, name)] += value
    return folded


def _memory_and_steps(figures: EngineFigures) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    yield _counter(names.RECOMPUTED_TOKENS, "Tokens prefilled again after an eviction.", figures.recomputed_tokens)
    yield _counter(names.ITERATIONS, "Engine iterations.", figures.iterations)
    yield _gauge(names.KV_CAPACITY_TOKENS, "Usable KV memory in tokens.", figures.kv_capacity_tokens)
    peaks = GaugeMetricFamily(
        names.KV_USAGE_PEAK_RATIO, "Largest KV usage in a window of engine time.", labels=[names.LABEL_WINDOW]
    )
    for window, usage in sorted(figures.kv_usage_peaks.items()):
        peaks.add_metric([f"{window}s"], usage)
    yield peaks


def _caps(config: WorkerConfig) -> Iterator[GaugeMetricFamily]:
    """+Inf is what no cap in this unit means."""
    admission = config.admission
    for metric, unit, text in (
        (names.ADMISSION_CAP_REQUESTS, "Requests", "Admission cap in requests per iteration; +Inf is none."),
        (names.ADMISSION_CAP_VOLUME_RATIO, "Volume", "Admission cap in multiples of M per iteration; +Inf is none."),
    ):
        capped = admission.mode == "Limited" and admission.unit == unit and admission.per_iteration is not None
        yield _gauge(metric, text, admission.per_iteration if capped and admission.per_iteration else math.inf)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
