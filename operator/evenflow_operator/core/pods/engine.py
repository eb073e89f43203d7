"""The engine's container: simulated or vLLM, and what brings the worker into a stock vLLM image."""

from collections.abc import Mapping
from typing import Any, Final

from evenflow_contract import environment as contract
from evenflow_contract.labels import ENGINE_CONTAINER
from evenflow_operator.api.enums import EngineType
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.pods import volumes as volumes

POD_IP: Final = "POD_IP"
POD_ADDRESS: Final = f"$({POD_IP})"
STARTUP_PERIOD_SECONDS: Final = {EngineType.VLLM: 10, EngineType.SIMULATED: 1}
STARTUP_LIMIT_SECONDS: Final = 3600
"""Loading weights over a slow network takes long; a start that takes longer is a fault."""

LOCKED_DOWN: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


DEFAULT_IMAGE: Final = "evenflow:latest"
"""Where the operator was not told which image carries its worker and simulated engine."""


def worker_image(spec: LLMServingPoolSpec, facts: Mapping[str, str]) -> str:
    """The image that carries the worker, or the simulated engine: not part of the revision, so a slot keeps its own.

    `facts` are the operator's, `worker_image` and `simulated_image`.
    """
    if spec.engine.type is EngineType.SIMULATED:
        return facts.get("simulated_image", DEFAULT_IMAGE)
    return spec.engine.worker_image or facts.get("worker_image", DEFAULT_IMAGE)


