"""The demo's eyes on the API server: the pool, its pods, its decisions, kept fresh by watches."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from evenflow_contract import environment, labels
from evenflow_contract.errors import ContractError
from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import WorkerState
from evenflow_devcluster.demo.observer import EngineTotals, Sample, Target
from evenflow_devcluster.demo.view import SlotRow
from evenflow_devcluster.kube import Informer, Json, KubeClient

POOLS = "/apis/serving.evenflow.dev/v1alpha1/namespaces/{namespace}/llmservingpools"
APPLY = "application/apply-patch+yaml"
POLL_SECONDS = 0.1
STATE_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


class PoolTimeout(Exception):
    """The pool didn't get where it should in time; the message says what was still missing."""


class PoolWatch:
    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self.namespace = namespace
        self.name = name
        self._pools = Informer(
            client,
            POOLS.format(namespace=namespace),
            self._pool_changed,
            rng=random.Random(1),
            fieldSelector=f"metadata.name={name}",
        )
        self._pods = Informer(
            client,
            f"/api/v1/namespaces/{namespace}/pods",
            self._pod_changed,
            rng=random.Random(2),
            labelSelector=f"{labels.POOL}={name}",
        )
        self.decisions: dict[tuple[str, ...], Mapping[str, Any]] = {}
        self._uids: set[str] = set()
        self._settled_uids: frozenset[str] = frozenset()

    async def run(self) -> None:
        await asyncio.gather(self._pools.run(), self._pods.run())

    @property
    def pool(self) -> Json:
        return next(iter(self._pools.store.values()), {})

    @property
    def pods(self) -> list[Json]:
        return sorted(self._pods.store.values(), key=lambda pod: str(pod["metadata"]["name"]))

    def _pool_changed(self, _old: Json | None, new: Json | None) -> None:
        for decision in ((new or {}).get("status") or {}).get("decisions") or ():
            key = tuple(str(decision.get(field, "")) for field in ("time", "type", "reason", "message"))
            self.decisions.setdefault(key, decision)

    def _pod_changed(self, _old: Json | None, new: Json | None) -> None:
        if new is not None:
            self._uids.add(new["metadata"]["uid"])

    def settled(self) -> None:
        """From now on every new pod and every restarted container counts as a restart."""
        self._settled_uids = frozenset(self._uids)

    def restarts(self) -> int:
        restarted = sum(
            int(status.get("restartCount") or 0)
            for pod in self.pods
            for status in (pod.get("status") or {}).get("containerStatuses") or ()
        )
        return len(self._uids - self._settled_uids) + restarted

    def targets(self) -> list[Target]:
        return [
            Target(pod["metadata"]["name"], pod["status"]["podIP"])
            for pod in self.pods
            if (pod.get("status") or {}).get("podIP")
        ]

    async def apply(self, manifest: Mapping[str, Any]) -> float:
        """Apply the whole pool as `kubectl apply --server-side` does. Returns the moment it was accepted."""
        path = f"{POOLS.format(namespace=self.namespace)}/{self.name}"
        await self._client.patch(path, dict(manifest), content_type=APPLY, fieldManager="evenflow-demo", force="true")
        return time.monotonic()

    async def service_urls(self, classes: list[str], timeout: float) -> dict[str, str]:
        """The address of each class's Service, once it has one."""
        urls: dict[str, str] = {}

        async def addressed() -> str | None:
            services, _ = await self._client.list(f"/api/v1/namespaces/{self.namespace}/services")
            by_name = {service["metadata"]["name"]: service for service in services}
            for name in classes:
                service = by_name.get(labels.service_name(self.name, name))
                if service is None or not service["spec"].get("clusterIP"):
                    return f"Service {labels.service_name(self.name, name)} has no address"
                urls[name] = f"http://{service['spec']['clusterIP']}:{environment.ENGINE_PORT}"
            return None

        await until(addressed, timeout)
        return urls

    async def wait_applied(self, manifest: Mapping[str, Any], timeout: float) -> float:
        """Wait until every slot is ready, serves its classes, and its engine runs this spec. Returns the moment."""
        async with aiohttp.ClientSession(timeout=STATE_TIMEOUT) as session:
            await until(lambda: self._not_applied(session, manifest["spec"]), timeout)
        return time.monotonic()

    async def _not_applied(self, session: aiohttp.ClientSession, spec: Mapping[str, Any]) -> str | None:
        status = self.pool.get("status") or {}
        if status.get("observedGeneration") != (self.pool.get("metadata") or {}).get("generation"):
            return "the operator hasn't seen the spec yet"
        if status.get("readyReplicas") != spec["replicas"] or len(self.pods) != spec["replicas"]:
            return f"{status.get('readyReplicas', 0)} of {spec['replicas']} slots ready"
        for pod in self.pods:
            missing = await self._pod_lacks(session, pod, spec)
            if missing:
                return f"pod {pod['metadata']['name']}: {missing}"
        return None

    async def _pod_lacks(self, session: aiohttp.ClientSession, pod: Json, spec: Mapping[str, Any]) -> str | None:
        metadata = pod["metadata"]
        if metadata["labels"].get(labels.SERVING) != labels.TRUE:
            return "not serving"
        if not labels.classes_of(metadata["labels"]):
            return "no class yet"
        try:
            config = WorkerConfig.parse(metadata["annotations"][labels.WORKER_CONFIG])
        except (KeyError, ContractError) as error:
            return f"worker config: {error}"
        wanted = spec["scheduling"]["policy"]
        if config.policy != wanted:
            return f"policy {config.policy}, not yet {wanted}"
        watermark = (spec.get("admission") or {}).get("watermarkPercent")
        if watermark is not None and round(100 * config.admission.watermark) != watermark:
            return f"watermark {config.admission.watermark:.0%}, not yet {watermark} %"
        if (config.admission.mode == "Off") != ((spec.get("admission") or {}).get("mode") == "Off"):
            return f"admission still {config.admission.mode}"
        state = await worker_state(session, pod["status"]["podIP"])
        if state is None or state.applied_generation != config.generation or state.config_hash != config.content_hash():
            return f"engine hasn't applied generation {config.generation}"
        return None

    def slot_rows(self, sample: Sample | None, since: Mapping[str, EngineTotals]) -> list[SlotRow]:
        rows = []
        status = self.pool.get("status") or {}
        for slot in status.get("slots") or ():
            pod = str(slot.get("pod") or slot.get("name"))
            totals = sample.totals.get(pod) if sample else None
            evictions = None if totals is None else totals.since(since.get(pod, EngineTotals())).evictions
            cap = slot.get("appliedCapMicro") or slot.get("capMicro")
            rows.append(
                SlotRow(
                    pod=pod,
                    phase=str(slot.get("phase", "")),
                    classes=",".join(slot.get("classes") or ()),
                    severity_micro=slot.get("severityMicro"),
                    cap="off" if not cap else f"{cap / 1e6:.2f} M",
                    kv_use=sample.kv_use.get(pod) if sample else None,
                    running=sample.running.get(pod) if sample else None,
                    waiting=sample.waiting.get(pod) if sample else None,
                    evictions=evictions,
                )
            )
        return rows


async def worker_state(session: aiohttp.ClientSession, address: str) -> WorkerState | None:
    url = f"http://{address}:{environment.ADMIN_PORT}{environment.STATE_PATH}"
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, ContractError, json.JSONDecodeError):
        async with session.get(url) as response:
            if response.status == 200:
                return WorkerState.parse(await response.text())
    return None


async def until(missing: Callable[[], Any], timeout: float) -> None:
    """Ask `missing` again and again until it answers None; PoolTimeout with its last answer after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = await missing()
        if answer is None:
            return
        if time.monotonic() > deadline:
            raise PoolTimeout(f"after {timeout:.0f} s: {answer}")
        await asyncio.sleep(POLL_SECONDS)
