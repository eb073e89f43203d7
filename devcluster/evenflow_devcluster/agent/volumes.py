"""A pod's volumes as folders. As with a kubelet, a symlink is swapped, so that a reader sees old or new, never half."""

import base64
import itertools
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from evenflow_devcluster.agent.expansion import ConfigError

Json = dict[str, Any]

_DATA = "..data"
_generation = itertools.count()


def contents(
    volume: Json, *, field: Callable[[str], str], objects: Callable[[str, str], Json | None]
) -> dict[str, bytes] | None:
    """The files that a volume holds by relative path; None for an emptyDir, which starts empty and belongs to the pod.

    `objects(kind, name)` returns a ConfigMap or Secret, None when it doesn't exist. Raises ConfigError for one that is
    needed, and for kinds of volume that this agent doesn't play.
    """
    name = volume["name"]
    if "emptyDir" in volume:
        return None
    if "downwardAPI" in volume:
        return _downward(name, volume["downwardAPI"], field)
    if "configMap" in volume:
        source = volume["configMap"]
        return _selected(name, "configMap", source.get("name", ""), source, objects)
    if "secret" in volume:
        source = volume["secret"]
        return _selected(name, "secret", source.get("secretName", ""), source, objects)
    kinds = sorted(key for key in volume if key != "name")
    raise ConfigError(
        f"volumes[{name}]: {kinds} isn't supported by this node agent; use emptyDir, configMap, secret or downwardAPI"
    )


def _downward(name: str, source: Json, field: Callable[[str], str]) -> dict[str, bytes]:
    files = {}
    for item in source.get("items") or []:
        if "fieldRef" not in item:
            raise ConfigError(
                f"volumes[{name}].downwardAPI: {item.get('path')!r} needs fieldRef; resourceFieldRef isn't supported"
            )
        files[_relative(name, item["path"])] = field(item["fieldRef"]["fieldPath"]).encode()
    return files


def _selected(
    name: str, kind: str, object_name: str, source: Json, objects: Callable[[str, str], Json | None]
) -> dict[str, bytes]:
    document = objects(kind, object_name)
    if document is None:
        if source.get("optional"):
            return {}
        raise ConfigError(f"volumes[{name}].{kind}: {object_name!r} doesn't exist; create it or set optional: true")
    data = object_data(kind, document)
    items = source.get("items")
    if not items:
        return data
    files = {}
    for item in items:
        if item["key"] in data:
            files[_relative(name, item["path"])] = data[item["key"]]
        elif not source.get("optional"):
            raise ConfigError(f"volumes[{name}].{kind}: {object_name!r} has no key {item['key']!r}")
    return files


def object_data(kind: str, document: Json) -> dict[str, bytes]:
    """The values of a ConfigMap (`kind` configMap) or Secret (`secret`), decoded."""
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}
    files = {key: value.encode() for key, value in (document.get("data") or {}).items()}
    return files | {key: base64.b64decode(value) for key, value in (document.get("binaryData") or {}).items()}


def _relative(name: str, path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ConfigError(f"volumes[{name}].items.path: {path!r} must be relative and must not contain '..'")
    return str(pure)


def publish(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `folder` hold exactly `files`, in one step for every reader."""
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / _DATA
    previous = os.readlink(current) if current.is_symlink() else None
    # Unlike a timestamp, never the same twice, also after a restart of the agent in the same folder.
    fresh = folder / f"..{os.getpid()}_{next(_generation)}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for path, data in files.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    swap = folder / "..data_tmp"
    swap.unlink(missing_ok=True)
    swap.symlink_to(fresh.name)
    swap.rename(current)
    tops = {PurePosixPath(path).parts[0] for path in files}
    for top in tops:
        link = folder / top
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{top}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if previous is not None and previous != fresh.name:
        shutil.rmtree(folder / previous, ignore_errors=True)
