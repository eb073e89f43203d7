import json
import math
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_model.lengths import LengthMix
from evenflow_model.severity import severity
from evenflow_model.spectrum import critical_prompt_length
from evenflow_model.trim import minimal_trims, random_cap, trim_effects

GOLDEN = json.loads((Path(__file__).parent / "golden" / "trim.json").read_text())
KV = 430_000


def tiers(*outputs, prompt=512.0):
    return LengthMix([(1, prompt, o) for o in outputs])


@pytest.mark.parametrize("name", GOLDEN["tiers"])
@pytest.mark.parametrize(("kind", "pairwise"), [("joint", False), ("pair", True)])
def test_golden_trims(name, kind, pairwise):
    total, choices = GOLDEN["tiers"][name][kind]
    found = minimal_trims(json.loads(name), pairwise=pairwise)
    assert found.total == total
    assert sorted(map(list, found.choices)) == sorted(choices)
    assert found.proved


@pytest.mark.parametrize(("threshold", "outputs"), GOLDEN["robust"], ids=lambda v: str(v))
def test_golden_thresholds_of_trims_searched_for_stability(threshold, outputs):
    assert critical_prompt_length(tiers(*outputs)) == pytest.approx(threshold, rel=1e-10)
    # No fixed trim of three tiers is stable at realistic prompts (docs/theory.md §5).
    assert threshold > 10_000


@pytest.mark.parametrize("name", GOLDEN["random_cap"])
def test_golden_random_caps(name):
    outputs, prompt = name.rsplit("_", 1)
    mix = tiers(*json.loads(outputs), prompt=float(prompt))
    found = random_cap(mix, KV)
    assert found.width == pytest.approx(GOLDEN["random_cap"][name], abs=3e-4)
    assert found.after.value == 0.0
    assert found.before == severity(mix, KV)
    assert found.after.margin >= 1.0
    assert found.mean_output == pytest.approx(mix.mean_output() * (1 - found.width / 2), rel=0.02)


def test_a_narrower_random_cap_is_not_stable():
    mix = tiers(128, 256, 512)
    width = random_cap(mix, KV).width
    assert critical_prompt_length(mix.random_capped(width)) <= 512
    assert critical_prompt_length(mix.random_capped(width - 1 / 256)) > 512


def test_a_stable_mix_needs_no_cap():
    mix = tiers(128, 256, 512).jittered(0.3)
    assert random_cap(mix, KV).width == 0.0


def test_trims_break_the_divisor_but_hardly_the_wave():
    effects = trim_effects(tiers(128, 256, 512), KV)
    assert [e.total for e in effects] == [1, 1, 1]
    assert [e.after.value for e in effects] == sorted(e.after.value for e in effects)
    assert all(0.9 * e.before.value < e.after.value < e.before.value for e in effects)
    best = effects[0]
    assert best.after == severity(tiers(*best.outputs), KV)


def brute(outputs, pairwise):
    best, choices = math.inf, []
    for trims in product(*(range(min(o, 5)) for o in outputs)):
        kept = [o - t for o, t in zip(outputs, trims, strict=True)]
        pairs = all(math.gcd(kept[i], kept[j]) == 1 for i in range(len(kept)) for j in range(i))
        if pairs if pairwise else math.gcd(*kept) == 1:
            total = sum(trims)
            if total < best:
                best, choices = total, []
            if total == best:
                choices.append(tuple(kept))
    return best, choices


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(2, 60), min_size=2, max_size=4), st.booleans())
def test_trims_are_minimal(outputs, pairwise):
    best, choices = brute(outputs, pairwise)
    found = minimal_trims(outputs, pairwise=pairwise)
    if math.isfinite(best) and best < 5:
        assert found.total == best
        assert sorted(found.choices) == sorted(choices)
    assert all(sum(outputs) - sum(choice) == found.total for choice in found.choices)


