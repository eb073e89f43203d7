import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_model.congestion import (
    Actuators,
    ContinuousModel,
    FlowClass,
    IntegerEngine,
    cycle_rate,
    eviction_free_rate,
    pulse_cycle_rate,
    safe_rate,
    simulate,
    smooth_order,
    worst_cycle_loss,
)
from evenflow_model.lengths import LengthMix

FOLDER = Path(__file__).parent / "golden"
GOLDEN = json.loads((FOLDER / "dynamics.json").read_text())
TRACES = json.loads((FOLDER / "integer_traces.json").read_text())


def exact(rows):
    return tuple(tuple(Fraction(x) for x in row) for row in rows)


def model_of(case):
    rows = case.get("classes", [[1, 2, 3]])
    return ContinuousModel([FlowClass(Fraction(p), s, o) for p, s, o in rows], case["M"])


@pytest.mark.parametrize("case", GOLDEN["xstar"], ids=lambda c: str(c["x"]))
def test_golden_eviction_free_rates_are_exact(case):
    assert model_of(case).eviction_free_rate() == Fraction(case["x"])
    mix = LengthMix([(float(Fraction(p)), s, o) for p, s, o in case["classes"]])
    assert eviction_free_rate(mix, case["M"]) == pytest.approx(float(Fraction(case["x"])), rel=1e-14)


@pytest.mark.parametrize("case", GOLDEN["cycle_throughput"], ids=lambda c: f"{c['M']}-{c['gaps']}")
def test_golden_cycle_rates_are_exact(case):
    for turn in range(len(case["gaps"])):
        rotated = case["gaps"][turn:] + case["gaps"][:turn]
        assert cycle_rate(rotated, case["l0"], case["M"]) == Fraction(case["T"])


@pytest.mark.parametrize("case", GOLDEN["loss"], ids=lambda c: f"{c['l0']},{c['l1']}")
def test_golden_worst_losses_are_exact(case):
    s, o = case["l0"], case["l1"]
    assert worst_cycle_loss(s, o) == Fraction(case["loss"])
    assert 1 - cycle_rate([o], s, 7) / cycle_rate([1] * o, s, 7) == worst_cycle_loss(s, o)


TRACE_NAMES = ("trace_l3", "trace_l4", "trace_c23", "trace_c24", "cap_trace")


@pytest.mark.parametrize("name", TRACE_NAMES)
def test_golden_traces_are_exact(name):
    case = GOLDEN[name]
    model = model_of(case)
    first = exact(case["steps"][0]["X"])
    steps = list(model.run(first, len(case["steps"]) - 1, cap=case.get("cap")))
    states = [first, *(step.state for step in steps)]
    assert states == [exact(row["X"]) for row in case["steps"]]
    for step, row in zip(steps, case["steps"], strict=False):
        assert step.evicted == Fraction(row["next_evict"])
        assert step.completed == Fraction(row["next_comp"])
        assert step.admitted == Fraction(row["next_admit"])
        assert step.memory_before == Fraction(row["next_mem_tilde"])
        assert step.waiting is None


def test_golden_proportional_eviction_is_exact():
    case = GOLDEN["prop_evict"]
    step = model_of(case).step(exact(case["X"]))
    assert step.state == exact(case["next"])
    assert (step.memory_before, step.evicted, step.completed, step.admitted) == (70, 2, Fraction(1, 3), 0)
    assert step.evictions == tuple((k, j, Fraction(mass)) for k, j, mass in case["evs"])


@pytest.mark.parametrize("name", ["cycle_opposite", "cycle_adjacent"])
def test_golden_cycles_are_exact(name):
    case = GOLDEN[name]
    states = [exact([row]) for row in case["states"]]
    model = ContinuousModel([FlowClass(1, 2, 4)], 48)
    steps = list(model.run(states[0], case["period"]))
    assert [step.state for step in steps] == [*states[1:], states[0]]
    assert sum(step.completed for step in steps) / Fraction(case["period"]) == Fraction(case["thr"])
    assert sum(step.evicted for step in steps) / Fraction(case["period"]) == Fraction(case["evict_rate"])


