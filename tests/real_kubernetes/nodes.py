"""Nodes and a router for an API server that has none: `python tests/real_kubernetes/nodes.py KUBECONFIG FOLDER`.

Installs the pool's definition as it is committed, prints `ready` and runs until SIGTERM. Pods and Services have
addresses of 10.77.0.0/16 and 10.78.0.0/16, which must be local (run.sh sees to it): a real API server takes no loopback
address as an endpoint.
"""

import asyncio
import signal
import sys
from pathlib import Path

import yaml

from evenflow_devcluster.agent import AgentSettings, NodeAgent, NodeShape
from evenflow_devcluster.kube import KubeClient, KubeError
from evenflow_devcluster.local import NODE_PREFIX
from evenflow_devcluster.router import Router

DEFINITION = Path(__file__).parents[2] / "crds" / "serving.evenflow.dev_llmservingpools.yaml"
POD_NETWORK = "10.77"
NODES = 2


async def main(kubeconfig: Path, folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await KubeClient.connect(kubeconfig) as client:
        try:
            await client.create(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(DEFINITION.read_text())
            )
        except KubeError as error:
            if error.status != 409:
                raise
    router = await Router.start(kubeconfig)
    names = {f"{NODE_PREFIX}{number}": NodeShape() for number in range(NODES)}
    agent = await NodeAgent.start(kubeconfig, names, AgentSettings(folder, pod_network=POD_NETWORK))
    try:
        print("ready", flush=True)
        await stop.wait()
    finally:
        await agent.stop()
        await router.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
