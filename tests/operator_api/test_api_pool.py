"""Reading a pool as the API server stores it."""

from typing import Any

import pytest
from pydantic import ValidationError

from evenflow_operator.api.enums import AdmissionMode, EngineType, Mode, SchedulingPolicy
from evenflow_operator.api.errors import SpecError
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.api.spec import Engine, LLMServingPoolSpec, TrafficClass
from evenflow_operator.api.spec_engine import ServedModel


def stored(**parts: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.evenflow.dev/v1alpha1",
        "kind": "LLMServingPool",
        "metadata": {"name": "llama", "namespace": "prod", "uid": "u-1", "resourceVersion": "7", "generation": 3},
        "spec": {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}},
        **parts,
    }


def refused(spec: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as refusal:
        LLMServingPool.parse(stored(spec=spec))
    return {fault.path: fault.message for fault in refusal.value.errors}


def test_the_defaults_are_those_of_the_design() -> None:
    spec = LLMServingPool.parse(stored()).spec
    assert spec.to_dict() == {
        "mode": "Active",
        "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
        "replicas": 1,
        "engine": {
            "type": "VLLM",
            "vllm": {"image": "vllm/vllm-openai:v0.32.0", "extraArgs": [], "gpuMemoryUtilizationPercent": 90},
            "simulated": {"stepTimeModel": "A100-8B", "timeScale": 1, "streamInterval": 1, "startupSeconds": 0},
            "maxNumSeqs": 256,
            "maxNumBatchedTokens": 2048,
            "kvCacheTokens": 430000,
        },
        "accelerator": {
            "products": ["NVIDIA-A100-SXM4-80GB"],
            "resourceName": "nvidia.com/gpu",
            "parallelism": {"tensor": 1, "pipeline": 1},
        },
        "scheduling": {
            "policy": "SVF",
            "victim": "LargestVolume",
            "agingSeconds": 30,
            "predictor": {"type": "ClassPrior"},
        },
        "trafficClasses": [],
        "placement": {
            "strategy": "Balanced",
            "static": [],
            "maxClassesPerReplica": 8,
            "rebalance": {"enabled": True, "minImprovementPercent": 20, "maxMovesPerHour": 6},
        },
        "admission": {"mode": "Auto", "unit": "Volume"},
        "rollout": {"maxUnavailable": 1, "drainTimeoutSeconds": 600},
        "metrics": {"source": "Auto", "intervalSeconds": 15, "staleAfterSeconds": 90},
    }


def test_a_class_has_the_defaults_of_the_design() -> None:
    entry = TrafficClass(name="chat", prompt_tokens=1024, output_tokens=220)
    assert (entry.weight, entry.min_replicas, entry.output_spread_percent) == (1, 1, 60)
    assert entry.requests_per_minute is None


def test_an_empty_autoscaler_has_the_defaults_of_the_design() -> None:
    autoscaling = LLMServingPool.parse(stored(spec={"model": {"name": "m"}, "autoscaling": {}})).spec.autoscaling
    assert autoscaling is not None
    assert autoscaling.to_dict() == {
        "minReplicas": 2,
        "maxReplicas": 8,
        "targetLoadPercent": 75,
        "scaleDownStabilizationSeconds": 300,
    }


def test_an_absent_parent_equals_an_empty_one_and_a_null_one() -> None:
    bare = LLMServingPool.parse(stored())
    for empty in ({}, None):
        spec = {
            **stored()["spec"],
            **dict.fromkeys(
                ("engine", "accelerator", "scheduling", "placement", "admission", "rollout", "metrics"), empty
            ),
        }
        assert LLMServingPool.parse(stored(spec=spec)) == bare


def test_values_are_read_as_words_of_the_api() -> None:
    pool = LLMServingPool.parse(
        stored(
            spec={
                "mode": "Advisory",
                "model": {"name": "m", "servedName": "llama-8b"},
                "engine": {"type": "Simulated", "kvCacheTokens": 60000.0},
                "scheduling": {"policy": "FCFS"},
                "admission": {"mode": "Off"},
            }
        )
    )
    assert pool.spec.mode is Mode.ADVISORY
    assert pool.spec.engine.type is EngineType.SIMULATED
    assert pool.spec.engine.kv_cache_tokens == 60_000
    assert pool.spec.scheduling.policy is SchedulingPolicy.FCFS
    assert pool.spec.admission.mode is AdmissionMode.OFF
    assert pool.spec.model.served == "llama-8b"
    assert (pool.metadata.namespace, pool.metadata.uid, pool.metadata.generation) == ("prod", "u-1", 3)


def test_clients_see_the_models_own_name_where_no_other_is_given() -> None:
    assert ServedModel(name="org/model").served == "org/model"


def test_unknown_fields_of_another_release_are_ignored() -> None:
    spec = {"model": {"name": "m", "quantum": True}, "later": {"x": 1}, "max_num_seqs": "never read"}
    assert LLMServingPool.parse(stored(spec=spec)).spec == LLMServingPoolSpec(model=ServedModel(name="m"))


def test_snake_case_is_not_the_wire_format() -> None:
    spec = {"model": {"name": "m"}, "engine": {"max_num_seqs": 4}}
    assert LLMServingPool.parse(stored(spec=spec)).spec.engine.max_num_seqs == 256
    assert Engine(max_num_seqs=4).to_dict()["maxNumSeqs"] == 4


def test_every_fault_is_named_with_what_was_found() -> None:
    faults = refused(
        {
            "model": {},
            "replicas": "4",
            "engine": {"kvCacheTokens": "80GB", "vllm": {"gpuMemoryUtilizationPercent": 0.9}},
            "rollout": {"drainTimeoutSeconds": "10m"},
            "trafficClasses": [
                {"name": "Chat", "promptTokens": 1, "outputTokens": 2},
                {"name": "code", "promptTokens": 0, "outputTokens": 2},
                {"name": "code", "promptTokens": 9, "outputTokens": 2.5},
            ],
            "autoscaling": {"minReplicas": 3, "maxReplicas": 2},
        }
    )
    assert set(faults) == {
        "spec.model.name",
        "spec.replicas",
        "spec.engine.kvCacheTokens",
        "spec.engine.vllm.gpuMemoryUtilizationPercent",
        "spec.rollout.drainTimeoutSeconds",
        "spec.trafficClasses[0].name",
        "spec.trafficClasses[1].promptTokens",
        "spec.trafficClasses[2].name",
        "spec.trafficClasses[2].outputTokens",
        "spec.autoscaling.minReplicas",
    }
    assert 'found "80GB"; write a whole number of tokens' in faults["spec.engine.kvCacheTokens"]
    assert "for example 90" in faults["spec.engine.vllm.gpuMemoryUtilizationPercent"]
    assert "for example 600" in faults["spec.rollout.drainTimeoutSeconds"]
    assert 'found "code" a second time' in faults["spec.trafficClasses[2].name"]


def test_a_field_at_fault_is_named_once() -> None:
    faults = refused({"model": {"name": "m"}, "engine": {"maxNumBatchedTokens": 0}, "admission": {"mode": "Fixed"}})
    assert faults.keys() == {"spec.engine.maxNumBatchedTokens", "spec.admission.capMicro"}
    assert "at least 1" in faults["spec.engine.maxNumBatchedTokens"]


def test_rules_across_fields_hold_for_objects_that_an_older_crd_let_pass() -> None:
    assert refused({"model": {"name": "m"}, "autoscaling": {"minReplicas": 3, "maxReplicas": 2}}).keys() == {
        "spec.autoscaling.minReplicas"
    }


@pytest.mark.parametrize("spec", [None, [], "x", 3])
def test_a_spec_of_another_kind_is_an_error_of_ours(spec: Any) -> None:
    assert refused(spec).keys() == {"spec"}


@pytest.mark.parametrize("broken", [{"metadata": None}, {"metadata": []}, {"metadata": {"name": 3}}])
def test_metadata_that_no_api_server_sends_is_an_error_of_ours(broken: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="metadata"):
        LLMServingPool.parse(stored(**broken))


def test_a_status_part_of_another_release_counts_as_absent_and_the_rest_is_kept() -> None:
    decision = {"time": "2026-11-30T00:00:00Z", "type": "Cap", "reason": "CapCut", "inputs": {"evictions": "3"}}
    pool = LLMServingPool.parse(
        stored(
            status={
                "replicas": 4,
                "slots": [{"name": "llama-0", "phase": "Hibernating"}],
                "decisions": [decision],
                "severityMicro": -1,
            }
        )
    )
    assert (pool.status.replicas, pool.status.slots, pool.status.severity_micro) == (4, (), None)
    assert pool.status.decisions[0].inputs == {"evictions": "3"}


@pytest.mark.parametrize("status", [None, [], "x", {}])
def test_a_status_that_is_none_counts_as_empty(status: Any) -> None:
    assert LLMServingPool.parse(stored(status=status)).status.to_dict() == {
        "conditions": [],
        "classes": [],
        "slots": [],
        "decisions": [],
    }


def test_a_bad_status_does_not_hide_a_bad_spec() -> None:
    with pytest.raises(SpecError, match=r"spec\.replicas") as refusal:
        LLMServingPool.parse(stored(spec={"model": {"name": "m"}, "replicas": -1}, status={"replicas": "x"}))
    assert len(refusal.value.errors) == 1


def test_pools_are_frozen() -> None:
    pool = LLMServingPool.parse(stored())
    with pytest.raises(ValidationError):
        pool.spec.engine.max_num_seqs = 3  # type: ignore[misc]