def test_admissions_of_the_two_class_example_are_exact():
    case = GOLDEN["trace_c23"]
    steps = model_of(case).run(exact(case["steps"][0]["X"]), 8)
    assert [step.admitted for step in steps] == [Fraction(x) for x in GOLDEN["admissions_c23"]]


@pytest.mark.parametrize(("name", "last"), [("c23", 3), ("c24", 4)])
def test_long_runs_of_two_classes(name, last):
    case, golden = GOLDEN[f"trace_{name}"], GOLDEN[f"long_{name}"]
    model = ContinuousModel([FlowClass(0.5, 50, 2), FlowClass(0.5, 50, last)], float(case["M"]))
    state = tuple(tuple(float(Fraction(x)) for x in row) for row in case["steps"][0]["X"])
    steps = list(model.run(state, 6000))
    firsts = [n for n, step in enumerate(steps, 1) if step.evicted > 1e-9]
    assert (firsts[0] if firsts else None) == golden["first_evict"]
    assert [s.admitted for s in steps[-8:]] == pytest.approx(golden["tail_admits"], rel=1e-9)
    assert sum(s.completed for s in steps[-2000:]) / 2000 == pytest.approx(golden["tail_thr"], rel=1e-9)

    extreme = GOLDEN[f"extreme_{name}"]
    start = model.kv_tokens / 51 / 2
    steps = list(model.run(((start, 0.0), (start, *[0.0] * (last - 1))), 6000))
    assert sum(s.evicted for s in steps) == pytest.approx(extreme["total_evict"], rel=1e-9)
    assert sum(s.completed for s in steps[-2000:]) / 2000 == pytest.approx(extreme["tail_thr"], rel=1e-9)


@pytest.mark.parametrize("case", GOLDEN["pulse"], ids=lambda c: c["name"])
def test_golden_pulse_cycles(case):
    if case["name"] == "c24":
        prompt, outputs = 50, [2, 4]
    elif case["name"] == "det256":
        prompt, outputs = 512, [256]
    else:
        prompt, outputs = 512, json.loads(case["name"].replace("{", "[").replace("}", "]"))
    mix = LengthMix([(1, prompt, o) for o in outputs])
    model = ContinuousModel([FlowClass(Fraction(1, len(outputs)), prompt, o) for o in outputs], case["M"])
    assert model.pulse_cycle_rate(mix.gcd()) == Fraction(case["Tg"])
    assert model.eviction_free_rate() == Fraction(case["xstar"])
    assert pulse_cycle_rate(mix, case["M"]) == pytest.approx(float(Fraction(case["Tg"])), rel=1e-14)
    if case["sim_cold"] is not None and case["name"] not in ("{112,256,512}", "{96,224,512}"):
        # Sampled: the formula against the reference's integer simulation.
        assert case["ratio"] == pytest.approx(case["sim_cold"], abs=0.003)


@pytest.mark.parametrize("case", TRACES, ids=lambda c: c["name"])
def test_golden_integer_traces(case):
    actuators = Actuators(case["cap"] or None, "credit" if case["capmode"] == 1 else "floor", case["watermark"])
    requests = [tuple(row) for row in case["reqs"]]
    found = simulate(requests, case["M"], case["T"], arrivals=case["arr"], actuators=actuators)
    names = {
        "admit": "admitted",
        "complete": "completed",
        "evict": "evicted",
        "mem_tilde": "memory_before",
        "mem": "memory",
        "queue": "waiting",
        "finish": "finish",
    }
    for golden, name in names.items():
        assert getattr(found, name).tolist() == case[golden], name


def engine_at(stages, prompt, output, kv, waiting):
    """An engine whose stages hold the given counts: each is admitted in the iteration that leaves it there."""
    engine = IntegerEngine(kv)
    for j in range(output - 1, -1, -1):
        engine.execute()
        for _ in range(stages[j]):
            engine.submit(prompt, output)
        _, admitted, _ = engine.admit()
        assert admitted == stages[j]
    for _ in range(waiting):
        engine.submit(prompt, output)
    return engine


