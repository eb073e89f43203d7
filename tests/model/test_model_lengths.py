import json
import math
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_model.congestion import eviction_free_rate, pulse_cycle_rate
from evenflow_model.lengths import LengthMix
from evenflow_model.volume import block_volume, volume

GOLDEN = json.loads((Path(__file__).parent / "golden" / "congestion.json").read_text())
OUTPUTS = {
    "c24": [2, 4],
    "{128,256,512}": [128, 256, 512],
    "{100,125}": [100, 125],
    "{100,125,200,250}": [100, 125, 200, 250],
    "det256": [256],
    "{20}": [20],
    "{96,224,512}": [96, 224, 512],
    "{112,256,512}": [112, 256, 512],
    "{5,10}": [5, 10],
}
rows = st.lists(st.tuples(st.floats(0.01, 10), st.integers(0, 4000), st.integers(1, 2000)), min_size=1, max_size=12)


def equal(*outputs, prompt=512):
    return LengthMix([(1, prompt, o) for o in outputs])


def spread(mix):
    mean = mix.mean_output()
    return math.sqrt(float(mix.shares @ (mix.outputs.astype(float) - mean) ** 2)) / mean


@pytest.mark.parametrize("case", GOLDEN["xstar"])
def test_eviction_free_rate_golden(case):
    mix = LengthMix([(float(Fraction(p)), s, o) for p, s, o in case["classes"]])
    assert eviction_free_rate(mix, case["M"]) == pytest.approx(float(Fraction(case["x"])), rel=1e-13)


@pytest.mark.parametrize("case", GOLDEN["pulse_cycle"], ids=lambda c: c["name"])
def test_pulse_cycle_golden(case):
    # The two-class example has prompt 50; {5,10} is the paper's pair at prompt 512.
    mix = equal(*OUTPUTS[case["name"]], prompt=50 if case["name"] == "c24" else 512)
    assert eviction_free_rate(mix, case["M"]) == pytest.approx(float(Fraction(case["xstar"])), rel=1e-13)
    assert pulse_cycle_rate(mix, case["M"]) == pytest.approx(float(Fraction(case["Tg"])), rel=1e-13)


def test_block_form_of_the_eviction_free_rate():
    mix = equal(64, prompt=32)
    assert eviction_free_rate(mix, 4096) == pytest.approx(0.992, abs=5e-4)
    assert eviction_free_rate(mix, 4096, 16) == pytest.approx(0.889, abs=5e-4)
    assert eviction_free_rate(mix, 4096, 32) == pytest.approx(0.800, abs=5e-4)


@given(rows, st.integers(1, 64))
def test_mean_volume_is_the_mean_of_volumes(classes, block_size):
    mix = LengthMix(classes)
    total = sum(p for p, _, _ in classes)
    assert mix.mean_volume() == pytest.approx(sum(p * volume(s, o) for p, s, o in classes) / total, rel=1e-12)
    expected = sum(p * block_volume(s, o, block_size) for p, s, o in classes) / total
    assert mix.mean_volume(block_size) == pytest.approx(expected, rel=1e-12)


@given(rows, st.floats(1, 1e7), st.floats(1.5, 20))
def test_eviction_free_rate_scales_with_memory_and_falls_with_blocks(classes, kv, factor):
    mix = LengthMix(classes)
    assert eviction_free_rate(mix, kv * factor) == pytest.approx(factor * eviction_free_rate(mix, kv), rel=1e-12)
    assert eviction_free_rate(mix, kv, 16) <= eviction_free_rate(mix, kv) * (1 + 1e-12)


@given(rows, st.floats(1, 1e7))
def test_pulse_cycle_never_beats_the_eviction_free_rate(classes, kv):
    mix = LengthMix(classes)
    ratio = pulse_cycle_rate(mix, kv) / eviction_free_rate(mix, kv)
    assert ratio <= 1 + 1e-12
    if mix.gcd() == 1:
        assert ratio == pytest.approx(1, rel=1e-12)


def test_worst_single_class_cycle():
    assert pulse_cycle_rate(equal(3, prompt=2), 24) == pytest.approx(24 / (3 * 5))


def test_gcd_ignores_negligible_lengths_only():
    assert equal(128, 256, 512).gcd() == 128
    assert equal(127, 256, 512).gcd() == 1
    assert LengthMix([(1, 10, 128), (1e-8, 10, 7)]).gcd() == 128
    assert LengthMix([(1, 10, 128), (1e-3, 10, 7)]).gcd() == 1


def test_rows_merge_and_equality_is_by_value():
    mix = LengthMix([(1, 5, 10), (2, 5, 20), (1, 5, 10)])
    assert len(mix) == 2
    assert mix == LengthMix([(5, 5, 20), (5, 5, 10)])
    assert hash(mix) == hash(LengthMix([(5, 5, 20), (5, 5, 10)]))
    assert mix != LengthMix([(5, 5, 20), (4, 5, 10)])
    lengths, masses = LengthMix([(1, 5, 10), (1, 7, 10), (2, 5, 20)]).output_pmf()
    assert lengths.tolist() == [10, 20]
    assert masses.tolist() == [0.5, 0.5]


