import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_model import _roots
from evenflow_model.congestion import Actuators, eviction_free_rate, simulate
from evenflow_model.lengths import LengthMix
from evenflow_model.severity import eviction_free_watermark, severity
from evenflow_model.spectrum import critical_prompt_length, growth_per_lifetime, unstable_root_count

GOLDEN = json.loads((Path(__file__).parent / "golden" / "growth.json").read_text())
WATERMARKS = json.loads((Path(__file__).parent / "golden" / "flow.json").read_text())["watermark"]


def tiers(*outputs, prompt=512.0):
    return LengthMix([(1, prompt, o) for o in outputs])


def admission_weights(mix):
    """W_j by its definition, one class at a time."""
    j = np.arange(int(mix.outputs[-1]))
    rows = zip(mix.shares, mix.prompts, mix.outputs, strict=True)
    return sum(share * (prompt + 1 + j) * (j < output) for share, prompt, output in rows)


@pytest.mark.parametrize("case", GOLDEN["root_table"], ids=lambda c: f"{c['ls']}@{c['l0']}")
def test_golden_roots(case):
    mix = tiers(*case["ls"], prompt=case["l0"])
    assert unstable_root_count(mix) == case["n_unstable"] == case["winding"]
    assert _roots.winding_number(admission_weights(mix)) == case["winding"]
    rho = growth_per_lifetime(mix) ** (1 / mix.mean_output())
    assert rho == pytest.approx(case["rho"], rel=1e-13)


@pytest.mark.parametrize("tier", [64, 128, 256, 512, 1024])
def test_golden_thresholds_of_one_blurred_tier(tier):
    for spread, expected in GOLDEN[f"jitter_{tier}"]:
        deviation = spread * tier
        lengths = range(max(1, math.floor(tier - 8 * deviation)), math.ceil(tier + 8 * deviation) + 1)
        mix = LengthMix([(math.exp(-0.5 * ((n - tier) / deviation) ** 2), 512, n) for n in lengths])
        # Where the reference cut the tails is not recorded; a cut moves the threshold in proportion to itself.
        assert critical_prompt_length(mix) == pytest.approx(expected, rel=3e-8)


PODS = [(name, *row) for name, rows in GOLDEN["pods"].items() for row in rows]


@pytest.mark.parametrize(("name", "outputs", "threshold", "growth"), PODS, ids=lambda v: str(v))
def test_golden_pods(name, outputs, threshold, growth):
    mix = tiers(*outputs)
    assert growth_per_lifetime(mix) == pytest.approx(growth, abs=6e-5)
    found = critical_prompt_length(mix)
    assert math.isinf(found) if threshold == "inf" else found == pytest.approx(threshold, abs=0.06)


@pytest.mark.parametrize("outputs", [(20,), (20, 21), (100, 125), (128, 256, 512), (127, 255, 509), (112, 256, 512)])
def test_golden_growth_of_laws(outputs):
    name = "{" + ",".join(map(str, outputs)) + "}"
    assert growth_per_lifetime(tiers(*outputs)) == pytest.approx(GOLDEN["laws"][name], rel=1e-9)


@pytest.mark.parametrize("share", [0.01, 0.02, 0.05, 0.1, 0.2])
def test_golden_growth_of_jittered_tiers(share):
    mix = tiers(128, 256, 512).jittered(share)
    golden = GOLDEN["laws"][f"128/256/512 +-{round(100 * share)}%"]
    assert growth_per_lifetime(mix) == pytest.approx(golden, rel=1e-6)


def test_newton_finds_what_the_companion_matrix_finds():
    """At ±40 % the slowest rhythm has no dip of its own on the circle; the reference's Newton missed it."""
    mix = tiers(32, 64, 128, prompt=128).jittered(0.4)
    weights = admission_weights(mix)
    exact = 1 / np.abs(np.roots(weights)).max()
    assert _roots._newton(weights) == pytest.approx(exact, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 3), st.integers(1, 900), st.integers(2, 150)), min_size=1, max_size=5),
)
def test_newton_and_winding_agree_with_the_companion_matrix(rows):
    weights = admission_weights(LengthMix(rows))
    moduli = 1 / np.abs(np.roots(weights))
    inside = (moduli < 1).sum()
    wound = _roots.winding_number(weights)
    assert wound is None or wound == inside
    if np.abs(moduli - 1).min() > 1e-3:
        assert wound == inside
    if moduli.min() < 1.0:
        assert _roots._newton(weights) == pytest.approx(moduli.min(), rel=1e-8)


@pytest.mark.parametrize(("outputs", "share"), [((3, 5), 0.5), ((5, 7), 0.25), ((20, 21), 0.5), ((2, 3), 0.5)])
def test_the_verdict_flips_at_the_critical_prompt(outputs, share):
    def at(prompt):
        return LengthMix([(share, prompt, outputs[0]), (1 - share, prompt, outputs[1])])

    critical = critical_prompt_length(at(1.0))
    assert unstable_root_count(at(critical * 0.99)) > 0
    assert unstable_root_count(at(critical * 1.01)) == 0
    assert unstable_root_count(at(critical)) == "undecided"
    assert growth_per_lifetime(at(critical * 0.99)) > 1 > growth_per_lifetime(at(critical * 1.01))


def test_growth_of_a_common_divisor():
    for outputs, prompt in (((2, 4), 400), ((6, 9, 12), 2000), ((10, 20, 30), 1000)):
        mix = tiers(*outputs, prompt=prompt)
        rho = growth_per_lifetime(mix) ** (1 / mix.mean_output())
        assert (rho - 1) * (prompt + 1) == pytest.approx(1.0, rel=0.05)


def test_outputs_of_one_token_have_no_rhythm():
    assert growth_per_lifetime(tiers(1)) == 0.0
    assert unstable_root_count(tiers(1)) == 0


def test_long_near_lattices_are_undecided_by_count_but_not_by_threshold():
    mix = tiers(2000, 3001)
    assert unstable_root_count(mix) == "undecided"
    assert critical_prompt_length(mix) > 512
    assert growth_per_lifetime(mix) > 1


@pytest.mark.parametrize("name", WATERMARKS)
def test_golden_watermarks(name):
    case = WATERMARKS[name]
    mix = tiers(*json.loads(name))
    found = eviction_free_watermark(mix, 430_000)
    assert found == pytest.approx(case["need"], abs=1)
    assert severity(mix, 430_000, found).value == 0.0
    assert severity(mix, 430_000, 0.99 * found).value > 0.0
    # A cold start fills the memory with requests that are all young, and needs a while to settle.
    lengths = json.loads(name)
    rng = np.random.default_rng(5)
    count = int(16 * eviction_free_rate(mix, 430_000) * mix.mean_output())
    requests = [(512, lengths[k]) for k in rng.integers(0, len(lengths), count)]
    free = simulate(requests, 430_000, actuators=Actuators(watermark=math.ceil(found))).evicted
    greedy = simulate(requests, 430_000).evicted
    assert free[len(free) // 2 :].sum() <= 0.0002 * count
    assert greedy[len(greedy) // 2 :].sum() > 0.3 * case["ev"][0] * count


def test_watermarks_at_the_ends():
    stable = tiers(128, 256, 512).jittered(0.2)
    assert eviction_free_watermark(stable, 430_000) == 0.0
    # All memory is decode here: a wave needs more room to grow than there is.
    assert math.isinf(eviction_free_watermark(tiers(512, prompt=0), 430_000))
    with pytest.raises(ValueError, match="kv_tokens"):
        eviction_free_watermark(stable, 0)
