"""Names and paths of the volumes in an engine's pod."""

from typing import Any, Final

from evenflow_contract.environment import CONFIG_FILE, CONFIG_MOUNT
from evenflow_contract.labels import WORKER_CONFIG
from evenflow_operator.api.spec_engine import ServedModel

CONFIG_VOLUME: Final = "evenflow-config"
WORKER_VOLUME: Final = "evenflow-worker"
TOKEN_VOLUME: Final = "evenflow-admin-token"
MODEL_VOLUME: Final = "model"
SHM_VOLUME: Final = "shm"
HOME_VOLUME: Final = "home"

WORKER_SOURCE: Final = "/opt/evenflow/packages"
"""Where the worker image keeps the packages that the init container copies."""
WORKER_MOUNT: Final = "/opt/evenflow/worker"
TOKEN_MOUNT: Final = "/etc/evenflow-admin"
TOKEN_FILE: Final = "token"
MODEL_MOUNT: Final = "/models"
HOME_MOUNT: Final = "/var/lib/evenflow"


def mount(name: str, path: str, *, read_only: bool = True) -> dict[str, Any]:
    return {"name": name, "mountPath": path, "readOnly": True} if read_only else {"name": name, "mountPath": path}


def config_volume() -> dict[str, Any]:
    """The worker-config annotation as a file: the kubelet swaps it when the annotation changes."""
    field = {"fieldPath": f"metadata.annotations['{WORKER_CONFIG}']"}
    return {"name": CONFIG_VOLUME, "downwardAPI": {"items": [{"path": CONFIG_FILE, "fieldRef": field}]}}


def config_mount() -> dict[str, Any]:
    return mount(CONFIG_VOLUME, CONFIG_MOUNT)


def model_volume(model: ServedModel) -> dict[str, Any] | None:
    """The volume with the weights; None when the engine downloads them."""
    source = model.source
    if source is None or source.hugging_face is not None:
        return None
    if source.pvc is not None:
        claim = {"claimName": source.pvc.claim_name, "readOnly": True}
        return {"name": MODEL_VOLUME, "persistentVolumeClaim": claim}
    assert source.image is not None
    image = {"reference": source.image.reference, "pullPolicy": source.image.pull_policy.value}
    return {"name": MODEL_VOLUME, "image": image}


def model_location(model: ServedModel) -> str:
    """What the engine loads: a name on the Hub, or a folder."""
    if model_volume(model) is None:
        return model.name
    pvc = model.source.pvc if model.source is not None else None
    return f"{MODEL_MOUNT}/{pvc.path}" if pvc is not None and pvc.path else MODEL_MOUNT
