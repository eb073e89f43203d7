import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_model.lengths import LengthMix
from evenflow_model.severity import Severity, severity, severity_level
from evenflow_model.spectrum import critical_modes, critical_prompt_length

FOLDER = Path(__file__).parent / "golden"
SPECTRUM = json.loads((FOLDER / "spectrum.json").read_text())
SEVERITY = json.loads((FOLDER / "severity.json").read_text())
KV = 430_000
WATERMARK = 4_300


def tiers(*outputs, prompt=512.0):
    return LengthMix([(1, prompt, o) for o in outputs])


def jittered(share):
    rows = []
    for tier in (128, 256, 512):
        lengths = range(round(tier * (1 - share)), round(tier * (1 + share)) + 1)
        rows += [(1 / len(lengths), 512, n) for n in lengths]
    return LengthMix(rows)


def gaussian(deviation):
    rows = []
    for tier in (128, 256, 512):
        lengths = range(max(1, tier - 8 * deviation), tier + 8 * deviation + 1)
        weights = [math.exp(-0.5 * ((n - tier) / deviation) ** 2) for n in lengths]
        rows += [(w / math.fsum(weights), 512, n) for n, w in zip(lengths, weights, strict=True)]
    return LengthMix(rows)


def lognormal(sigma):
    return LengthMix.from_classes([(1, 512, 300, 100 * math.sqrt(math.expm1(sigma * sigma)))])


LAWS = {
    "det256": tiers(256),
    "{128,256,512}": tiers(128, 256, 512),
    "{127,255,509}": tiers(127, 255, 509),
    "{127,256,512}": tiers(127, 256, 512),
    "{112,256,512}": tiers(112, 256, 512),
    "{96,224,512}": tiers(96, 224, 512),
    "{20}": tiers(20),
    "{20,21}": tiers(20, 21),
    "{100,125}": tiers(100, 125),
    "{100,125,200,250}": tiers(100, 125, 200, 250),
    "{5,6,10,12}": tiers(5, 6, 10, 12),
    "{5,10}": tiers(5, 10),
    "{7,11,13}": tiers(7, 11, 13),
    "uniform 50..450": tiers(*range(50, 451)),
    **{f"128/256/512 +-{p}%": jittered(p / 100) for p in (1, 2, 5, 10, 20, 40)},
    **{f"128/256/512 gauss sd {sd}": gaussian(sd) for sd in (2, 5, 10, 20, 40)},
    **{f"lognormal m300 s{s}": lognormal(s) for s in (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)},
}
# How far the reference cut the tails of these laws isn't recorded: looser, and no threshold below the noise of a cut.
TAILED = {name for name in LAWS if "gauss" in name or "lognormal" in name}

mixes = st.builds(
    LengthMix,
    st.lists(st.tuples(st.floats(0.05, 5), st.integers(1, 900), st.integers(2, 90)), min_size=1, max_size=5),
)


def dense(mix):
    """Q and R of the mix on a fine grid by plain sums, and the critical points by bisection: no interpolation."""
    longest = int(mix.outputs.max())
    j = np.arange(longest)
    ratios = mix.prompts / mix.mean_prompt()
    survival = np.array([mix.shares[mix.outputs > k].sum() for k in j])
    weighted = np.array([(mix.shares * ratios)[mix.outputs > k].sum() for k in j])

    def spectra(w):
        powers = np.exp(1j * np.outer(w, j))
        return powers @ ((j + 1) * survival), powers @ weighted

    def phase(w):
        q, r = spectra(w)
        return (q * r.conj()).imag

    grid = np.pi * np.arange(1, 32 * longest) / (32 * longest)
    f = phase(grid)
    at = np.flatnonzero((f[:-1] < 0) != (f[1:] < 0))
    low, high, f_low = grid[at], grid[at + 1], f[at]
    for _ in range(50):
        middle = 0.5 * (low + high)
        same = (phase(middle) < 0) == (f_low < 0)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    omega = np.append(0.5 * (low + high), np.pi)
    q, r = spectra(omega)
    return 2 * np.pi / omega, -(q / r).real


