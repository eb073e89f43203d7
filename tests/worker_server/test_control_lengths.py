"""The decayed, exact length histograms."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_contract.worker_state import MAX_LENGTHS_BYTES, WorkerLengths
from evenflow_worker.control.lengths import MAX_DISTINCT, LengthObservations


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 8)), min_size=1, max_size=80), st.floats(0.5, 20))
def test_weights_halve_every_half_life(completions, half_life):
    observations = LengthObservations(half_life)
    observations.retain(["chat"])
    for prompt, output in completions:
        observations.add("chat", prompt, output)
    expected: dict[int, float] = {}
    mean = total = 0.0
    for age, (prompt, output) in enumerate(reversed(completions)):
        weight = 0.5 ** (age / half_life)
        expected[output] = expected.get(output, 0.0) + weight
        mean += weight * prompt
        total += weight
    lengths = observations.document().classes["chat"]
    assert lengths.completed == len(completions)
    for output, weight in expected.items():
        # Weights below 1e-4 of the newest may have been forgotten.
        assert lengths.outputs.get(output, 0.0) == pytest.approx(weight, rel=1e-4, abs=2e-3)
    assert lengths.prompt_mean == pytest.approx(mean / total, rel=1e-3, abs=1e-3)


def test_memory_and_document_are_bounded():
    observations = LengthObservations()
    classes = [f"class-{index}" for index in range(32)] + ["default"]
    observations.retain(classes)
    for name in classes:
        for output in range(1, 3 * MAX_DISTINCT):
            observations.add(name, 1000, 10_000 + output)
    document = observations.document()
    assert all(len(entry.outputs) <= MAX_DISTINCT for entry in document.classes.values())
    assert 10_000 + 3 * MAX_DISTINCT - 1 in document.classes["default"].outputs
    assert 10_001 not in document.classes["default"].outputs
    text = json.dumps(document.document())
    assert len(text) < MAX_LENGTHS_BYTES
    assert WorkerLengths.parse(text) == WorkerLengths.parse(document.document())


def test_weights_stay_finite_for_ever():
    observations = LengthObservations(half_life=1.0)
    observations.retain(["a"])
    for index in range(5000):
        observations.add("a", 7, 1 + index % 2)
    outputs = observations.document().classes["a"].outputs
    assert sum(outputs.values()) == pytest.approx(2.0, rel=1e-3)
    assert observations.document().classes["a"].prompt_mean == pytest.approx(7.0)


def test_classes_come_and_go():
    observations = LengthObservations()
    observations.retain(["a", "default"])
    observations.add("a", 1, 1)
    observations.add("unknown", 1, 1)
    assert set(observations.document().classes) == {"a"}
    observations.retain(["default"])
    observations.add("a", 1, 1)
    assert observations.document().classes == {}


def test_quantiles_are_those_of_the_recent_prompts():
    observations = LengthObservations()
    observations.retain(["a"])
    for prompt in range(1, 101):
        observations.add("a", prompt, 1)
    quantiles = observations.document().classes["a"].prompt_quantiles
    assert quantiles[0.5] == 51
    assert quantiles[0.99] == 100


@pytest.mark.parametrize(("half_life", "distinct"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0)])
def test_nonsense_is_refused(half_life, distinct):
    with pytest.raises(ValueError, match="must be positive"):
        LengthObservations(half_life, distinct)
