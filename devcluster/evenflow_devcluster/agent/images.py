"""Which pods this node agent can run: it starts programs of this computer and pulls no images."""

import re
from collections.abc import Sequence
from typing import Any

from evenflow_devcluster.agent.process import StartError, program_path, resolve_program

Json = dict[str, Any]

# `none` and `local/…` say that no image is meant; the others carry nothing that isn't installed beside this agent.
_LOCAL = re.compile(r"(none|evenflow|evenflow/engine|local|local/[^@]+)(:[^/@]+)?(@.+)?")


def missing_images(spec: Json, *, python: str) -> dict[str, str]:
    """Why each container of a pod that needs real images can't start, by container name; empty for a pod that can.

    A container needs its image if the name isn't one that stands for local programs, and either the pod has init
    containers, which as a rule copy files out of an image, or its program isn't on this computer. Then no container of
    the pod is started, so that none works with half of what it needs.
    """
    init: Sequence[Json] = spec.get("initContainers") or []
    containers: list[Json] = [*init, *spec["containers"]]
    foreign = [item for item in containers if not _LOCAL.fullmatch(item.get("image") or "none")]
    if not any(init or not _is_here(item, python) for item in foreign):
        return {}
    return {
        item["name"]: f"image {item.get('image') or 'none'!r} can't be pulled: this local cluster runs local programs "
        "only (engine.type Simulated); use a cluster with a container engine"
        for item in containers
    }


def _is_here(container: Json, python: str) -> bool:
    command = container.get("command")
    if not command:
        return False
    program = command[0]
    mounts = [item["mountPath"].rstrip("/") + "/" for item in container.get("volumeMounts") or []]
    if "$(" in program or program.startswith(tuple(mounts)):
        return True  # known only once the pod's volumes and variables are
    path = next((item.get("value") for item in container.get("env") or [] if item["name"] == "PATH"), None)
    try:
        resolve_program(program, python=python, path=path or program_path(python))
    except StartError:
        return False
    return True