@pytest.mark.parametrize("case", SPECTRUM["thresholds"], ids=lambda c: f"{c['l1']},{c['l2']},{c['p']}")
def test_critical_prompt_of_pairs_golden(case):
    mix = LengthMix([(case["p"], 512, case["l1"]), (1 - case["p"], 512, case["l2"])])
    # Both values lose digits in proportion to the threshold: R is that small where it counts.
    tolerance = max(1e-11, 1e-15 * case["l0crit"])
    assert critical_prompt_length(mix) == pytest.approx(case["l0crit"], rel=tolerance)


@pytest.mark.parametrize("case", SPECTRUM["root_table"], ids=lambda c: f"{c['ls']}@{c['l0']}")
def test_stability_agrees_with_root_counts(case):
    mix = tiers(*case["ls"], prompt=case["l0"])
    critical = critical_prompt_length(mix)
    assert (critical > case["l0"]) == (case["n_unstable"] > 0)
    assert math.isinf(critical) == (case["g"] > 1)
    if case["l0crit"] is not None:
        assert critical == pytest.approx(case["l0crit"], rel=1e-11)


def test_critical_prompt_known_in_closed_form():
    assert critical_prompt_length(tiers(2, 3)) == pytest.approx(1, rel=1e-12)
    assert critical_prompt_length(tiers(3, 4)) == pytest.approx(2 + 2 * math.sqrt(3), rel=1e-12)


def test_critical_prompt_of_unequal_prompts():
    # {5,7} with prompts in the ratio 1:2 turns stable at a first prompt of 32.624927, a mean of 1.5 times that.
    mix = LengthMix([(1, 1, 5), (1, 2, 7)])
    assert critical_prompt_length(mix) / 1.5 == pytest.approx(32.624927, abs=1e-6)
    assert critical_prompt_length(LengthMix([(1, 100, 5), (1, 200, 7)])) == pytest.approx(1.5 * 32.624927, abs=1e-5)


def test_mixes_without_rhythm():
    assert critical_prompt_length(tiers(1)) == 0.0
    assert severity(tiers(1), KV) == Severity(0.0, None, math.inf)
    assert severity(tiers(1, 2, prompt=0), KV).value >= 0.0


@pytest.mark.parametrize("case", SPECTRUM["law_thresholds"], ids=lambda c: c["name"])
def test_critical_prompt_of_laws_golden(case):
    name = case["name"]
    got, want = critical_prompt_length(LAWS[name]), float(case["l0crit"])
    if name in TAILED and want < 50:
        assert got < 50
    else:
        assert got == pytest.approx(want, rel=1e-4 if name in TAILED else 2e-9)


@pytest.mark.parametrize("case", SEVERITY["laws"], ids=lambda c: c["name"])
def test_severity_of_laws_golden(case):
    name = case["name"]
    plain, kept = severity(LAWS[name], KV), severity(LAWS[name], KV, WATERMARK)
    tolerance = {"rel": 1e-4} if name in TAILED else {"rel": 1e-8}
    assert plain.value == pytest.approx(case["sev"], **tolerance)
    assert kept.value == pytest.approx(case["sev_wm"], **tolerance)
    assert plain.period == (None if case["period"] is None else pytest.approx(case["period"], **tolerance))


