"""Speed of the embedded API server through HTTPS, on one computer: start, creates, lists, patches, a watch.

    python bench/embedded_api.py [--pods 2000] [--concurrency 32]

The client runs in a process of its own; server and controllers share another, as in `evenflow cluster up`.
"""

import argparse
import asyncio
import base64
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import yaml

POD: dict[str, Any] = {
    "metadata": {"labels": {"app": "bench"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "image": "vllm/vllm-openai:v0.32.0",
                "ports": [{"name": "http", "containerPort": 8000}],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
            }
        ],
    },
}


async def in_parallel(count: int, concurrency: int, act: Callable[[int], Coroutine[Any, Any, None]]) -> float:
    """Seconds for `count` calls, `concurrency` at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await act(number)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - started


async def measure(config: dict[str, Any], options: argparse.Namespace) -> None:
    pods, concurrency = options.pods, options.concurrency
    cluster = config["clusters"][0]["cluster"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    url = cluster["server"] + "/api/v1/namespaces/default/pods"
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    connector = aiohttp.TCPConnector(ssl=context, limit=concurrency)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

        async def create(number: int) -> None:
            async with session.post(url, json={**POD, "metadata": {"name": f"p{number}"}}) as response:
                await response.read()
                response.raise_for_status()

        async def patch(number: int) -> None:
            body = f'{{"metadata":{{"labels":{{"n":"{number}"}}}}}}'
            kind = {"Content-Type": "application/merge-patch+json"}
            async with session.patch(f"{url}/p{number}", data=body, headers=kind) as response:
                await response.read()
                response.raise_for_status()

        seconds = await in_parallel(pods, concurrency, create)
        print(f"create   {pods} pods in {seconds:.2f} s: {pods / seconds:.0f}/s")
        started = time.perf_counter()
        async with session.get(url) as response:
            size = len(await response.read())
        seconds = time.perf_counter() - started
        print(f"list     {pods} pods ({size / 1e6:.1f} MB) in {seconds * 1000:.0f} ms")
        seconds = await in_parallel(pods, concurrency, patch)
        print(f"patch    {pods} pods in {seconds:.2f} s: {pods / seconds:.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "evenflow_devcluster.embedded", "--state-dir", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            print(server.stdout.readline().strip())
            try:
                asyncio.run(measure(yaml.safe_load(Path(folder, "kubeconfig").read_text()), options))
            finally:
                server.terminate()
    sys.exit(server.returncode)


if __name__ == "__main__":
    main()
