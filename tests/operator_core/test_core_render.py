from dataclasses import replace
from typing import Any

import pytest
from core_toy_cluster import pool_of, spec_of

from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.core.pods.render import PodRequest, pod_name, render_pod
from evenflow_operator.core.revision import revision_of
from evenflow_worker.simulated.options import parse_options


def request_of(slot: int = 0, attempt: int = 1, **fields: Any) -> PodRequest:
    pool = pool_of(spec_of(**fields))
    return PodRequest(
        pool="llama",
        namespace="ns",
        pool_uid="uid",
        spec=pool.spec,
        slot=slot,
        attempt=attempt,
        revision=revision_of(pool.spec),
        config=WorkerConfig(generation=1),
        worker_image="worker:test",
    )


def engine_of(pod: dict[str, Any]) -> dict[str, Any]:
    (engine,) = [one for one in pod["spec"]["containers"] if one["name"] == labels.ENGINE_CONTAINER]
    return engine  # type: ignore[no-any-return]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in engine_of(pod)["env"]}


def test_a_pod_belongs_to_its_pool_and_says_its_slot() -> None:
    meta = render_pod(request_of(slot=3))["metadata"]
    assert meta["labels"][labels.POOL] == "llama"
    assert meta["labels"][labels.SLOT] == "3"
    assert meta["ownerReferences"] == [
        {
            "apiVersion": "serving.evenflow.dev/v1alpha1",
            "kind": "LLMServingPool",
            "name": "llama",
            "uid": "uid",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert WorkerConfig.parse(meta["annotations"][labels.WORKER_CONFIG]) == WorkerConfig(generation=1)


def test_the_same_inputs_give_the_same_name_and_others_another() -> None:
    base = request_of()
    others = [
        replace(base, slot=1),
        replace(base, attempt=2),
        replace(base, revision="other"),
        replace(base, pool_uid="other"),
    ]
    names = {pod_name(request) for request in [base, *others]}
    assert len(names) == 5
    assert pod_name(base) == pod_name(request_of())
    assert all(len(name) <= 63 for name in names)


def test_the_simulated_engine_understands_its_command() -> None:
    pod = render_pod(
        request_of(
            model={"name": "m/x", "servedName": "x", "maxModelLen": 65536},
            engine={
                "type": "Simulated",
                "kvCacheTokens": 60_000,
                "simulated": {"timeScale": 15, "streamInterval": 8, "startupSeconds": 2},
            },
            rollout={"drainTimeoutSeconds": 45},
        )
    )
    engine = engine_of(pod)
    assert engine["command"] == ["python", "-m", "evenflow_worker.simulated"]
    options = parse_options([argument.replace("$(POD_IP)", "127.77.0.9") for argument in engine["args"]], environ={})
    assert (options.host, options.port, options.kv_tokens) == ("127.77.0.9", 8000, 60_000)
    assert (options.max_model_len, options.served_model_names) == (65536, ("x",))
    assert (options.time_scale, options.stream_interval, options.startup_seconds) == (15, 8, 2)
    assert options.shutdown_timeout == 45
    assert pod["spec"]["terminationGracePeriodSeconds"] == 75


def test_either_engine_asks_for_its_gpus() -> None:
    parallelism = {"parallelism": {"tensor": 2, "pipeline": 2}}
    for kind in ("Simulated", "VLLM"):
        engine = engine_of(render_pod(request_of(engine={"type": kind}, accelerator=parallelism)))
        assert engine["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_the_worker_config_is_a_file_of_the_annotation() -> None:
    pod = render_pod(request_of())
    (volume,) = [one for one in pod["spec"]["volumes"] if "downwardAPI" in one]
    item = volume["downwardAPI"]["items"][0]
    assert item == {
        "path": "config.json",
        "fieldRef": {"fieldPath": "metadata.annotations['evenflow.dev/worker-config']"},
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in engine_of(pod)["volumeMounts"]}
    assert mounts[volume["name"]] == "/etc/evenflow"
    assert environment(pod)["EVENFLOW_CONFIG"] == "/etc/evenflow/config.json"
    assert environment(pod)["EVENFLOW_ADMIN_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_vllm_gets_scheduler_middleware_and_the_worker_on_its_path() -> None:
    pod = render_pod(request_of(engine={"type": "VLLM", "vllm": {"extraArgs": ["--enforce-eager"]}}))
    engine = engine_of(pod)
    arguments = engine["args"]
    assert arguments[0] == "meta-llama/Llama-3.1-8B-Instruct"
    assert arguments[arguments.index("--scheduler-cls") + 1] == "evenflow_worker.vllm.make_scheduler"
    assert arguments[arguments.index("--gpu-memory-utilization") + 1] == "0.9"
    assert "--max-model-len" not in arguments
    assert arguments[-1] == "--enforce-eager"
    (init,) = pod["spec"]["initContainers"]
    assert init["image"] == "worker:test"
    assert init["volumeMounts"][0]["mountPath"] == environment(pod)["PYTHONPATH"]


@pytest.mark.parametrize(
    ("source", "location", "volume"),
    [
        ({"pvc": {"claimName": "weights", "path": "llama/8b"}}, "/models/llama/8b", "persistentVolumeClaim"),
        ({"image": {"reference": "weights:1"}}, "/models", "image"),
        ({"huggingFace": {"tokenSecretRef": {"name": "hf", "key": "token"}}}, "m/x", None),
    ],
)
def test_weights_come_from_where_the_spec_says(source: dict[str, Any], location: str, volume: str | None) -> None:
    pod = render_pod(request_of(engine={"type": "VLLM"}, model={"name": "m/x", "source": source}))
    assert engine_of(pod)["args"][0] == location
    found = [one for one in pod["spec"]["volumes"] if one["name"] == "model"]
    assert [volume in one for one in found] == ([True] if volume else [])
    assert ("HF_TOKEN" in environment(pod)) == (volume is None)


def test_an_admin_token_is_a_file_and_replaces_the_open_door() -> None:
    request = request_of(adminTokenSecretRef={"name": "admin", "key": "t"})
    with_token = environment(render_pod(replace(request, admin_open=True)))
    assert with_token["EVENFLOW_ADMIN_TOKEN_FILE"] == "/etc/evenflow-admin/token"
    assert "EVENFLOW_ADMIN_WRITE" not in with_token
    assert environment(render_pod(replace(request_of(), admin_open=True)))["EVENFLOW_ADMIN_WRITE"] == "open"
    assert "EVENFLOW_ADMIN_WRITE" not in environment(render_pod(request_of()))


def test_products_choose_the_node() -> None:
    one = render_pod(request_of())["spec"]
    assert one["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    two = render_pod(request_of(accelerator={"products": ["A", "B"]}))["spec"]
    terms = two["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["values"] == ["A", "B"]
    assert "nodeSelector" not in render_pod(request_of(accelerator={"products": []}))["spec"]


TEMPLATE = {
    "metadata": {
        "labels": {"team": "search", labels.SLOT: "9", "class.evenflow.dev/chat": "true"},
        "annotations": {"note": "x", labels.WORKER_CONFIG: "{}"},
        "name": "mine",
    },
    "spec": {
        "restartPolicy": "Never",
        "priorityClassName": "high",
        "containers": [
            {
                "name": "engine",
                "env": [{"name": "EXTRA", "value": "1"}, {"name": "EVENFLOW_ADMIN_PORT", "value": "9"}],
                "resources": {"requests": {"memory": "8Gi"}},
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            },
            {"name": "sidecar", "image": "side:1"},
        ],
        "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "evenflow-config", "emptyDir": {}}],
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    },
}


def test_a_template_is_merged_by_name_and_cannot_break_the_slot() -> None:
    plain = render_pod(request_of())
    pod = render_pod(request_of(podTemplate=TEMPLATE))
    meta, spec = pod["metadata"], pod["spec"]
    assert meta["labels"]["team"] == "search"
    assert meta["labels"][labels.SLOT] == "0"
    assert "class.evenflow.dev/chat" not in meta["labels"]
    assert meta["annotations"]["note"] == "x"
    assert meta["annotations"][labels.WORKER_CONFIG] == plain["metadata"]["annotations"][labels.WORKER_CONFIG]
    assert meta["ownerReferences"] == plain["metadata"]["ownerReferences"]
    assert meta["name"] != "mine"
    assert spec["restartPolicy"] == "Always"
    assert spec["priorityClassName"] == "high"
    assert [one["name"] for one in spec["containers"]] == ["engine", "sidecar"]
    assert environment(pod)["EXTRA"] == "1"
    assert environment(pod)["EVENFLOW_ADMIN_PORT"] == "9"
    assert engine_of(pod)["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert engine_of(pod)["resources"]["requests"] == {"nvidia.com/gpu": "1", "memory": "8Gi"}
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert "downwardAPI" in volumes["evenflow-config"]
    assert "cache" in volumes
    assert len(spec["tolerations"]) == len(plain["spec"]["tolerations"]) + 1


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 9},
        {"mode": "Paused"},
        {"scheduling": {"policy": "FCFS"}},
        {"trafficClasses": []},
        {"placement": {"strategy": "All"}},
        {"admission": {"mode": "Off"}},
        {"metrics": {"intervalSeconds": 5}},
        {"autoscaling": {"minReplicas": 1}},
        {"rollout": {"drainTimeoutSeconds": 5}},
        {"engine": {"type": "Simulated", "workerImage": "worker:2"}},
    ],
)
def test_what_a_running_pod_can_take_over_keeps_the_revision(change: dict[str, Any]) -> None:
    assert request_of(**change).revision == request_of().revision


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "another/model"}},
        {"engine": {"type": "Simulated", "maxNumSeqs": 128}},
        {"engine": {"type": "Simulated", "kvCacheTokens": 60_000}},
        {"engine": {"type": "Simulated", "simulated": {"timeScale": 2}}},
        {"engine": {"type": "VLLM"}},
        {"accelerator": {"parallelism": {"tensor": 2}}},
        {"podTemplate": {"spec": {"priorityClassName": "high"}}},
        {"rollout": {"restartedAt": "2026-01-01T00:00:00Z"}},
        {"adminTokenSecretRef": {"name": "a", "key": "b"}},
    ],
)
def test_what_only_a_new_pod_can_have_changes_the_revision(change: dict[str, Any]) -> None:
    assert request_of(**change).revision != request_of().revision


def test_the_revision_of_a_known_spec_never_changes_between_releases() -> None:
    """A new operator must restart nothing: if this fails, pods of every pool would roll."""
    assert request_of().revision == "467b27b40d"
    assert request_of(engine={"type": "VLLM"}).revision == "09facd7df1"
