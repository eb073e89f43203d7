"""The evenflow_ series."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from evenflow_contract import metrics as names
from evenflow_worker.control.settings import Settings, Source
from evenflow_worker.metrics import Buckets, EngineFigures, UsagePeaks, WorkerMetrics

CONTRACT_NAMES = {
    value for key, value in vars(names).items() if key.isupper() and str(value).startswith(names.PREFIX)
} - {names.PREFIX}

FIGURES = EngineFigures(
    iterations=100,
    recomputed_tokens=7,
    kv_capacity_tokens=4096,
    admitted_new={"chat": 5, "gone": 2, "default": 1, "also-gone": 4},
    admitted_resumed={"chat": 1},
    evictions={"gone": 3},
    completed={"chat": 4},
    waiting={"code": 9},
    predictor_fallbacks={"error": 2},
    kv_usage_peaks={10: 0.5, 30: 0.6, 60: 0.75},
)


@pytest.fixture
def settings(config_document):
    settings = Settings(lambda config: None)
    settings.apply(config_document(17), Source.PUSH)
    return settings


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry, settings):
    return WorkerMetrics(registry, settings, lambda: FIGURES, lambda: settings.config, engine="test 1")


def families(registry):
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def value(registry, name, **labels):
    found = registry.get_sample_value(name, labels)
    assert found is not None, f"{name} {labels} is absent"
    return found


def test_every_name_of_the_contract_is_exported_and_no_other(registry, metrics):
    metrics.hook_failed("schedule")
    found = families(registry)
    exported = {name + ("_total" if family.type == "counter" else "") for name, family in found.items()}
    assert exported == CONTRACT_NAMES
    assert all(family.samples for family in found.values())


def test_counts_are_per_listed_class_and_the_rest_is_default(registry, metrics):
    assert value(registry, names.ADMITTED_REQUESTS, traffic_class="chat", kind="new") == 5
    assert value(registry, names.ADMITTED_REQUESTS, traffic_class="chat", kind="resumed") == 1
    assert value(registry, names.ADMITTED_REQUESTS, traffic_class="default", kind="new") == 7
    assert value(registry, names.EVICTIONS, traffic_class="default") == 3
    assert value(registry, names.EVICTIONS, traffic_class="code") == 0
    assert value(registry, names.WAITING_REQUESTS, traffic_class="code") == 9
    assert b"gone" not in generate_latest(registry)


def test_a_class_that_is_no_longer_listed_disappears(registry, metrics, settings, config_document):
    metrics.completed("code", 10, 20, None)
    assert value(registry, names.OUTPUT_TOKENS + "_count", traffic_class="code") == 1
    settings.apply(config_document(18, classes=["chat"]), Source.PUSH)
    metrics.completed("code", 10, 20, None)
    assert b'"code"' not in generate_latest(registry)
    assert value(registry, names.OUTPUT_TOKENS + "_count", traffic_class="default") == 1


def test_caps_say_infinity_where_there_is_none(registry, metrics, settings, config_document):
    assert value(registry, names.ADMISSION_CAP_VOLUME_RATIO) == 2.5
    assert value(registry, names.ADMISSION_CAP_REQUESTS) == math.inf
    limited = {"mode": "Limited", "unit": "Requests", "perIteration": 0.5, "watermark": 0}
    settings.apply(config_document(18, admission=limited), Source.PUSH)
    assert value(registry, names.ADMISSION_CAP_VOLUME_RATIO) == math.inf
    assert value(registry, names.ADMISSION_CAP_REQUESTS) == 0.5
    off = {"mode": "Off", "unit": "Volume", "watermark": 0}
    settings.apply(config_document(19, admission=off), Source.PUSH)
    assert value(registry, names.ADMISSION_CAP_VOLUME_RATIO) == math.inf
    assert value(registry, names.APPLIED_GENERATION) == 19


def test_refusals_misroutings_and_peaks(registry, metrics, settings):
    settings.apply("nonsense", Source.PUSH)
    metrics.misrouted()
    assert value(registry, names.CONFIG_REFUSED) == 1
    assert value(registry, names.MISROUTED_REQUESTS) == 1
    assert value(registry, names.KV_USAGE_PEAK_RATIO, window="60s") == 0.75
    assert value(registry, names.PREDICTOR_FALLBACK, reason="error") == 2


def test_predictions_are_compared_with_what_came(registry, metrics):
    metrics.completed("chat", 100, 50, 70.0)
    metrics.completed("chat", 100, 50, math.nan)
    metrics.predicted(4, 0.0001)
    name = names.PREDICTED_MINUS_ACTUAL
    assert value(registry, name + "_count", traffic_class="chat") == 1
    assert value(registry, name + "_bucket", traffic_class="chat", le="16.0") == 0
    assert value(registry, name + "_bucket", traffic_class="chat", le="64.0") == 1
    assert registry.get_sample_value(name + "_sum", {"traffic_class": "chat"}) is None
    assert value(registry, names.PREDICTOR_BATCH_SIZE + "_sum") == 4


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 3)), max_size=30),
    st.sampled_from([(0.0, 1.0, 2.5, 9.0), (-5.0, 0.0, 5.0)]),
)
def test_buckets_are_prometheus_buckets(observations, bounds):
    registry = CollectorRegistry()
    reference = Histogram("h", "h", buckets=bounds, registry=registry)
    buckets = Buckets(bounds)
    for amount, count in observations:
        buckets.observe(amount, count)
        for _ in range(count):
            reference.observe(amount)
    family = HistogramMetricFamily("h", "h", labels=[])
    buckets.add_to(family, {})
    wanted = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in next(iter(registry.collect())).samples
        if not sample.name.endswith("_created")
    }
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert found == pytest.approx(wanted)


def test_peaks_are_those_of_the_windows(seed):
    draw = random.Random(seed)
    peaks = UsagePeaks((10, 30, 60), resolution_seconds=0.0)
    history = []
    now = 0.0
    for _ in range(2000):
        now += draw.expovariate(5.0)
        usage = draw.random() ** 3
        history.append((now, usage))
        peaks.observe(now, usage)
        later = now + draw.choice((0.0, 3.0))
        expected = {
            window: max([used for when, used in history if when >= later - window] + [0.01]) for window in (10, 30, 60)
        }
        assert peaks.peaks(later, 0.01) == expected


def test_peaks_need_little_memory():
    peaks = UsagePeaks()
    for step in range(200_000):
        peaks.observe(step * 0.01, 1.0 - step * 1e-6)
    assert len(peaks._samples) <= 60 / 0.05 + 2
    assert peaks.peaks(2000.0, 0.0)[60] == pytest.approx(1.0 - 194_000e-6, abs=1e-5)
