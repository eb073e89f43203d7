"""The vllm: series, against what the core knows."""

import random

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from evenflow_contract import metrics as names
from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec
from evenflow_worker.simulated.core import EngineCore
from evenflow_worker.simulated.vllm_metrics import VllmMetrics, one_two_five

GAUGES = {
    "num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
    "cache_config_info",
}  # fmt: skip
COUNTERS = {"num_preemptions", "prompt_tokens", "generation_tokens", "request_success"}
HISTOGRAMS = {
    "iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens", "request_num_preemptions",
    "request_queue_time_seconds", "e2e_request_latency_seconds", "time_to_first_token_seconds",
    "inter_token_latency_seconds", "request_time_per_output_token_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds",
}  # fmt: skip


class Run:
    """A small engine that evicts, stepped to its end."""

    def __init__(self, seed, requests=120):
        draw = random.Random(seed)
        self.registry = CollectorRegistry()
        self.core = EngineCore(EngineSpec(kv_tokens=2048, max_model_len=2048, max_num_seqs=32), WorkerConfig())
        metrics = VllmMetrics(self.registry, self.core, "m")
        self.finished = []
        self.gaps = []
        last: dict[str, float] = {}
        arrivals: dict[str, float] = {}
        self.first_tokens = []
        pending = [
            EngineRequest(f"r{index}", draw.randint(1, 200), draw.randint(1, 400), 500, "default", 0.0)
            for index in range(requests)
        ]
        while pending or self.core.has_work:
            for request in [pending.pop() for _ in range(min(len(pending), 3))]:
                arrivals[request.request_id] = self.core.now
                self.core.add(
                    EngineRequest(
                        request.request_id, request.prompt_tokens, request.output_tokens, 500, "default", self.core.now
                    )
                )
            outcome = self.core.step()
            metrics.step(outcome)
            ended = outcome.started_s + outcome.duration_s
            for request_id in outcome.first_tokens:
                metrics.first_token(ended - arrivals[request_id])
                self.first_tokens.append(ended - arrivals[request_id])
            for request_id in outcome.tokens:
                if request_id in last:
                    self.gaps.append(ended - last[request_id])
                last[request_id] = ended
            for finished in outcome.finished:
                metrics.finished(finished)
                self.finished.append(finished)
        self.metrics = metrics

    def value(self, name, **labels):
        found = self.registry.get_sample_value(f"vllm:{name}", {"model_name": "m", "engine": "0", **labels})
        assert found is not None, name
        return found


@pytest.fixture(scope="module")
def run():
    return Run(7)


def test_names_types_and_labels(run):
    families = {
        family.name: family for family in text_string_to_metric_families(generate_latest(run.registry).decode())
    }
    kinds = {"gauge": GAUGES, "counter": COUNTERS, "histogram": HISTOGRAMS}
    for kind, expected in kinds.items():
        found = {name.removeprefix("vllm:") for name, family in families.items() if family.type == kind}
        assert found == expected
    for name, family in families.items():
        for sample in family.samples:
            if name != names.VLLM_CACHE_CONFIG_INFO:
                assert sample.labels["model_name"] == "m"
            assert sample.labels["engine"] == "0"


def test_every_name_that_the_operator_reads_exists(run):
    text = generate_latest(run.registry).decode()
    for key, name in vars(names).items():
        if key.startswith("VLLM_"):
            assert f"\n{name}{{" in text, name


def test_counters_are_the_cores(run):
    counters = run.core.counters
    assert counters.evictions.total() > 0
    assert run.value("num_preemptions_total") == counters.evictions.total()
    assert run.value("prompt_tokens_total") == sum(item.prompt_tokens for item in run.finished)
    assert run.value("generation_tokens_total") == sum(item.output_tokens for item in run.finished)
    assert run.value("request_success_total", finished_reason="stop") == len(run.finished) == 120
    assert run.value("request_num_preemptions_sum") == counters.evictions.total()


def test_iteration_tokens_leave_recomputation_out(run):
    # As in vLLM: prompt tokens at their first prefill, and generated ones.
    expected = run.value("prompt_tokens_total") + run.value("generation_tokens_total")
    assert run.value("iteration_tokens_total_sum") == expected
    assert 0 < run.value("iteration_tokens_total_count") <= run.core.counters.iterations


def test_durations_are_those_of_the_requests(run):
    latencies = [item.finished_s - item.arrival_s for item in run.finished]
    assert run.value("e2e_request_latency_seconds_sum") == pytest.approx(sum(latencies))
    assert run.value("time_to_first_token_seconds_sum") == pytest.approx(sum(run.first_tokens))
    parts = sum(run.value(f"request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(sum(latencies))
    assert run.value("request_inference_time_seconds_count") == 120


def test_inter_token_latency_spans_evictions(run):
    assert run.value("inter_token_latency_seconds_count") == len(run.gaps)
    assert run.value("inter_token_latency_seconds_sum") == pytest.approx(sum(run.gaps), rel=0.02)


def test_capacity_counts_the_null_block(run):
    labels = {
        "block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": "False", "kv_cache_size_tokens": "2064",
        "num_gpu_blocks": "129", "engine": "0",
    }  # fmt: skip
    assert run.registry.get_sample_value(names.VLLM_CACHE_CONFIG_INFO, labels) == 1
    assert run.core.kv_capacity_tokens == (129 - 1) * 16


def test_buckets_of_lengths():
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)
    assert one_two_five(4096)[-1] == 2000
