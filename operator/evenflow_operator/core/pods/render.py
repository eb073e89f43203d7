"""The manifest of the bare pod that fills a slot (docs/kubernetes.md §3)."""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.api.enums import EngineType
from evenflow_operator.api.names import API_VERSION, KIND
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.pods import volumes as volumes
from evenflow_operator.core.pods.engine import engine_container, init_containers
from evenflow_operator.core.pods.merge import merge_pod_template
from evenflow_operator.core.revision import TEMPLATE_VERSION

GRACE_BEYOND_DRAIN_SECONDS: Final = 30
GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
LOST_NODE_SECONDS: Final = 60
"""How long a pod stays on a silent node before it gets a deletionTimestamp; Kubernetes' own default is 300 s."""
USER_ID: Final = 2000


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything that a pod is rendered from."""

    pool: str
    namespace: str
    pool_uid: str
    spec: LLMServingPoolSpec
    slot: int
    attempt: int
    revision: str
    config: WorkerConfig
    worker_image: str
    """Carries the worker, or is the simulated engine: what `worker_image` of core.pods.engine says."""
    admin_open: bool = False
    """Whether a NetworkPolicy guards the admin port, so that pushes need no token."""


def pod_name(request: PodRequest) -> str:
    """`<pool>-<slot>-<suffix>`: the same inputs give the same name, so a second create fails instead of doubling."""
    seed = f"{request.pool_uid}/{request.slot}/{request.revision}/{request.attempt}"
    return f"{request.pool}-{request.slot}-{hashlib.sha256(seed.encode()).hexdigest()[:6]}"


def render_pod(request: PodRequest) -> dict[str, Any]:
    """The pod, with the pool's podTemplate merged in."""
    spec = request.spec
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(request), "spec": _pod_spec(request)}
    return pod if spec.pod_template is None else merge_pod_template(pod, spec.pod_template.to_dict())


def _metadata(request: PodRequest) -> dict[str, Any]:
    return {
        "name": pod_name(request),
        "namespace": request.namespace,
        "labels": {
            "app.kubernetes.io/name": "evenflow-engine",
            "app.kubernetes.io/instance": request.pool,
            labels.MANAGED_BY: labels.MANAGER,
            labels.POOL: request.pool,
            labels.SLOT: str(request.slot),
            labels.REVISION: request.revision,
            labels.ATTEMPT: str(request.attempt),
        },
        "annotations": {
            labels.WORKER_CONFIG: request.config.to_json(),
            labels.TEMPLATE_VERSION: TEMPLATE_VERSION,
            labels.WORKER_IMAGE: request.worker_image,
            SAFE_TO_EVICT: "true",
        },
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": request.pool,
                "uid": request.pool_uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _pod_spec(request: PodRequest) -> dict[str, Any]:
    spec = request.spec
    rendered: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": spec.rollout.drain_timeout_seconds + GRACE_BEYOND_DRAIN_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _tolerations(spec),
        "containers": [engine_container(spec, request.worker_image, admin_open=request.admin_open)],
        "volumes": _volumes(spec),
    }
    rendered.update(_node_choice(spec.accelerator.products))
    init = init_containers(spec, request.worker_image)
    if init:
        rendered["initContainers"] = init
    return rendered


def _tolerations(spec: LLMServingPoolSpec) -> list[dict[str, Any]]:
    lost = [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for condition in ("not-ready", "unreachable")
    ]
    return [{"key": spec.accelerator.resource_name, "operator": "Exists", "effect": "NoSchedule"}, *lost]


def _node_choice(products: tuple[str, ...]) -> dict[str, Any]:
    if not products:
        return {}
    if len(products) == 1:
        return {"nodeSelector": {GPU_PRODUCT_LABEL: products[0]}}
    one_of = {"key": GPU_PRODUCT_LABEL, "operator": "In", "values": list(products)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one_of]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _volumes(spec: LLMServingPoolSpec) -> list[dict[str, Any]]:
    rendered = [volumes.config_volume()]
    token = spec.admin_token_secret_ref
    if token is not None:
        items = [{"key": token.key, "path": volumes.TOKEN_FILE}]
        rendered.append({"name": volumes.TOKEN_VOLUME, "secret": {"secretName": token.name, "items": items}})
    if spec.engine.type is EngineType.VLLM:
        rendered.append({"name": volumes.WORKER_VOLUME, "emptyDir": {}})
        rendered.append({"name": volumes.HOME_VOLUME, "emptyDir": {}})
        rendered.append({"name": volumes.SHM_VOLUME, "emptyDir": {"medium": "Memory"}})
        model = volumes.model_volume(spec.model)
        if model is not None:
            rendered.append(model)
    return rendered