def engine_container(spec: LLMServingPoolSpec, image: str, *, admin_open: bool) -> dict[str, Any]:
    """`image` carries the worker, or is the simulated engine."""
    simulated = spec.engine.type is EngineType.SIMULATED
    gpus = {spec.accelerator.resource_name: str(spec.accelerator.parallelism.gpus)}
    container: dict[str, Any] = {
        "name": ENGINE_CONTAINER,
        "image": image if simulated else spec.engine.vllm.image,
        "command": ["python", "-m", "evenflow_worker.simulated"] if simulated else ["vllm", "serve"],
        "args": _simulated_args(spec) if simulated else _vllm_args(spec),
        "env": _environment(spec, admin_open),
        "ports": [
            {"name": contract.ENGINE_PORT_NAME, "containerPort": contract.ENGINE_PORT, "protocol": "TCP"},
            {"name": contract.ADMIN_PORT_NAME, "containerPort": contract.ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": {"limits": dict(gpus), "requests": dict(gpus)},
        "volumeMounts": _mounts(spec),
        "securityContext": {**LOCKED_DOWN, "readOnlyRootFilesystem": simulated},
    }
    container.update(_probes(spec.engine.type))
    return container


def init_containers(spec: LLMServingPoolSpec, image: str) -> list[dict[str, Any]]:
    """Copies worker, contract and model packages to the volume that stands on the engine's PYTHONPATH."""
    if spec.engine.type is EngineType.SIMULATED:
        return []
    return [
        {
            "name": "evenflow-worker",
            "image": image,
            "command": ["cp", "-r", f"{volumes.WORKER_SOURCE}/.", volumes.WORKER_MOUNT],
            "volumeMounts": [volumes.mount(volumes.WORKER_VOLUME, volumes.WORKER_MOUNT, read_only=False)],
            "securityContext": {**LOCKED_DOWN, "readOnlyRootFilesystem": True},
        }
    ]


def _simulated_args(spec: LLMServingPoolSpec) -> list[str]:
    engine = spec.engine
    options: dict[str, object] = {
        "host": POD_ADDRESS,
        "port": contract.ENGINE_PORT,
        "kv-tokens": engine.kv_cache_tokens,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "max-model-len": spec.model.max_model_len,
        "served-model-name": spec.model.served,
        "step-time-model": engine.simulated.step_time_model.value,
        "time-scale": engine.simulated.time_scale,
        "stream-interval": engine.simulated.stream_interval,
        "startup-seconds": engine.simulated.startup_seconds,
        "shutdown-timeout": spec.rollout.drain_timeout_seconds,
    }
    return _flags(options)


def _vllm_args(spec: LLMServingPoolSpec) -> list[str]:
    engine, parallelism = spec.engine, spec.accelerator.parallelism
    options: dict[str, object] = {
        "host": POD_ADDRESS,
        "port": contract.ENGINE_PORT,
        "served-model-name": spec.model.served,
        "scheduler-cls": "evenflow_worker.vllm.make_scheduler",
        "middleware": "evenflow_worker.vllm.TrafficClassMiddleware",
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "max-model-len": spec.model.max_model_len,
        "gpu-memory-utilization": engine.vllm.gpu_memory_utilization_percent / 100,
        "tensor-parallel-size": parallelism.tensor,
        "pipeline-parallel-size": parallelism.pipeline,
    }
    return [volumes.model_location(spec.model), *_flags(options), *engine.vllm.extra_args]


def _flags(options: dict[str, object]) -> list[str]:
    return [text for name, value in options.items() if value is not None for text in (f"--{name}", str(value))]


def _environment(spec: LLMServingPoolSpec, admin_open: bool) -> list[dict[str, Any]]:
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    variables: list[dict[str, Any]] = [
        {"name": POD_IP, "valueFrom": address},
        {"name": contract.ENV_ADMIN_HOST, "valueFrom": address},
        {"name": contract.ENV_ADMIN_PORT, "value": str(contract.ADMIN_PORT)},
        {"name": contract.ENV_CONFIG, "value": contract.DEFAULT_CONFIG_PATH},
    ]
    if spec.admin_token_secret_ref is not None:
        file = f"{volumes.TOKEN_MOUNT}/{volumes.TOKEN_FILE}"
        variables.append({"name": contract.ENV_ADMIN_TOKEN_FILE, "value": file})
    elif admin_open:
        variables.append({"name": contract.ENV_ADMIN_WRITE, "value": "open"})
    if spec.engine.type is EngineType.VLLM:
        variables += [
            {"name": "PYTHONPATH", "value": volumes.WORKER_MOUNT},
            {"name": "HOME", "value": volumes.HOME_MOUNT},
            {"name": "USER", "value": "vllm"},
            {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        ]
        source = spec.model.source
        if source is not None and source.hugging_face is not None and source.hugging_face.token_secret_ref is not None:
            secret = source.hugging_face.token_secret_ref
            reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
            variables.append({"name": "HF_TOKEN", "valueFrom": reference})
    return variables


def _mounts(spec: LLMServingPoolSpec) -> list[dict[str, Any]]:
    mounts = [volumes.config_mount()]
    if spec.admin_token_secret_ref is not None:
        mounts.append(volumes.mount(volumes.TOKEN_VOLUME, volumes.TOKEN_MOUNT))
    if spec.engine.type is EngineType.VLLM:
        mounts.append(volumes.mount(volumes.WORKER_VOLUME, volumes.WORKER_MOUNT))
        mounts.append(volumes.mount(volumes.HOME_VOLUME, volumes.HOME_MOUNT, read_only=False))
        mounts.append(volumes.mount(volumes.SHM_VOLUME, "/dev/shm", read_only=False))
        if volumes.model_volume(spec.model) is not None:
            mounts.append(volumes.mount(volumes.MODEL_VOLUME, volumes.MODEL_MOUNT))
    return mounts


def _probes(engine: EngineType) -> dict[str, Any]:
    check = {"httpGet": {"path": "/health", "port": contract.ENGINE_PORT_NAME}}
    period = STARTUP_PERIOD_SECONDS[engine]
    startup = {"periodSeconds": period, "failureThreshold": STARTUP_LIMIT_SECONDS // period, "timeoutSeconds": 5}
    # A busy engine answers late and must not be killed for it: losing it loses everything it runs.
    return {
        "startupProbe": {**check, **startup},
        "readinessProbe": {**check, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 5},
        "livenessProbe": {**check, "periodSeconds": 10, "failureThreshold": 12, "timeoutSeconds": 10},
    }
