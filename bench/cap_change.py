"""From a spec patch to the new cap in every engine: API server, operator, worker push, all as real processes.

    .venv/bin/python bench/cap_change.py [--engines 4] [--changes 20]

Each change patches `spec.admission.capMicro` and waits until every engine's admin API says that it applied a document
with that cap. What people do today, a ConfigMap volume, takes 60 to 90 seconds (kubelet sync; k/k #30189, not measured
here).
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import aiohttp

from evenflow_contract import labels
from evenflow_contract.worker_config import WorkerConfig
from evenflow_devcluster.demo import examples_folder
from evenflow_devcluster.demo.children import Children
from evenflow_devcluster.demo.pool_watch import POOLS, PoolWatch, until, worker_state
from evenflow_devcluster.demo.scenarios import read_pool
from evenflow_devcluster.kube import KubeClient
from evenflow_devcluster.state import read_state

EVENFLOW = str(Path(sys.executable).with_name("evenflow"))


async def main(engines: int, changes: int) -> list[float]:
    folder = Path(tempfile.mkdtemp(prefix="evenflow-bench-"))
    try:
        async with Children(folder) as children:
            up = [EVENFLOW, "cluster", "up", "--foreground", "--name", "bench"]
            await children.start("cluster", up, {"EVENFLOW_HOME": str(folder)})

            async def down() -> str | None:
                children.check()
                return "no cluster" if read_state("bench", home=folder) is None else None

            await until(down, 60.0)
            state = read_state("bench", home=folder)
            assert state is not None
            command = [EVENFLOW, "operator", "--kubeconfig", str(state.kubeconfig), "--no-leader-election"]
            await children.start("operator", command)
            async with await KubeClient.connect(state.kubeconfig) as client:
                return await measure(client, engines, changes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def measure(client: KubeClient, engines: int, changes: int) -> list[float]:
    manifest = read_pool(examples_folder() / "pool.yaml")
    manifest["spec"]["replicas"] = engines
    manifest["spec"]["admission"] = {"mode": "Fixed", "unit": "Volume", "capMicro": 1_000_000}
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    watch = PoolWatch(client, namespace, name)
    watching = asyncio.create_task(watch.run())
    seconds = []
    try:
        await watch.apply(manifest)
        await watch.wait_applied(manifest, 60.0)
        async with aiohttp.ClientSession() as session:
            for number in range(changes):
                cap = 1.0 + 0.1 * (number + 1)
                began = time.monotonic()
                patch = {"spec": {"admission": {"capMicro": round(cap * 1e6)}}}
                await client.patch(f"{POOLS.format(namespace=namespace)}/{name}", patch)
                await until(partial(lacks, watch, session, cap), 30.0)
                seconds.append(time.monotonic() - began)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return seconds


async def lacks(watch: PoolWatch, session: aiohttp.ClientSession, cap: float) -> str | None:
    for pod in watch.pods:
        config = WorkerConfig.parse(pod["metadata"]["annotations"][labels.WORKER_CONFIG])
        if config.admission.per_iteration is None or abs(config.admission.per_iteration - cap) > 1e-6:
            return f"{pod['metadata']['name']}: annotation has {config.admission.per_iteration}, not {cap}"
        state = await worker_state(session, pod["status"]["podIP"])
        if state is None or state.config_hash != config.content_hash():
            return f"{pod['metadata']['name']}: engine hasn't applied it"
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args()
    found = asyncio.run(main(options.engines, options.changes))
    print(f"{len(found)} cap changes on {options.engines} engines, seconds from patch to applied on all:")
    print(f"median {statistics.median(found):.2f}  max {max(found):.2f}")
    print(json.dumps([round(value, 3) for value in found]), file=sys.stderr)