def test_a_search_that_gives_up_says_so():
    outputs = [64 * k for k in range(1, 33)]
    found = minimal_trims(outputs, pairwise=True)
    assert not found.proved
    (choice,) = found.choices
    assert all(math.gcd(choice[i], choice[j]) == 1 for i in range(32) for j in range(i))
    assert sum(outputs) - sum(choice) == found.total


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: minimal_trims([]), ["outputs", "1 to 32"]),
        (lambda: minimal_trims(range(1, 40)), ["outputs", "39"]),
        (lambda: minimal_trims([4, 0]), ["outputs[1]"]),
        (lambda: tiers(8).trimmed({8: 8}), ["tokens[8]"]),
        (lambda: tiers(8).trimmed({9: 1}), ["9", "doesn't have"]),
        (lambda: tiers(8).random_capped(1.0), ["width"]),
        (lambda: tiers(8).jittered(-0.1), ["share"]),
        (lambda: tiers(1 << 20).jittered(0.5), ["longest output"]),
        (lambda: LengthMix.from_lengths([1], []), ["prompts and outputs"]),
        (lambda: LengthMix.from_lengths([], []), ["at least one"]),
        (lambda: LengthMix.from_lengths([1, -1], [1, 1]), ["prompts[1]"]),
        (lambda: LengthMix.from_lengths([1, 1], [1, 0]), ["outputs[1]"]),
    ],
)
def test_bad_input_names_the_field(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_trimmed_takes_tokens_off_the_tiers_named():
    assert tiers(128, 256, 512).trimmed({256: 1, 512: 3}) == tiers(128, 255, 509)
    assert tiers(128, 256).trimmed({}) == tiers(128, 256)


def test_jitter_is_even_and_keeps_the_mean():
    mix = LengthMix([(1, 100, 50), (3, 700, 200)]).jittered(0.1)
    lengths, shares = mix.output_pmf()
    assert lengths.tolist() == [*range(45, 56), *range(180, 221)]
    assert shares[:11].tolist() == pytest.approx([0.25 / 11] * 11, rel=1e-9)
    assert shares[11:].tolist() == pytest.approx([0.75 / 41] * 41, rel=1e-9)
    assert mix.mean_output() == pytest.approx(162.5)
    assert mix.mean_prompt() == pytest.approx(550)


def test_overlapping_jitter_shares_prompts():
    mix = LengthMix([(1, 100, 10), (1, 300, 11)]).jittered(0.1)
    assert mix.output_pmf()[0].tolist() == [9, 10, 11, 12]
    by_length = dict(zip(mix.outputs.tolist(), mix.prompts.tolist(), strict=True))
    assert by_length == {9: 100, 10: pytest.approx(200), 11: pytest.approx(200), 12: 300}
    apart = 0.5 * sum(100 * o + o * (o + 1) / 2 for o in (9, 10, 11)) / 3
    apart += 0.5 * sum(300 * o + o * (o + 1) / 2 for o in (10, 11, 12)) / 3
    assert mix.mean_volume() == pytest.approx(apart, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), min_size=1, max_size=200))
def test_a_trace_keeps_its_mean_volume(rows):
    mix = LengthMix.from_lengths([s for s, _ in rows], [o for _, o in rows])
    exact = sum(s * o + o * (o + 1) / 2 for s, o in rows) / len(rows)
    assert mix.mean_volume() == pytest.approx(exact, rel=1e-12)
    assert mix.mean_output() == pytest.approx(sum(o for _, o in rows) / len(rows))


def test_a_long_trace_is_coarsened():
    outputs = [1 + (7919 * i) % 90_000 for i in range(8_000)]
    prompts = [(31 * i) % 4_000 for i in range(8_000)]
    mix = LengthMix.from_lengths(prompts, outputs)
    assert len(mix) <= 2_000
    exact = sum(s * o + o * (o + 1) / 2 for s, o in zip(prompts, outputs, strict=True)) / 8_000
    assert mix.mean_volume() == pytest.approx(exact, rel=0.01)
