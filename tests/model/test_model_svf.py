import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_model.svf import (
    POLICIES,
    Request,
    competitive_ratio_bound,
    lower_bound,
    one_bit_ratio_bound,
    paper_stochastic_bounds,
    peak_share,
    schedule,
)
from evenflow_model.volume import Proxies, volume, worst_case_proxies

GOLDEN = json.loads((Path(__file__).parent / "golden" / "svf.json").read_text())


def requests_of(case, predicted=True):
    return [Request(r["s"], r["o"], r["a"], r.get("op") if predicted else None) for r in case["reqs"]]


def golden_schedules():
    runs = {
        "FCFS": ("FCFS", True),
        "SJF": ("SJF", True),
        "SVF": ("SVF", True),
        "SVF_1BIT": ("OneBitSVF", True),
        "ORACLE_SJF": ("SJF", False),
        "ORACLE_SVF": ("SVF", False),
    }
    for name, case in GOLDEN["instances"].items():
        for golden, (policy, predicted) in runs.items():
            yield pytest.param(case, case["policies"][golden], policy, predicted, id=f"{name}-{golden}")


@pytest.mark.parametrize(("case", "expected", "policy", "predicted"), list(golden_schedules()))
def test_golden_schedules(case, expected, policy, predicted):
    found = schedule(requests_of(case, predicted), case["M"], policy, Proxies(case["theta"], case["O0"], case["O1"]))
    assert list(found.starts) == expected["start"]
    assert found.total_latency == expected["tel"]
    assert found.peak_kv_tokens == expected["peak"]


@pytest.mark.parametrize("case", GOLDEN["instances"].values(), ids=GOLDEN["instances"])
def test_golden_bounds_of_instances(case):
    requests = requests_of(case)
    assert lower_bound(requests, case["M"]) == Fraction(case["lb"])
    assert float(peak_share(requests, case["M"])) == case["alpha"]
    assert competitive_ratio_bound(case["alpha"]) == pytest.approx(case["bound"], rel=1e-15)
    assert lower_bound(requests, case["M"]) <= case["policies"]["OPT"]["tel"]


