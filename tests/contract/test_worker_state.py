"""What workers answer is untrusted input to the operator: bounded, checked, tolerant of newer fields."""

import gc
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_contract import labels
from evenflow_contract.errors import ContractError
from evenflow_contract.weights import LengthWeights
from evenflow_contract.worker_state import ClassLengths, WorkerLengths, WorkerState

STATE = {
    "version": 1,
    "appliedGeneration": 17,
    "configHash": "ab12",
    "engine": "vLLM 0.32.0",
    "scheduler": "evenflow",
    "policy": "SVF",
    "kvCapacityTokens": 430000,
    "blockSize": 16,
    "iterations": 91231,
    "running": 212,
    "waiting": 40,
    "inFlight": {"chat": 180, "code": 32},
}


def test_the_example_of_the_design_round_trips() -> None:
    state = WorkerState.parse(STATE)
    assert state.in_flight == {"chat": 180, "code": 32}
    assert state.document() == STATE


def test_a_fallback_says_why() -> None:
    state = WorkerState.parse({**STATE, "scheduler": "stock", "reason": "Scheduler has no attribute waiting"})
    assert state.reason == "Scheduler has no attribute waiting"


def test_a_newer_worker_may_say_more() -> None:
    assert WorkerState.parse({**STATE, "temperature": 40}).running == 212


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("running", -1),
        ("running", "many"),
        ("blockSize", 0),
        ("scheduler", "magic"),
        ("configHash", "x" * 300),
        ("inFlight", {"chat": -1}),
        ("inFlight", {"Chat!": 1}),
        ("inFlight", {f"c{n}": 1 for n in range(40)}),
        ("appliedGeneration", None),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    with pytest.raises(ContractError) as caught:
        WorkerState.parse({**STATE, key: value})
    assert caught.value.field.startswith(key)


weights = st.dictionaries(st.integers(0, 99_999), st.floats(0, 1e6), max_size=20)
quantiles = st.dictionaries(st.sampled_from([0.1, 0.5, 0.9, 0.99]), st.floats(0, 1e6))


@given(st.builds(ClassLengths, st.integers(0, 10**9), weights, st.floats(0, 1e6), quantiles))
def test_lengths_round_trip(lengths: ClassLengths) -> None:
    document = WorkerLengths({"chat": lengths}).document()
    assert WorkerLengths.parse(document) == WorkerLengths({"chat": lengths})


@pytest.mark.parametrize(
    "outputs", [{"-1": 1.0}, {"1.5": 1.0}, {"x": 1.0}, {"5": float("nan")}, {"5": -1.0}, {"٣": 1.0}, {"123456789": 1.0}]
)
def test_lengths_that_are_none_are_refused(outputs: dict[str, float]) -> None:
    entry = {"completed": 1, "outputs": outputs, "promptMean": 1.0, "promptQuantiles": {}}
    with pytest.raises(ContractError):
        WorkerLengths.parse({"version": 1, "classes": {"chat": entry}})


@given(weights)
def test_weights_of_lengths_are_a_mapping(plain: dict[int, float]) -> None:
    kept = LengthWeights(plain)
    assert kept == plain
    assert list(kept) == sorted(plain)
    assert dict(zip(kept, kept.values(), strict=True)) == plain
    assert [kept[length] for length in plain] == list(plain.values())
    assert len(kept) == len(plain)
    for absent in {0, 100_000, *(length + 1 for length in plain)} - plain.keys():
        assert absent not in kept


def test_lengths_of_thousands_of_engines_fit_into_memory() -> None:
    count = 4096
    outputs = {str(length): length + 0.5 for length in range(count)}
    entry = {"completed": count, "outputs": outputs, "promptMean": 1.0, "promptQuantiles": {}}
    document = json.dumps({"version": 1, "classes": {"chat": entry}})
    tracemalloc.start()
    try:
        lengths = WorkerLengths.parse(document)
        gc.collect()
        # Not what threads that other tests have left behind allocate meanwhile.
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*evenflow_contract*")])
    finally:
        tracemalloc.stop()
    assert len(lengths.classes["chat"].outputs) == count
    assert 0 < sum(trace.size for trace in own.traces) < 16 * count, "12 bytes per length; a dict takes 100"


def test_class_labels_and_service_names_go_together() -> None:
    pod_labels = {labels.POOL: "llama", labels.SERVING: "true", **labels.class_labels(["code", "chat"])}
    assert labels.classes_of(pod_labels) == {"chat", "code"}
    for name in ("chat", "code", "default"):
        assert labels.service_selector("llama", name).items() <= pod_labels.items()
    assert labels.service_name("llama", "default") == "llama"
    assert labels.service_name("llama", "chat") == "llama-chat"
    assert labels.classes_of({labels.class_label("chat"): "false", "other": "true"}) == frozenset()
