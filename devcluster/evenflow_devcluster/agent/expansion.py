"""What a container is started with: environment, arguments, and paths under its mounts. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

Json = dict[str, Any]

_REFERENCE = re.compile(r"\$(\$)?(?:\(([^()]*)\))?")


class ConfigError(Exception):
    """A container that can't be started as written; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mountPath (absolute, without a slash at its end) and the folder that stands for it."""

    mount_path: str
    host_path: str


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' own rule: `$(NAME)` is replaced when NAME is known and left when not; `$$` is one dollar."""

    def replace(match: re.Match[str]) -> str:
        doubled, name = match.group(1), match.group(2)
        if doubled:
            return "$" + (f"({name})" if name is not None else "")
        if name is None:
            return "$"
        return variables.get(name, f"$({name})")

    return _REFERENCE.sub(replace, text)


def rewrite(text: str, mounts: Sequence[Mount]) -> str:
    """`text` with a leading mountPath replaced by the folder that stands for it; the longest match wins."""
    fitting = [mount for mount in mounts if text == mount.mount_path or text.startswith(mount.mount_path + "/")]
    if not fitting:
        return text
    best = max(fitting, key=lambda mount: len(mount.mount_path))
    return best.host_path + text[len(best.mount_path) :]


def mounts_of(container: Json, volumes: Mapping[str, str]) -> tuple[Mount, ...]:
    """The container's volumeMounts with the folder of each. `volumes` maps a volume's name to its folder."""
    mounts = []
    for index, item in enumerate(container.get("volumeMounts") or []):
        where = f"containers[{container['name']}].volumeMounts[{index}]"
        folder = volumes.get(item["name"])
        if folder is None:
            raise ConfigError(f"{where}.name: no volume {item['name']!r}; add it to spec.volumes")
        path = str(PurePosixPath(item["mountPath"]))
        if path == "/" or not path.startswith("/"):
            raise ConfigError(f"{where}.mountPath: {item['mountPath']!r} must be an absolute path below /")
        sub = item.get("subPath") or ""
        if sub.startswith("/") or ".." in PurePosixPath(sub).parts:
            raise ConfigError(f"{where}.subPath: {sub!r} must be relative and must not contain '..'")
        mounts.append(Mount(path, f"{folder}/{sub}" if sub else folder))
    return tuple(mounts)


def field_value(path: str, pod: Json, *, pod_ip: str, host_ip: str) -> str:
    """What the downward API answers for a fieldPath of `pod`. Absent labels and annotations are the empty string."""
    meta = pod["metadata"]
    spec = pod.get("spec") or {}
    plain: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: meta["name"],
        "metadata.namespace": lambda: meta.get("namespace", ""),
        "metadata.uid": lambda: meta.get("uid", ""),
        "metadata.labels": lambda: _pairs(meta.get("labels") or {}),
        "metadata.annotations": lambda: _pairs(meta.get("annotations") or {}),
        "spec.nodeName": lambda: spec.get("nodeName", ""),
        "spec.serviceAccountName": lambda: spec.get("serviceAccountName", ""),
        "status.podIP": lambda: pod_ip,
        "status.podIPs": lambda: pod_ip,
        "status.hostIP": lambda: host_ip,
        "status.hostIPs": lambda: host_ip,
    }
    if path in plain:
        return str(plain[path]())
    match = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if match is None:
        raise ConfigError(f"fieldRef.fieldPath: {path!r} isn't a field of the downward API")
    return str((meta.get(match.group(1)) or {}).get(match.group(2), ""))


def _pairs(values: Mapping[str, str]) -> str:
    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    return "\n".join(f"{key}={quoted(values[key])}" for key in sorted(values))


def environment(
    container: Json,
    *,
    field: Callable[[str], str],
    config_maps: Mapping[str, Mapping[str, str] | None],
    secrets: Mapping[str, Mapping[str, str] | None],
) -> dict[str, str]:
    """The container's variables in order, each value expanded with those before it.

    `config_maps` and `secrets` hold every object that `references` named, None for one that doesn't exist.
    """
    result: dict[str, str] = {}
    for index, item in enumerate(container.get("envFrom") or []):
        for kind, objects in (("configMapRef", config_maps), ("secretRef", secrets)):
            ref = item.get(kind)
            if ref is None:
                continue
            data = objects.get(ref["name"])
            if data is None:
                if ref.get("optional"):
                    continue
                raise ConfigError(
                    f"envFrom[{index}].{kind}: {ref['name']!r} doesn't exist; create it or set optional: true"
                )
            result |= {f"{item.get('prefix', '')}{key}": value for key, value in data.items()}
    for item in container.get("env") or []:
        value = _value(item, result, field, config_maps, secrets)
        if value is not None:
            result[item["name"]] = value
    return result


def _value(
    item: Json,
    known: Mapping[str, str],
    field: Callable[[str], str],
    config_maps: Mapping[str, Mapping[str, str] | None],
    secrets: Mapping[str, Mapping[str, str] | None],
) -> str | None:
    source = item.get("valueFrom")
    where = f"env[{item['name']}]"
    if not source:
        return expand(item.get("value") or "", known)
    if "fieldRef" in source:
        return field(source["fieldRef"]["fieldPath"])
    for kind, objects in (("configMapKeyRef", config_maps), ("secretKeyRef", secrets)):
        ref = source.get(kind)
        if ref is None:
            continue
        data = objects.get(ref["name"])
        if data is not None and ref["key"] in data:
            return data[ref["key"]]
        if ref.get("optional"):
            return None
        missing = f"{ref['name']!r} doesn't exist" if data is None else f"{ref['name']!r} has no key {ref['key']!r}"
        raise ConfigError(f"{where}.{kind}: {missing}; create it or set optional: true")
    raise ConfigError(f"{where}.valueFrom: {sorted(source)} isn't supported by this node agent; use value or fieldRef")


def references(container: Json) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the ConfigMaps and Secrets that the container's environment reads."""
    maps, secrets = set(), set()
    for item in container.get("envFrom") or []:
        if "configMapRef" in item:
            maps.add(item["configMapRef"]["name"])
        if "secretRef" in item:
            secrets.add(item["secretRef"]["name"])
    for item in container.get("env") or []:
        source = item.get("valueFrom") or {}
        if "configMapKeyRef" in source:
            maps.add(source["configMapKeyRef"]["name"])
        if "secretKeyRef" in source:
            secrets.add(source["secretKeyRef"]["name"])
    return frozenset(maps), frozenset(secrets)


def command_line(container: Json, variables: Mapping[str, str], mounts: Sequence[Mount]) -> list[str]:
    """command and args, expanded and rewritten. An image's own entrypoint isn't known here, so command is required."""
    if not container.get("command"):
        raise ConfigError(
            f"containers[{container['name']}].command: absent, and this node agent doesn't run images; name the program"
        )
    words = [*container["command"], *(container.get("args") or [])]
    return [rewrite(expand(word, variables), mounts) for word in words]


def resolve_port(port: int | str, container: Json) -> int:
    """A probe's or hook's port: a number, or the name of one of the container's ports."""
    if isinstance(port, int):
        return port
    for item in container.get("ports") or []:
        if item.get("name") == port:
            return int(item["containerPort"])
    if port.isdigit():
        return int(port)
    raise ConfigError(f"containers[{container['name']}].ports: no port is named {port!r}; add it or use a number")