@pytest.mark.parametrize("case", [*GOLDEN["family"], {"m": 32, "SJF": 18704, "SVF": 2351, "lb": "2080"}])
def test_sjf_is_unboundedly_worse(case):
    m = case["m"]
    kv = 6 * m * m
    requests = [Request(kv // 2 - 1, 1)] * m + [Request(1, 2)] * (m * m)
    assert schedule(requests, kv, "SJF").total_latency == case["SJF"]
    assert schedule(requests, kv, "SVF").total_latency == case["SVF"]
    assert lower_bound(requests, kv) == Fraction(case["lb"])
    assert case["SJF"] == 2 * sum(range(1, m // 2 + 1)) + m * m * (m // 2 + 2)


def test_worst_known_instance_against_the_optimum():
    worst = GOLDEN["random_opt"]["worst_instance"]
    requests = [Request(r["s"], r["o"]) for r in worst["reqs"]]
    found = schedule(requests, worst["M"])
    assert list(found.starts) == worst["svf_start"]
    assert Fraction(found.total_latency, worst["opt_tel"]) == Fraction(3, 2)


def test_golden_ratio_bounds():
    for case in GOLDEN["bound_worst"]:
        assert competitive_ratio_bound(case["alpha"]) == case["cr"]
    assert one_bit_ratio_bound(0.5, 100) == 401.0


@pytest.mark.parametrize("case", GOLDEN["stoch_bounds"])
def test_golden_paper_formulas(case):
    found = paper_stochastic_bounds(
        mu=case["mu"],
        mean_prompt=case["Es"],
        alpha=case["alpha"],
        kv_tokens=case["M"],
        arrival_rate=case["lam"],
        threshold=case["theta"],
    )
    assert found.mean_volume == pytest.approx(case["Evol"], rel=1e-12)
    assert found.load == pytest.approx(case["rho"], rel=1e-12)
    assert found.svf_ratio == pytest.approx(case["cr_svf"], rel=1e-12)
    assert found.one_bit_ratio == pytest.approx(case["cr_1bit"], rel=1e-9)
    assert found.mean_wait == pytest.approx(case["wq_bound"], rel=1e-12)


def test_the_papers_lower_bound_is_beaten_by_fcfs():
    """Lemma F.1 claims mean latency ≥ W/M; FCFS does better, so nothing here may use it (docs/theory.md §1)."""
    claimed = [c for c in GOLDEN["lemma_f1"] if c["mean_latency_fcfs"] < c["claimed_lb"]]
    assert claimed
    rng = np.random.default_rng(3)
    case = claimed[-1]
    arrivals = np.cumsum(rng.exponential(1 / case["lam"], 12_000)).astype(int).tolist()
    outputs = np.minimum(rng.geometric(0.02, 12_000), 2_000).tolist()
    requests = [Request(1, o, a) for o, a in zip(outputs, arrivals, strict=True)]
    mean = schedule(requests, case["M"], "FCFS").total_latency / len(requests)
    assert mean == pytest.approx(50.0, abs=2.0)
    assert mean < case["claimed_lb"]


def stepwise(requests, kv, keys):
    """The rule of the SVF paper word for word: one step after the other, every τ checked."""
    held, starts, queue, t = {}, [None] * len(requests), [], 0
    while None in starts:
        queue = sorted(
            (i for i, r in enumerate(requests) if r.arrival <= t and starts[i] is None),
            key=lambda i: (keys[i], requests[i].arrival, i),
        )
        for i in queue:
            s, o = requests[i].prompt, requests[i].output
            if any(held.get(tau, 0) + s + tau - t > kv for tau in range(t + 1, t + o + 1)):
                break
            starts[i] = t
            for tau in range(t + 1, t + o + 1):
                held[tau] = held.get(tau, 0) + s + tau - t
        t += 1
    return starts, max(held.values())


lengths = st.tuples(st.integers(0, 12), st.integers(1, 9))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(lengths, st.integers(0, 30), st.none() | st.floats(0.5, 12)), min_size=1, max_size=14),
    st.integers(21, 60),
    st.sampled_from(POLICIES),
)
def test_schedule_follows_the_rule_step_by_step(rows, kv, policy):
    requests = [Request(s, o, a, p) for (s, o), a, p in rows]
    proxies = Proxies(3, 1.5, 6.0)
    o_of = [r.output if r.predicted is None else r.predicted for r in requests]
    one_bit = [6.0 if r.output > 3 else 1.5 for r in requests]
    keys = {
        "FCFS": [0] * len(requests),
        "SJF": o_of,
        "SVF": [r.prompt * o + o * (o + 1) / 2 for r, o in zip(requests, o_of, strict=True)],
        "OneBitSVF": [r.prompt * o + o * (o + 1) / 2 for r, o in zip(requests, one_bit, strict=True)],
    }[policy]
    starts, peak = stepwise(requests, kv, keys)
    found = schedule(requests, kv, policy, proxies)
    assert list(found.starts) == starts
    assert found.peak_kv_tokens == peak <= kv
    assert found.total_latency == sum(k + r.output - r.arrival for k, r in zip(starts, requests, strict=True))


@settings(max_examples=150, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=40), st.integers(22, 200))
def test_svf_keeps_its_bound_in_bursts(rows, kv):
    requests = [Request(s, o) for s, o in rows]
    bound = competitive_ratio_bound(float(peak_share(requests, kv)))
    least = lower_bound(requests, kv)
    for policy in ("SVF", "SJF", "FCFS"):
        assert schedule(requests, kv, policy).total_latency >= least
    # The theorem compares with the optimum, which is at least the lower bound: nothing weaker would be a test.
    assert schedule(requests, kv).total_latency <= bound * float(least) * (1 + 1e-12)


def test_one_bit_uses_the_bit_given():
    requests = [Request(6, 6, is_long=False), Request(6, 2, is_long=True)]
    found = schedule(requests, 13, "OneBitSVF", worst_case_proxies(16))
    assert found.starts == (0, 6)
    honest = [Request(6, 6), Request(6, 2)]
    assert schedule(honest, 13, "OneBitSVF", worst_case_proxies(16)).starts == (2, 0)


def test_idle_gaps_cost_no_memory():
    far = 10**12
    found = schedule([Request(3, 4), Request(3, 4, far), Request(1, 2, far + 1)], 10)
    assert found.starts == (0, far, far + 1)
    assert found.peak_kv_tokens == 9


def test_many_requests_hold_the_memory_limit():
    rng = np.random.default_rng(5)
    requests = [
        Request(int(s), int(o)) for s, o in zip(rng.integers(1, 3000, 400), rng.integers(1, 900, 400), strict=True)
    ]
    found = schedule(requests, 20_000)
    ends = max(k + r.output for k, r in zip(found.starts, requests, strict=True))
    held = np.zeros(ends + 1, dtype=np.int64)
    for k, r in zip(found.starts, requests, strict=True):
        held[k + 1 : k + r.output + 1] += r.prompt + np.arange(1, r.output + 1)
    assert held.max() == found.peak_kv_tokens <= 20_000
    assert held.sum() == sum(volume(r.prompt, r.output) for r in requests)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: schedule([Request(1, 1), Request(8, 4)], 11), ["requests[1]", "12", "11"]),
        (lambda: schedule([Request(1, 1)], 11, "OneBitSVF"), ["proxies", "worst_case_proxies"]),
        (lambda: schedule([Request(1, 1)], 11, "LIFO"), ["policy", "LIFO", "SVF"]),
        (lambda: schedule([], 0), ["kv_tokens"]),
        (lambda: Request(-1, 1), ["prompt"]),
        (lambda: Request(1, 0), ["output"]),
        (lambda: Request(1, 1, -1), ["arrival"]),
        (lambda: Request(1, 1, 0, 0.0), ["predicted"]),
        (lambda: Request(1, 1, 0, float("nan")), ["predicted", "finite"]),
        (lambda: competitive_ratio_bound(1.0), ["alpha"]),
        (lambda: competitive_ratio_bound(-0.1), ["alpha"]),
        (
            lambda: paper_stochastic_bounds(
                mu=0.01, mean_prompt=500, alpha=0.1, kv_tokens=430_000, arrival_rate=3.3, threshold=100
            ),
            ["arrival_rate", "1.023"],
        ),
    ],
)
def test_bad_input_names_the_field(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_nothing_to_schedule():
    assert schedule([], 10).starts == ()
    assert schedule([], 10).total_latency == 0
    assert peak_share([], 10) == 0
