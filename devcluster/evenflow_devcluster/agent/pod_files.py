"""A pod's folder: its volumes, kept as the API server has them, and what each container is started with."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow_devcluster.agent import expansion, volumes
from evenflow_devcluster.agent.expansion import ConfigError, Mount
from evenflow_devcluster.agent.process import base_environment
from evenflow_devcluster.agent.settings import AgentSettings
from evenflow_devcluster.kube import KubeClient, KubeError

Json = dict[str, Any]

_PLURAL = {"configMap": "configmaps", "secret": "secrets"}


@dataclass(frozen=True, slots=True)
class Preparation:
    """What one container is started with."""

    command: list[str]
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    folder: Path


class PodFiles:
    """Folder `<agent>/pods/<uid>` with volumes/, work/ and logs/. Blocking calls are small local writes."""

    def __init__(self, pod: Json, client: KubeClient, settings: AgentSettings, *, marker: str) -> None:
        self.pod_ip = ""
        uid: str = pod["metadata"]["uid"]
        self.root = settings.folder / "pods" / uid
        self._client = client
        self._settings = settings
        self._marker = marker
        self._namespace: str = pod["metadata"]["namespace"]
        self._published: dict[str, dict[str, bytes]] = {}
        specs: list[Json] = pod["spec"].get("volumes") or []
        # API servers add a projected token volume to every pod; local processes use a kubeconfig, if anything.
        self._volumes = [item for item in specs if "projected" not in item]
        self._skipped = frozenset(item["name"] for item in specs if "projected" in item)

    @property
    def reads_objects(self) -> bool:
        """Whether a volume has to be refreshed from ConfigMaps or Secrets."""
        return any("configMap" in item or "secret" in item for item in self._volumes)

    def folder_of(self, volume: str) -> Path:
        return self.root / "volumes" / volume

    def log_path(self, container: str, run: int) -> Path:
        return self.root / "logs" / container / f"{run}.log"

    def field(self, pod: Json, path: str) -> str:
        return expansion.field_value(path, pod, pod_ip=self.pod_ip, host_ip=self._settings.host_ip)

    async def publish(self, pod: Json) -> None:
        """Bring every volume up to date. Raises ConfigError when one can't be filled."""
        objects: dict[tuple[str, str], Json | None] = {}
        for volume in self._volumes:
            for kind, key in (("configMap", "name"), ("secret", "secretName")):
                if kind in volume and (wanted := volume[kind].get(key, "")):
                    objects[kind, wanted] = await self._fetch(kind, wanted)
        self._write(pod, self._volumes, objects)

    def publish_fields(self, pod: Json) -> None:
        """Bring the downward-API volumes up to date; needs nothing but the pod itself."""
        self._write(pod, [item for item in self._volumes if "downwardAPI" in item], {})

    def _write(self, pod: Json, specs: list[Json], objects: Mapping[tuple[str, str], Json | None]) -> None:
        for volume in specs:
            files = volumes.contents(
                volume,
                field=lambda path: self.field(pod, path),
                objects=lambda kind, name: objects.get((kind, name)),
            )
            name = volume["name"]
            if files is None:
                self.folder_of(name).mkdir(parents=True, exist_ok=True)
            elif self._published.get(name) != files:
                volumes.publish(self.folder_of(name), files)
                self._published[name] = files

    async def prepare(self, container: Json, pod: Json) -> Preparation:
        """Raises ConfigError when the container can't be started as it is written."""
        kept = [item for item in container.get("volumeMounts") or [] if item["name"] not in self._skipped]
        folders = {item["name"]: str(self.folder_of(item["name"])) for item in self._volumes}
        mounts = expansion.mounts_of({**container, "volumeMounts": kept}, folders)
        maps, secrets = expansion.references(container)
        variables = expansion.environment(
            container,
            field=lambda path: self.field(pod, path),
            config_maps={name: await self._values("configMap", name) for name in sorted(maps)},
            secrets={name: await self._values("secret", name) for name in sorted(secrets)},
        )
        command = expansion.command_line(container, variables, mounts)
        home = self.root / "work" / container["name"]
        home.mkdir(parents=True, exist_ok=True)
        base = base_environment(
            os.environ, python=self._settings.python, home=str(home), hostname=pod["metadata"]["name"]
        )
        rewritten = {key: expansion.rewrite(value, mounts) for key, value in variables.items()}
        account = self._settings.account_kubeconfig
        if account is not None and pod["spec"].get("automountServiceAccountToken"):
            rewritten.setdefault("KUBECONFIG", str(account))
        name, _, value = self._marker.partition("=")
        return Preparation(
            command, base | rewritten | {name: value}, mounts, self._work_folder(container, mounts, home)
        )

    def _work_folder(self, container: Json, mounts: tuple[Mount, ...], home: Path) -> Path:
        wanted = container.get("workingDir")
        if not wanted:
            return home
        folder = Path(expansion.rewrite(wanted, mounts))
        if not folder.is_dir():
            raise ConfigError(
                f"containers[{container['name']}].workingDir: no folder {wanted!r} on this computer; "
                "mount a volume there"
            )
        return folder

    async def _values(self, kind: str, name: str) -> dict[str, str] | None:
        document = await self._fetch(kind, name)
        if document is None:
            return None
        return {key: value.decode(errors="replace") for key, value in volumes.object_data(kind, document).items()}

    async def _fetch(self, kind: str, name: str) -> Json | None:
        try:
            return await self._client.get(f"/api/v1/namespaces/{self._namespace}/{_PLURAL[kind]}/{name}")
        except KubeError as error:
            if error.status == 404:
                return None
            raise ConfigError(f"{kind} {name!r} can't be read: {error}") from error
        except (OSError, TimeoutError) as error:
            raise ConfigError(f"{kind} {name!r} can't be read: {error}") from error

    async def remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self.root, True)