PARTITIONS = {
    "pairs": [(64, 80), (100, 125), (128, 160), (200, 250), (256, 320), (400, 512)],
    "contiguous quads": [(64, 80, 100, 125), (128, 160, 200, 250), (256, 320, 400, 512)],
    "interleaved quads": [(64, 125, 200, 320), (80, 128, 250, 400), (100, 160, 256, 512)],
    "contig sixes": [(64, 80, 100, 125, 128, 160), (200, 250, 256, 320, 400, 512)],
    "interleaved sixes": [(64, 100, 128, 200, 256, 400), (80, 125, 160, 250, 320, 512)],
    "all 12": [(64, 80, 100, 125, 128, 160, 200, 250, 256, 320, 400, 512)],
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_severity_of_a_partition_golden(name):
    pods = [tiers(*outputs) for outputs in PARTITIONS[name]]
    golden = SEVERITY["partitions"][name]
    assert np.mean([severity(pod, KV).value for pod in pods]) == pytest.approx(golden["sev"], rel=1e-8)
    assert np.mean([severity(pod, KV, WATERMARK).value for pod in pods]) == pytest.approx(golden["sev_wm"], rel=1e-8)


@pytest.mark.parametrize("outputs", [(20,), (256,), (100, 125), (100, 125, 200, 250), (5, 10)])
def test_lattice_severity_is_the_closed_form(outputs):
    mix = tiers(*outputs)
    g = math.gcd(*outputs)
    assert severity(mix, KV) == Severity(
        pytest.approx(mix.mean_output() / 513 * (1 - 1 / g), rel=1e-12), pytest.approx(g, rel=1e-12), 0.0
    )


def test_wider_lengths_are_less_severe():
    order = [severity(LAWS[name], KV).value for name in ("{128,256,512}", "128/256/512 +-5%", "128/256/512 +-10%")]
    assert order[0] > order[1] > order[2] == 0.0


def test_margin_is_relative_to_the_critical_prompt():
    mix = LAWS["128/256/512 +-10%"]
    assert severity(mix, KV).margin == pytest.approx(512 / critical_prompt_length(mix), rel=1e-8)


def test_watermark_absorbs_a_short_period():
    mix = tiers(20)
    resident = KV / mix.mean_volume() * 20
    enough = resident * 19
    assert severity(mix, KV, enough * 0.999).value > 0.0
    assert severity(mix, KV, enough * 1.001) == Severity(0.0, None, 0.0)


@settings(max_examples=25, deadline=None)
@given(mixes)
def test_modes_agree_with_plain_bisection(mix):
    if mix.gcd() > 1:
        return
    periods, thresholds = dense(mix)
    critical = max(0.0, thresholds.max())
    assert critical_prompt_length(mix) == pytest.approx(critical, rel=1e-6, abs=1e-6)
    modes = critical_modes(mix)
    for period, threshold in zip(periods, thresholds, strict=True):
        if threshold > 1:
            near = np.abs(modes.periods / period - 1) < 1e-6
            assert np.isclose(modes.thresholds[near], threshold, rtol=1e-5).any(), (period, threshold)


@settings(max_examples=60, deadline=None)
@given(mixes, st.floats(0, 0.2))
def test_a_watermark_never_raises_severity(mix, share):
    plain, kept = severity(mix, KV), severity(mix, KV, share * KV)
    assert 0.0 <= kept.value <= plain.value * (1 + 1e-12)
    assert (plain.value == 0.0) == (plain.period is None)
    assert kept.margin == plain.margin


@settings(max_examples=60, deadline=None)
@given(mixes, st.floats(1.01, 5))
def test_longer_prompts_are_never_more_severe(mix, factor):
    longer = LengthMix(
        [(p, s * factor, o) for p, s, o in zip(mix.shares, mix.prompts, mix.outputs.tolist(), strict=True)]
    )
    assert severity(longer, KV).value <= severity(mix, KV).value * (1 + 1e-6)


def test_severity_level():
    assert [severity_level(v) for v in (0.0, 0.0049, 0.005, 0.05, 0.0501, 3.0)] == [
        "ok", "ok", "watch", "watch", "act", "act",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: severity(tiers(5), 0), "kv_tokens must be above 0"),
        (lambda: severity(tiers(5), float("nan")), "kv_tokens must be finite"),
        (lambda: severity(tiers(5), 100, -1), "watermark_tokens must be at least 0"),
        (lambda: severity(tiers(5), 100, 100), r"watermark_tokens must be below kv_tokens \(100\), found 100"),
        (lambda: severity_level(float("nan")), "value must be finite"),
        (lambda: severity_level(-0.1), "value must be at least 0"),
    ],
)
def test_errors_name_the_argument(call, match):
    with pytest.raises(ValueError, match=match):
        call()
