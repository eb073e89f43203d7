"""The `vllm:` series, with vLLM's names, labels, types and buckets, so that what is built for vLLM works here.

Durations are engine seconds. As in vLLM, prompt tokens count once, at their first prefill, and an aborted request is no
success.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from evenflow_contract import metrics as names
from evenflow_model.fleet.records import FinishedRequest
from evenflow_worker.metrics import Buckets
from evenflow_worker.simulated.core import EngineCore
from evenflow_worker.simulated.records import StepOutcome

_ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50, 100)


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `largest`: vLLM's buckets for lengths."""
    bounds: list[float] = []
    power = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * power > largest:
                return tuple(bounds)
            bounds.append(float(mantissa * power))
        power *= 10


class VllmMetrics(Collector):
    """Fed once per step and once per completion; gauges and counters are read from the core at scrape time."""

    def __init__(self, registry: CollectorRegistry, core: EngineCore, model_name: str) -> None:
        self._core = core
        self._labels = (model_name, "0")
        lengths = one_two_five(core.spec.max_model_len)
        self._iteration_tokens = Buckets(_ITERATION_TOKENS)
        self._first_token = Buckets(_FIRST_TOKEN)
        self._inter_token = Buckets(_PER_TOKEN)
        self._time_per_token = Buckets(_PER_TOKEN)
        self._prompt = Buckets(lengths)
        self._generation = Buckets(lengths)
        self._preemptions = Buckets(_PREEMPTIONS)
        self._latency = Buckets(_LATENCY)
        self._queue = Buckets(_LATENCY)
        self._prefill = Buckets(_LATENCY)
        self._decode = Buckets(_LATENCY)
        self._inference = Buckets(_LATENCY)
        self._success = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self._prompt_tokens_seen = 0
        self._stalled: dict[str, float] = {}
        registry.register(self)

    def step(self, outcome: StepOutcome) -> None:
        """Observe one iteration. Call in order, after the core took it."""
        prompt_tokens = self._core.counters.prompt_tokens
        tokens = len(outcome.tokens)
        if tokens:
            self._iteration_tokens.observe(prompt_tokens - self._prompt_tokens_seen + tokens)
            self._prompt_tokens_seen = prompt_tokens
        decoded = tokens - len(outcome.first_tokens)
        if self._stalled:
            decoded -= self._resume(outcome)
        if decoded > 0:
            self._inter_token.observe(outcome.duration_s, decoded)
        for request_id in outcome.evicted:
            self._stalled[request_id] = outcome.started_s

    def forget(self, request_id: str) -> None:
        """The request was aborted."""
        self._stalled.pop(request_id, None)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def finished(self, request: FinishedRequest) -> None:
        self._success[request.reason] += 1
        decode = request.finished_s - request.first_token_s
        self._latency.observe(request.finished_s - request.arrival_s)
        self._queue.observe(max(request.admitted_s - request.arrival_s, 0.0))
        self._prefill.observe(request.first_token_s - request.admitted_s)
        self._decode.observe(decode)
        self._inference.observe(request.finished_s - request.admitted_s)
        if request.output_tokens > 1:
            self._time_per_token.observe(decode / (request.output_tokens - 1))
        self._prompt.observe(request.prompt_tokens)
        self._generation.observe(request.output_tokens)
        self._preemptions.observe(request.evictions)

    def _resume(self, outcome: StepOutcome) -> int:
        """Evicted requests that produce a token again: their gap reaches back to before the eviction."""
        back = self._stalled.keys() & outcome.tokens
        ended = outcome.started_s + outcome.duration_s
        first = set(outcome.first_tokens)
        counted = 0
        for request_id in back:
            since = self._stalled.pop(request_id)
            if request_id not in first:
                self._inter_token.observe(ended - since)
                counted += 1
        return counted

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        core, counters = self._core, self._core.counters
        yield self._gauge(names.VLLM_RUNNING, "Number of requests in model execution batches.", core.running)
        yield self._gauge(names.VLLM_WAITING, "Number of requests waiting to be processed.", core.waiting)
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Number of requests waiting, by reason.", labels=_labels("reason")
        )
        by_reason.add_metric([*self._labels, "capacity"], core.waiting)
        by_reason.add_metric([*self._labels, "deferred"], 0)
        yield by_reason
        yield self._gauge(names.VLLM_KV_USAGE, "KV-cache usage. 1 means 100 percent usage.", core.kv_usage)
        for name, text, value in (
            (names.VLLM_PREEMPTIONS, "Cumulative number of preemption from the engine.", counters.evictions.total()),
            (names.VLLM_PROMPT_TOKENS, "Number of prefill tokens processed.", counters.prompt_tokens),
            (names.VLLM_GENERATION_TOKENS, "Number of generation tokens processed.", counters.generation_tokens),
        ):
            counter = CounterMetricFamily(name, text, labels=_labels())
            counter.add_metric(self._labels, value)
            yield counter
        success = CounterMetricFamily(
            "vllm:request_success_total", "Count of successfully processed requests.", labels=_labels("finished_reason")
        )
        for reason, count in self._success.items():
            success.add_metric([*self._labels, reason], count)
        yield success
        yield from self._histograms()
        yield self._cache_config()

    def _histograms(self) -> Iterator[HistogramMetricFamily]:
        for name, text, buckets in (
            ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", self._iteration_tokens),
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", self._first_token),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", self._inter_token),
            (
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
                self._time_per_token,
            ),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", self._latency),
            ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", self._queue),
            (
                "request_inference_time_seconds",
                "Histogram of time spent in RUNNING phase for request.",
                self._inference,
            ),
            ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", self._prefill),
            ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", self._decode),
            ("request_prompt_tokens", "Number of prefill tokens processed.", self._prompt),
            ("request_generation_tokens", "Number of generation tokens processed.", self._generation),
            ("request_num_preemptions", "Histogram of preemptions per request.", self._preemptions),
        ):
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=_labels())
            buckets.add_to(family, {"model_name": self._labels[0], "engine": self._labels[1]})
            yield family

    def _cache_config(self) -> GaugeMetricFamily:
        core = self._core
        blocks, size = core.num_gpu_blocks, core.spec.block_size
        labels = {
            "block_size": str(size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "False",
            "kv_cache_size_tokens": str(blocks * size),
            "num_gpu_blocks": str(blocks),
            "engine": self._labels[1],
        }
        family = GaugeMetricFamily(
            names.VLLM_CACHE_CONFIG_INFO, "Information of the LLMEngine CacheConfig", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1)
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=_labels())
        family.add_metric(self._labels, value)
        return family


def _labels(*more: str) -> list[str]:
    return ["model_name", "engine", *more]
