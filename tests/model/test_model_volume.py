import json
from math import ceil, comb
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_model.volume import (
    block_volume,
    geometric_proxies,
    proxy_block_volume,
    proxy_volume,
    volume,
    worst_case_proxies,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "volume.json").read_text())
prompts = st.integers(0, 5000)
outputs = st.integers(1, 3000)
blocks = st.integers(1, 64)


@pytest.mark.parametrize("case", GOLDEN["volume"])
def test_volume_golden(case):
    assert volume(case["s"], case["o"]) == case["v"]


@pytest.mark.parametrize("case", GOLDEN["proxy_volume"])
def test_proxy_volume_golden(case):
    assert proxy_volume(case["s"], case["O"]) == case["v"]


@pytest.mark.parametrize("case", GOLDEN["worst_proxy"])
def test_worst_case_proxies_golden(case):
    got = worst_case_proxies(case["T"])
    assert (got.threshold, got.short, got.long, got.penalty) == (case["theta"], case["O0"], case["O1"], 0.0)


@pytest.mark.parametrize("case", GOLDEN["geo_proxy"])
def test_geometric_proxies_golden(case):
    got = geometric_proxies(case["mu"], case["theta"])
    assert got.threshold == case["theta"]
    assert (got.short, got.long, got.penalty) == pytest.approx((case["O0"], case["O1"], case["eps"]), rel=1e-12)


def test_geometric_proxies_are_conditional_means():
    mu, theta = 0.05, 30
    pmf = {n: mu * (1 - mu) ** (n - 1) for n in range(1, 3000)}
    below = {n: p for n, p in pmf.items() if n <= theta}
    above = {n: p for n, p in pmf.items() if n > theta}
    got = geometric_proxies(mu, theta)
    assert got.short == pytest.approx(sum(n * p for n, p in below.items()) / sum(below.values()), rel=1e-9)
    assert got.long == pytest.approx(sum(n * p for n, p in above.items()) / sum(above.values()), rel=1e-9)


def test_geometric_proxies_of_always_one_token():
    assert geometric_proxies(1.0, 5).short == 1.0
    assert geometric_proxies(1.0, 5).penalty == 0.0


@given(prompts, outputs)
def test_volume_is_the_sum_of_occupied_tokens(s, o):
    assert volume(s, o) == sum(s + j for j in range(1, o + 1)) == comb(s + o + 1, 2) - comb(s + 1, 2)
    assert proxy_volume(s, float(o)) == volume(s, o)


@given(prompts, outputs, blocks)
def test_block_volume_is_the_sum_of_held_blocks(s, o, b):
    assert block_volume(s, o, b) == sum(b * ceil((s + 1 + j) / b) for j in range(o))
    assert proxy_block_volume(s, float(o), b) == block_volume(s, o, b)


@given(prompts, outputs, blocks)
def test_blocks_hold_at_least_the_tokens_and_less_than_a_block_more(s, o, b):
    assert 0 <= block_volume(s, o, b) - volume(s, o) <= (b - 1) * o
    assert block_volume(s, o, 1) == volume(s, o)


@given(prompts, st.floats(0.01, 3000), st.floats(0.01, 50), blocks)
def test_predicted_block_volume_rises_with_the_prediction(s, o, more, b):
    assert proxy_block_volume(s, o + more, b) > proxy_block_volume(s, o, b)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: volume(-1, 5), r"prompt_tokens must be at least 0, found -1: "),
        (lambda: volume(5, 0), r"output_tokens must be at least 1, found 0: "),
        (lambda: volume(5, 1.5), r"output_tokens must be an integer, found 1.5: "),
        (lambda: volume(True, 1), r"prompt_tokens must be an integer"),
        (lambda: block_volume(5, 1, 0), r"block_size must be at least 1"),
        (lambda: proxy_volume(5, float("nan")), r"output_tokens must be finite"),
        (lambda: proxy_volume(5, 0.0), r"output_tokens must be above 0"),
        (lambda: proxy_block_volume(float("inf"), 1.0, 16), r"prompt_tokens must be finite"),
        (lambda: worst_case_proxies(0), r"max_tokens must be at least 1"),
        (lambda: geometric_proxies(0.0, 5), r"mu must be above 0"),
        (lambda: geometric_proxies(1.5, 5), r"mu must be at most 1"),
        (lambda: geometric_proxies(0.5, 0), r"threshold must be at least 1"),
    ],
)
def test_errors_name_the_argument(call, match):
    with pytest.raises(ValueError, match=match):
        call()