def test_golden_integer_trace_from_the_paper():
    case = GOLDEN["int_trace"]
    engine = engine_at(case["X0"], case["l0"], case["l1"], case["M"], case["Q0"])
    for row in case["steps"]:
        assert engine.execute() == row["mem_tilde"]
        for _ in range(row["A"]):
            engine.submit(case["l0"], case["l1"])
        evicted, admitted, prefilled = engine.admit()
        assert (evicted, admitted, len(engine.completed)) == (row["evict"], row["admit"], row["comp"])
        assert (engine.memory, engine.waiting, prefilled) == (row["mem"], row["Q"], row["admit"] * case["l0"])


def test_golden_integer_flow_from_the_full_first_stage():
    engine = engine_at([8, 0, 0], 2, 3, 24, 50)
    for row in GOLDEN["int_worst"]:
        engine.execute()
        evicted, _, _ = engine.admit()
        assert (evicted, len(engine.completed), engine.running) == (row["evict"], row["comp"], sum(row["X"]))


@pytest.mark.parametrize("z", [0, 2, 3, 4, 5])
def test_golden_safe_rates(z):
    mix = LengthMix([(1, 512, o) for o in (100, 125, 200, 250)])
    assert safe_rate(mix, 430_000, z) == pytest.approx(GOLDEN["safe"][str(z)]["x"], rel=1e-13)


def test_safe_rate_leaves_the_deviation_it_promises():
    mix = LengthMix([(3, 40, 7), (1, 300, 20), (2, 10, 20)])
    rng = np.random.default_rng(1)
    x, draws = safe_rate(mix, 50_000, 2.0), 4_000
    which = rng.choice(len(mix), size=(draws, int(mix.outputs[-1]), round(x)), p=mix.shares)
    stage = np.arange(int(mix.outputs[-1]))[None, :, None]
    held = np.where(mix.outputs[which] > stage, mix.prompts[which] + 1 + stage, 0).sum(axis=(1, 2))
    scale = round(x) / x
    assert held.mean() + 2 * held.std() / np.sqrt(scale) == pytest.approx(50_000 * scale, rel=0.01)


shares = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 20), st.integers(1, 7)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(shares, st.integers(60, 400), st.data())
def test_continuous_model_invariants(rows, kv, data):
    total = sum(p for p, _, _ in rows)
    model = ContinuousModel([FlowClass(Fraction(p, total), s, o) for p, s, o in rows], kv)
    masses = st.integers(0, 5)
    state = tuple(tuple(data.draw(masses) for _ in range(o)) for _, _, o in rows)
    cap = data.draw(st.none() | st.integers(0, 6))
    watermark = data.draw(st.integers(0, 30))
    waiting = data.draw(st.none() | st.integers(0, 40))
    held, queued = sum(sum(row) for row in state), waiting
    for step in model.run(state, 12, waiting, arriving=1, cap=cap, watermark=watermark):
        inside = sum(sum(row) for row in step.state)
        assert inside == held - step.completed - step.evicted + step.admitted
        if queued is not None:
            queued += 1 + step.evicted - step.admitted
        assert step.waiting == queued
        assert model.usage(step.state) <= kv
        if step.admitted:
            assert model.usage(step.state) <= kv - watermark
        if cap is None and waiting is None and not watermark:
            assert model.usage(step.state) == kv
        if cap is not None:
            assert step.admitted <= cap
        if step.evicted:
            assert step.memory_before - kv == sum(mass * (rows[k][1] + 1 + j) for k, j, mass in step.evictions)
            assert step.admitted == 0 or watermark == 0
        held = inside


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(2, 7), st.lists(st.integers(0, 6), min_size=7, max_size=7))
def test_support_never_revives(prompt, output, masses):
    """K=1: a position that a whole stage was evicted from stays empty for good (congestion paper)."""
    state = (tuple(masses[:output]),)
    kv = 24 * output
    model = ContinuousModel([FlowClass(1, prompt, output)], kv)
    empty_before = None
    for position, step in enumerate(model.run(state, 6 * output), 1):
        # Stage j in iteration n is the block position (j - n) mod output.
        empty = {(j - position) % output for j, mass in enumerate(step.state[0]) if not mass}
        if empty_before is not None and position > output:
            assert empty_before <= empty
        if position >= output:
            empty_before = empty


