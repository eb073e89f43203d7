"""Strategic merge of a partial PodTemplateSpec onto a pod (the merge keys of core v1)."""

from collections.abc import Mapping, Sequence
from typing import Any

from evenflow_contract.labels import CLASS_PREFIX, PREFIX
from evenflow_operator.core.pods.volumes import CONFIG_VOLUME

MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "tolerations": ("key", "operator", "effect"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Lists whose items are merged by these fields. Every other list replaces the one below it.

Kubernetes keys ports by containerPort alone and replaces tolerations; here the same port may have two protocols, and
a user's tolerations join ours.
"""

OWNED_SPEC = ("restartPolicy",)
"""Fields of the pod's spec that a template may not touch: slots rely on them."""


def merge_pod_template(pod: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The pod with the template's metadata and spec merged in; what the operator relies on stays as it is.

    These stay: labels and annotations with our prefixes, name and owner, restartPolicy, and the volume with the
    worker's config.
    """
    given = template.get("metadata") or {}
    own = pod["metadata"]
    metadata = {
        **own,
        "labels": {**_foreign(given.get("labels")), **own["labels"]},
        "annotations": {**own["annotations"], **_foreign(given.get("annotations"))},
    }
    spec = {key: value for key, value in (template.get("spec") or {}).items() if key not in OWNED_SPEC}
    merged = _merge_maps(pod["spec"], spec)
    merged["volumes"] = _with_own_config(merged.get("volumes", []), pod["spec"]["volumes"])
    return {**pod, "metadata": metadata, "spec": merged}


def _foreign(given: Mapping[str, str] | None) -> dict[str, str]:
    ours = (f"{PREFIX}/", f"{CLASS_PREFIX}/")
    return {key: value for key, value in (given or {}).items() if not key.startswith(ours)}


def _with_own_config(volumes: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    config = next(volume for volume in own if volume["name"] == CONFIG_VOLUME)
    return [config, *(volume for volume in volumes if volume.get("name") != CONFIG_VOLUME)]


def _merge_maps(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
            continue
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = _merge_maps(old, value)
        elif isinstance(value, list) and isinstance(old, list) and key in MERGE_KEYS:
            merged[key] = _merge_lists(old, value, MERGE_KEYS[key])
        else:
            merged[key] = value
    return merged


def _merge_lists(below: Sequence[Any], above: Sequence[Any], fields: tuple[str, ...]) -> list[Any]:
    merged = list(below)
    for item in above:
        identity = _identity(item, fields)
        place = next((i for i, old in enumerate(merged) if identity and _identity(old, fields) == identity), None)
        if place is None:
            merged.append(item)
        else:
            merged[place] = _merge_maps(merged[place], item)
    return merged


def _identity(item: Any, fields: tuple[str, ...]) -> tuple[Any, ...] | None:
    if not isinstance(item, Mapping):
        return None
    values = tuple(item.get(field, "TCP" if field == "protocol" else None) for field in fields)
    return None if all(value is None for value in values) else values
