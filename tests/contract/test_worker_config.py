"""The worker config document: strict, round-trips, and every refusal names its field."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_contract.errors import ContractError
from evenflow_contract.reading import ObjectReader, check_version
from evenflow_contract.worker_config import (
    POLICIES,
    VICTIMS,
    Admission,
    ClassPrior,
    Proxies,
    WorkerConfig,
)

EXAMPLE = {
    "version": 1,
    "generation": 17,
    "policy": "SVF",
    "victim": "LargestVolume",
    "agingSeconds": 30,
    "predictor": {"type": "ClassPrior"},
    "proxies": None,
    "classes": ["chat", "code"],
    "draining": False,
    "admission": {"mode": "Limited", "unit": "Volume", "perIteration": 0.98, "watermark": 0.01},
    "classPriors": {"chat": {"promptTokens": 1024, "outputTokens": 220}},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The example with one field changed; the value `...` removes it."""
    document = json.loads(json.dumps(EXAMPLE))
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


def test_the_example_of_the_design() -> None:
    config = WorkerConfig.parse(json.dumps(EXAMPLE))
    assert config.generation == 17
    assert config.admission == Admission("Limited", "Volume", 0.98, 0.01)
    assert config.class_priors == {"chat": ClassPrior(1024, 220)}
    assert config.proxies is None


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("version", 2, "version"),
        ("version", 0, "version"),
        ("version", ..., "version"),
        ("generation", -1, "generation"),
        ("generation", True, "generation"),
        ("generation", 1.5, "generation"),
        ("policy", "LIFO", "policy"),
        ("policy", None, "policy"),
        ("victim", "Newest", "victim"),
        ("agingSeconds", -1, "agingSeconds"),
        ("agingSeconds", "30s", "agingSeconds"),
        ("predictor.type", "Oracle", "predictor.type"),
        ("predictor", {"type": "Model"}, "predictor.path"),
        ("predictor", {"type": "ClassPrior", "path": "/x"}, "predictor.path"),
        ("proxies", {"threshold": 1, "short": 9, "long": 3}, "proxies.short"),
        ("classes", ["chat", "chat"], "classes"),
        ("classes", ["Chat"], "classes[0]"),
        ("classes", ["a" * 23], "classes[0]"),
        ("classes", [f"c{n}" for n in range(34)], "classes"),
        ("classes", {}, "classes"),
        ("draining", "no", "draining"),
        ("admission", ..., "admission"),
        ("admission.mode", "Unlimited", "admission.mode"),
        ("admission.perIteration", ..., "admission.perIteration"),
        ("admission.perIteration", 0, "admission.perIteration"),
        ("admission.perIteration", -1, "admission.perIteration"),
        ("admission.watermark", 1.5, "admission.watermark"),
        ("admission.watermark", ..., "admission.watermark"),
        ("admission", {"mode": "Off", "unit": "Volume", "perIteration": 1, "watermark": 0}, "admission.perIteration"),
        ("classPriors.chat.outputTokens", "many", "classPriors.chat.outputTokens"),
        ("classPriors.chat.extra", 1, "classPriors.chat.extra"),
        ("ttlSeconds", 60, "ttlSeconds"),
    ],
)
def test_a_malformed_document_is_refused_whole_and_names_the_field(path: str, value: Any, field: str) -> None:
    with pytest.raises(ContractError) as caught:
        WorkerConfig.parse(changed(path, value))
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"version": NaN}', '"x"', "[" * 5000, "x" * 70_000])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        WorkerConfig.parse(text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(number: str) -> None:
    text = json.dumps(EXAMPLE).replace("0.98", number)
    with pytest.raises(ContractError):
        WorkerConfig.parse(text)


names = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
positive = st.floats(1e-6, 1e5, allow_nan=False)
configs = st.builds(
    WorkerConfig,
    generation=st.integers(0, 2**50),
    policy=st.sampled_from(POLICIES),
    victim=st.sampled_from(VICTIMS),
    aging_seconds=st.floats(0, 1e6),
    proxies=st.none() | st.builds(lambda t, a, b: Proxies(t, min(a, b), max(a, b)), positive, positive, positive),
    classes=st.lists(names, max_size=33, unique=True).map(tuple),
    draining=st.booleans(),
    admission=st.builds(
        Admission, st.just("Limited"), st.sampled_from(("Requests", "Volume")), positive, st.floats(0, 0.9)
    )
    | st.builds(Admission, st.just("Off"), st.sampled_from(("Requests", "Volume")), st.none(), st.floats(0, 0.9)),
    class_priors=st.dictionaries(names, st.builds(ClassPrior, st.floats(0, 1e6), st.floats(0, 1e6)), max_size=5),
)


@given(configs)
def test_documents_round_trip(config: WorkerConfig) -> None:
    again = WorkerConfig.parse(config.to_json())
    assert again == config
    assert again.content_hash() == config.content_hash()


@given(configs)
def test_the_hash_sees_the_generation_and_same_settings_does_not(config: WorkerConfig) -> None:
    later = replace(config, generation=config.generation + 1)
    assert later.content_hash() != config.content_hash()
    assert later.same_settings(config)
    assert not replace(config, draining=not config.draining).same_settings(config)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(EXAMPLE)), json_values)
def test_any_garbage_in_any_field_is_read_or_refused_but_never_crashes(key: str, value: Any) -> None:
    try:
        config = WorkerConfig.parse({**EXAMPLE, key: value})
    except ContractError:
        return
    assert WorkerConfig.parse(config.to_json()) == config


@pytest.mark.parametrize(
    ("current", "version", "accepted"), [(1, 1, True), (3, 3, True), (3, 2, True), (3, 1, False), (3, 4, False)]
)
def test_versions_n_and_n_minus_1_are_read(current: int, version: int, accepted: bool) -> None:
    reader = ObjectReader({"version": version})
    if accepted:
        assert check_version(reader, current) == version
    else:
        with pytest.raises(ContractError, match="this release reads version"):
            check_version(reader, current)


def test_a_number_with_hundreds_of_digits_is_refused_by_name() -> None:
    document = json.dumps(WorkerConfig(generation=3).document())
    text = document.replace('"agingSeconds": 30.0', '"agingSeconds": ' + "9" * 400)
    with pytest.raises(ContractError) as caught:
        WorkerConfig.parse(text)
    assert caught.value.field == "agingSeconds"


def test_keys_of_a_foreign_document_make_no_long_or_broken_log_line() -> None:
    document = WorkerConfig(generation=3).document() | {"x\nadmin token: " + "y" * 30_000: 1}
    with pytest.raises(ContractError) as caught:
        WorkerConfig.parse(json.dumps(document))
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
