"""Rules across fields: what each twin finds where. That the CEL says the same is checked on a real API server."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_operator.api.rules import OWNED_FLAGS, RULES, cel_twin, warnings
from evenflow_operator.api.spec import LLMServingPoolSpec

CLASSES = [{"name": "chat", "promptTokens": 100, "outputTokens": 20}]


def pool(name: str = "llama", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"model": {"name": "m"}, **spec}}


# what is wrong, the field that is named, what the message says was found
BROKEN: list[tuple[dict[str, Any], str, str]] = [
    (pool(name="a" * 41), "metadata.name", "found 41 characters"),
    (pool(name="Llama"), "metadata.name", 'found "Llama"'),
    (pool(name="8b"), "metadata.name", 'found "8b"'),
    (pool(name="a-"), "metadata.name", 'found "a-"'),
    (pool(model={"name": "m", "source": {}}), "spec.model.source", "found none"),
    (
        pool(model={"name": "m", "source": {"pvc": {"claimName": "c"}, "image": {"reference": "r"}}}),
        "spec.model.source",
        "found pvc and image",
    ),
    (
        pool(engine={"maxNumSeqs": 4096}),
        "spec.engine.maxNumBatchedTokens",
        "found 2048, below maxNumSeqs 4096",
    ),
    (
        pool(engine={"vllm": {"extraArgs": ["--enforce-eager", "--data-parallel-size=2"]}}),
        "spec.engine.vllm.extraArgs[1]",
        'found "--data-parallel-size=2"',
    ),
    (
        pool(engine={"vllm": {"extraArgs": ["--port", "9000"]}}),
        "spec.engine.vllm.extraArgs[0]",
        'found "--port"',
    ),
    (
        pool(accelerator={"parallelism": {"tensor": 8, "pipeline": 4}}),
        "spec.accelerator.parallelism",
        "found 8 x 4 = 32 GPUs",
    ),
    (pool(scheduling={"predictor": {"type": "Model"}}), "spec.scheduling.predictor.path", "found none with type Model"),
    (
        pool(scheduling={"predictor": {"path": "/models/p"}}),
        "spec.scheduling.predictor.path",
        'found "/models/p" with type ClassPrior',
    ),
    (
        pool(trafficClasses=[*CLASSES, {"name": "default", "promptTokens": 1, "outputTokens": 1}]),
        "spec.trafficClasses[1].name",
        'found "default"',
    ),
    (
        pool(model={"name": "m", "maxModelLen": 119}, trafficClasses=CLASSES),
        "spec.trafficClasses[0]",
        "found promptTokens + outputTokens = 120, above model.maxModelLen 119",
    ),
    (
        pool(engine={"kvCacheTokens": 119}, trafficClasses=CLASSES),
        "spec.trafficClasses[0]",
        "found promptTokens + outputTokens = 120, above engine.kvCacheTokens 119",
    ),
    (pool(placement={"strategy": "Static"}), "spec.placement.static", "found 0 slots with strategy Static"),
    (
        pool(placement={"static": [{"slot": 0}]}),
        "spec.placement.static",
        "found 1 slots with strategy Balanced",
    ),
    (
        pool(
            placement={"strategy": "Static", "static": [{"slot": 0}, {"slot": 1, "classes": ["chat", "code"]}]},
            trafficClasses=CLASSES,
        ),
        "spec.placement.static[1].classes[1]",
        'found "code"',
    ),
    (pool(admission={"mode": "Fixed"}), "spec.admission.capMicro", "found none with mode Fixed"),
    (pool(admission={"capMicro": 5}), "spec.admission.capMicro", "found 5 with mode Auto"),
    (
        pool(autoscaling={"minReplicas": 9}),
        "spec.autoscaling.minReplicas",
        "found 9, above maxReplicas 8",
    ),
    (
        pool(metrics={"intervalSeconds": 30, "staleAfterSeconds": 30}),
        "spec.metrics.staleAfterSeconds",
        "found 30, not above intervalSeconds 30",
    ),
]

SOUND: list[dict[str, Any]] = [
    pool(),
    pool(name="a" * 40, trafficClasses=CLASSES, engine={"kvCacheTokens": 120}),
    pool(model={"name": "m", "maxModelLen": 120}, trafficClasses=CLASSES),
    pool(model={"name": "m", "source": {"huggingFace": {}}}),
    pool(engine={"maxNumSeqs": 2048, "vllm": {"extraArgs": ["--ports", "value=--port", "--enforce-eager"]}}),
    pool(accelerator={"parallelism": {"tensor": 8, "pipeline": 2}}),
    pool(scheduling={"predictor": {"type": "Model", "path": "/models/p"}}),
    pool(placement={"strategy": "Static", "static": [{"slot": 3, "classes": ["chat"]}]}, trafficClasses=CLASSES),
    pool(admission={"mode": "Fixed", "capMicro": 1_000_000}),
    pool(autoscaling={"minReplicas": 8}),
    pool(metrics={"intervalSeconds": 1, "staleAfterSeconds": 2}),
]


@pytest.mark.parametrize(("document", "path", "found"), BROKEN)
def test_a_broken_rule_names_field_finding_and_remedy(document: dict[str, Any], path: str, found: str) -> None:
    (fault,) = cel_twin(document)
    assert fault.path == path
    assert fault.message.split("; ", 1)[0] == found
    assert fault.message.split("; ", 1)[1] in {rule.remedy for rule in RULES}


@pytest.mark.parametrize("document", SOUND)
def test_sound_pools_break_no_rule(document: dict[str, Any]) -> None:
    assert cel_twin(document) == []


def test_every_rule_is_broken_by_some_example() -> None:
    remedies = {fault.message.split("; ", 1)[1] for document, _, _ in BROKEN for fault in cel_twin(document)}
    assert remedies == {rule.remedy for rule in RULES}


@pytest.mark.parametrize("flag", OWNED_FLAGS)
def test_an_owned_flag_is_refused_however_vllm_would_read_it(flag: str) -> None:
    for argument in (f"--{flag}", f"--{flag}=1", f"--{flag} 1", f"--{flag.replace('-', '_')}=1"):
        (fault,) = cel_twin(pool(engine={"vllm": {"extraArgs": [argument]}}))
        assert fault.path == "spec.engine.vllm.extraArgs[0]"


@pytest.mark.parametrize("argument", ["--data_parallel_size=2", "-dp", "-dp=2", "--data-parallel-size-local", "-dpl 2"])
def test_every_form_of_data_parallelism_is_refused(argument: str) -> None:
    (fault,) = cel_twin(pool(engine={"vllm": {"extraArgs": [argument]}}))
    assert "raise spec.replicas instead" in fault.message


def test_every_class_that_is_too_long_is_named() -> None:
    classes = [{"name": f"c{letter}", "promptTokens": 500_000, "outputTokens": 1} for letter in "ab"]
    assert [fault.path for fault in cel_twin(pool(trafficClasses=classes))] == [
        "spec.trafficClasses[0]",
        "spec.trafficClasses[1]",
    ]


def test_an_update_that_leaves_a_faulty_part_alone_passes() -> None:
    old = pool(trafficClasses=[{"name": "default", "promptTokens": 1, "outputTokens": 1}, *CLASSES])
    new = copy.deepcopy(old)
    new["spec"]["trafficClasses"].reverse()
    assert cel_twin(new, old) == []
    new["spec"]["trafficClasses"][0]["name"] = "code"
    assert cel_twin(new, old) == []
    assert [fault.path for fault in cel_twin(new)] == ["spec.trafficClasses[1].name"]


def test_an_update_that_changes_a_faulty_part_fails() -> None:
    old, new = pool(admission={"mode": "Fixed"}), pool(admission={"mode": "Fixed", "watermarkPercent": 1})
    assert cel_twin(old, old) == []
    assert [fault.path for fault in cel_twin(new, old)] == ["spec.admission.capMicro"]


WORDS = (
    *("model", "source", "engine", "vllm", "extraArgs", "trafficClasses", "placement", "static", "classes", "name"),
    *("promptTokens", "admission", "mode", "capMicro", "autoscaling", "minReplicas", "metrics", "slot", "parallelism"),
    *("accelerator", "scheduling", "predictor"),
)
SCRAMBLED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(spec=SCRAMBLED, old=SCRAMBLED)
def test_twins_never_fail_on_an_object_that_the_schema_would_refuse(spec: Any, old: Any) -> None:
    cel_twin({"metadata": {"name": "a"}, "spec": spec}, {"metadata": {"name": "a"}, "spec": old})


def test_a_class_minimum_above_the_replicas_is_only_a_warning() -> None:
    classes = [{**CLASSES[0], "minReplicas": 3}]
    few = LLMServingPoolSpec.model_validate(pool(replicas=2, trafficClasses=classes)["spec"])
    (warning,) = warnings(few)
    assert warning.path == "spec.trafficClasses[0].minReplicas"
    enough = LLMServingPoolSpec.model_validate(pool(trafficClasses=classes, autoscaling={"maxReplicas": 3})["spec"])
    assert warnings(enough) == []


def test_replicas_beside_autoscaling_are_a_warning() -> None:
    spec = LLMServingPoolSpec.model_validate(pool(replicas=2, autoscaling={})["spec"])
    (warning,) = warnings(spec)
    assert warning.path == "spec.replicas"
    assert "leave it out" in warning.message