@settings(max_examples=60, deadline=None)
@given(shares, st.integers(60, 400), st.fractions(0, 1, max_denominator=7), st.data())
def test_a_cap_at_the_eviction_free_rate_ends_evictions(rows, kv, part, data):
    total = sum(p for p, _, _ in rows)
    model = ContinuousModel([FlowClass(Fraction(p, total), s, o) for p, s, o in rows], kv)
    state = tuple(tuple(data.draw(st.integers(0, 40)) for _ in range(o)) for _, _, o in rows)
    longest = max(o for _, _, o in rows)
    cap = model.eviction_free_rate() * part
    steps = list(model.run(state, 3 * longest, cap=cap))
    assert all(step.evicted == 0 for step in steps[longest:])


def test_admissions_obey_the_recurrence():
    """Σ W_j·a_{n-j} = M exactly, while nothing is evicted."""
    case = GOLDEN["trace_c23"]
    model = model_of(case)
    admitted = [step.admitted for step in model.run(exact(case["steps"][0]["X"]), 12)]
    weights = [sum(c.share * (c.prompt + 1 + j) for c in model.classes if c.output > j) for j in range(3)]
    for n in range(3, 12):
        assert sum(w * admitted[n - j] for j, w in enumerate(weights)) == case["M"]


def test_spread_grows_until_the_first_eviction():
    for name in ("trace_l3", "trace_l4"):
        case = GOLDEN[name]
        spreads = []
        for row in case["steps"]:
            (stages,) = exact(row["X"])
            spreads.append(max(stages) - min(stages))
            if Fraction(row["next_evict"]):
                break
        assert len(spreads) > 5
        assert all(a <= b for a, b in pairwise(spreads))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 8)), min_size=1, max_size=4))
def test_rates_of_the_pulse_cycle(rows):
    mix = LengthMix([(1, s, o) for s, o in rows])
    x, t = eviction_free_rate(mix, 1000), pulse_cycle_rate(mix, 1000)
    assert t <= x * (1 + 1e-12)
    if mix.gcd() == 1:
        assert t == pytest.approx(x, rel=1e-12)
    s, o = rows[0]
    single = ContinuousModel([FlowClass(1, s, o)], 1000)
    assert single.pulse_cycle_rate(o) == cycle_rate([o], s, 1000)
    assert single.pulse_cycle_rate(1) == single.eviction_free_rate() == cycle_rate([1] * o, s, 1000)


def naive(requests, kv, iterations, arrivals, cap, mode, watermark):
    """Theory B.1 word for word: a list in admission order, scanned in full."""
    running, queue, credit, rows, coming = [], [], 0.0, [], 0
    for t in range(iterations):
        running = [[i, j + 1] for i, j in running]
        done = [i for i, j in running if j == requests[i][1]]
        running = [r for r in running if r[1] < requests[r[0]][1]]
        while coming < len(requests) and arrivals[coming] <= t:
            queue.append(coming)
            coming += 1
        memory = sum(requests[i][0] + 1 + j for i, j in running)
        before, evicted = memory, 0
        while memory > kv:
            i, j = running.pop()
            memory -= requests[i][0] + 1 + j
            queue.insert(0, i)
            evicted += 1
        allowed = float("inf")
        if cap is not None:
            credit = min(credit + cap, cap + 1)
            allowed = int(cap) if mode == "floor" else int(credit)
        admitted = 0
        while queue and admitted < allowed:
            needed = requests[queue[0]][0] + 1
            if memory + needed > (kv - watermark if running else kv):
                break
            memory += needed
            running.append([queue.pop(0), 0])
            admitted += 1
        credit -= admitted
        rows.append((admitted, len(done), evicted, before, memory, len(queue)))
    return rows


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=40),
    st.integers(18, 60),
    st.none() | st.floats(0.3, 4),
    st.sampled_from(["credit", "floor"]),
    st.integers(0, 17),
)
def test_integer_engine_follows_the_rule_step_by_step(rows, kv, cap, mode, watermark):
    rows.sort(key=lambda row: row[2])
    requests, arrivals = [(s, o) for s, o, _ in rows], [a for _, _, a in rows]
    if cap is not None and mode == "floor":
        cap += 1.0
    found = simulate(requests, kv, 60, arrivals=arrivals, actuators=Actuators(cap, mode, watermark))
    names = ("admitted", "completed", "evicted", "memory_before", "memory", "waiting")
    columns = [getattr(found, name).tolist() for name in names]
    assert list(zip(*columns, strict=True)) == naive(requests, kv, 60, arrivals, cap, mode, watermark)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=60),
    st.integers(60, 150),
    st.none() | st.floats(0.05, 3),
)
def test_everything_completes_in_the_end(requests, kv, cap):
    found = simulate(requests, kv, actuators=Actuators(cap, watermark=5))
    assert (found.finish >= 0).all()
    assert found.admitted.sum() == len(requests) + found.evicted.sum()
    assert found.memory.max() <= kv
    assert found.prefilled.sum() >= sum(s for s, _ in requests)