def test_repr_is_short():
    assert repr(equal(10, 20)) == "LengthMix([(0.5, 512, 10), (0.5, 512, 20)])"
    assert repr(equal(*range(1, 2000))).endswith(", …])")


def test_mixes_survive_pickling():
    mix = equal(10, 20)
    assert pickle.loads(pickle.dumps(mix)) == mix


def test_mix_is_immutable():
    mix = equal(10)
    with pytest.raises(ValueError, match="read-only"):
        mix.shares[0] = 2.0
    with pytest.raises(AttributeError):
        mix.shares = np.array([1.0])


@pytest.mark.parametrize(("mean", "percent"), [(220, 90), (32, 120), (300, 20), (2000, 60), (4000, 150), (150, 5)])
def test_declared_spread_is_met(mean, percent):
    mix = LengthMix.from_classes([(1, 512, mean, percent)])
    assert mix.mean_output() == pytest.approx(mean, rel=2e-3)
    assert spread(mix) == pytest.approx(percent / 100, rel=2e-2)
    assert len(mix) <= 2000
    assert mix.gcd() == 1


def test_many_spread_classes_stay_bounded_and_deterministic():
    classes = [(1, 100 * k, 100 + 300 * k, 60) for k in range(32)]
    mix = LengthMix.from_classes(classes)
    assert len(mix) <= 2000
    assert mix == LengthMix.from_classes(classes)
    assert mix.mean_output() == pytest.approx(100 + 300 * 15.5, rel=5e-3)
    assert mix.mean_prompt() == pytest.approx(1550, rel=1e-9)


def test_fixed_tiers_stay_exact():
    mix = LengthMix.from_classes([(70, 512, 128, 0), (30, 64, 256, 0)])
    assert mix == LengthMix([(0.7, 512, 128), (0.3, 64, 256)])


def test_max_output_ends_the_tail():
    mix = LengthMix.from_classes([(1, 10, 400, 150)], max_output=1024)
    assert mix.outputs.max() == 1024
    assert mix.shares[-1] > 0.05
    assert LengthMix.from_classes([(1, 10, 400, 150)]).truncated(1024).mean_output() == pytest.approx(
        mix.mean_output(), rel=0.01
    )


def test_limit_below_the_whole_distribution():
    mix = LengthMix.from_classes([(1, 10, 1000, 5)], max_output=16)
    assert mix.outputs.tolist() == [16]


def test_histogram_keeps_small_laws_exact():
    mix = LengthMix.from_histogram([(3, 100, {10: 2, 20: 2, 30: 0}), (1, 50.5, {7: 5.0})])
    assert mix == LengthMix([(0.375, 100, 10), (0.375, 100, 20), (0.25, 50.5, 7)])


def test_long_histogram_is_coarsened_but_keeps_tiers_and_moments():
    weights = {n: 1.0 + (n % 7) for n in range(1, 12001)}
    weights[4096] = 5000.0
    exact = LengthMix([(w, 10, n) for n, w in weights.items()])
    mix = LengthMix.from_histogram([(1, 10, weights)])
    assert len(mix) <= 2000
    assert mix.shares[mix.outputs == 4096] == pytest.approx(exact.shares[exact.outputs == 4096], rel=1e-12)
    assert mix.mean_output() == pytest.approx(exact.mean_output(), rel=1e-3)
    assert mix.mean_volume(16) == pytest.approx(exact.mean_volume(16), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: LengthMix([]), "at least one row"),
        (lambda: LengthMix([(0, 1, 1)]), r"components\[0\].share must be above 0"),
        (lambda: LengthMix([(1, 1, 1), (1, -1, 1)]), r"components\[1\].prompt must be at least 0"),
        (lambda: LengthMix([(1, 1, 0)]), r"components\[0\].output must be at least 1"),
        (lambda: LengthMix([(1, 1, 10**9)]), r"components\[0\].output must be at most"),
        (lambda: LengthMix([(float("nan"), 1, 1)]), r"share must be finite"),
        (lambda: LengthMix.from_classes([]), "classes must have"),
        (lambda: LengthMix.from_classes([(1, 1, 0.5, 60)]), r"classes\[0\].output must be at least 1"),
        (lambda: LengthMix.from_classes([(1, 1, 5, -1)]), r"classes\[0\].spread must be at least 0"),
        (lambda: LengthMix.from_classes([(1, 1, 5, 60)], max_output=0), "max_output"),
        (lambda: LengthMix.from_histogram([(1, 1, {})]), r"classes\[0\].histogram must have a positive"),
        (lambda: LengthMix.from_histogram([(1, 1, {5: -1})]), r"classes\[0\].histogram\[5\]"),
        (lambda: LengthMix.from_histogram([(1, 1, {0: 1})]), r"histogram length must be at least 1"),
        (lambda: equal(5).mean_volume(0), "block_size"),
        (lambda: eviction_free_rate(equal(5), 0), "kv_tokens must be above 0"),
        (lambda: pulse_cycle_rate(equal(5), float("inf")), "kv_tokens must be finite"),
    ],
)
def test_errors_name_the_field(call, match):
    with pytest.raises(ValueError, match=match):
        call()