def test_caps_change_in_flight():
    engine = IntegerEngine(1000, Actuators(cap=1.0))
    for _ in range(50):
        engine.submit(9, 50)
    for _ in range(5):
        engine.execute()
        assert engine.admit()[1] == 1
    engine.actuators = Actuators(cap=3.0)
    engine.execute()
    assert engine.admit()[1] == 3


def test_smooth_order_spreads_the_classes():
    assert smooth_order([1, 1], 6).tolist() == [0, 1, 0, 1, 0, 1]
    order = smooth_order([5, 1, 1], 700)
    assert np.bincount(order).tolist() == [500, 100, 100]
    assert all(np.bincount(order[i : i + 7], minlength=3).tolist() == [5, 1, 1] for i in range(0, 700, 7))


def test_seconds_of_a_trace():
    found = simulate([(10, 2)], 100)
    assert found.memory.tolist() == [11, 12, 0]
    assert found.seconds(1.0, 0.1, 0.01).tolist() == pytest.approx([2.2, 2.2, 1.0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: IntegerEngine(10).submit(6, 5), ["11", "10"]),
        (lambda: simulate([(1, 1), (9, 9)], 10), ["requests[1]", "18", "10"]),
        (lambda: simulate([(1, 1), (1, 1)], 10, arrivals=[3, 2]), ["arrivals[1]", "sort"]),
        (lambda: simulate([(1, 1)], 10, arrivals=[]), ["arrivals"]),
        (lambda: Actuators(cap=0.0), ["cap"]),
        (lambda: Actuators(cap=0.5, mode="floor"), ["cap", "credit"]),
        (lambda: Actuators(mode="bucket"), ["mode", "credit"]),
        (lambda: Actuators(watermark=-1), ["watermark"]),
        (lambda: ContinuousModel([], 5), ["classes"]),
        (lambda: ContinuousModel([FlowClass(Fraction(1, 2), 1, 1)], 5), ["sum to 1", "0.5"]),
        (lambda: ContinuousModel([FlowClass(1, 1, 0)], 5), ["classes[0].output"]),
        (lambda: ContinuousModel([FlowClass(1, 1, 2)], 5).step(((1,),)), ["state", "[2]"]),
        (lambda: ContinuousModel([FlowClass(1, 1, 2)], 5).step(((1, -1),)), ["negative"]),
        (lambda: ContinuousModel([FlowClass(1, 1, 2)], 5).step(((1, 1),), cap=-1), ["cap"]),
        (lambda: ContinuousModel([FlowClass(1, 1, 3)], 5).pulse_cycle_rate(2), ["period"]),
        (lambda: cycle_rate([], 1, 5), ["gaps"]),
        (lambda: cycle_rate([1, 0], 1, 5), ["gaps[1]"]),
        (lambda: smooth_order([1, 0], 5), ["shares[1]"]),
    ],
)
def test_bad_input_names_the_field(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_fixed_points_stay():
    model = ContinuousModel([FlowClass(Fraction(1, 3), 4, 3), FlowClass(Fraction(2, 3), 9, 5)], 700)
    (step,) = model.run(model.fixed_point(), 1)
    assert step.state == model.fixed_point()
    assert step.admitted == step.completed == model.eviction_free_rate()
    assert model.usage(model.empty()) == 0
