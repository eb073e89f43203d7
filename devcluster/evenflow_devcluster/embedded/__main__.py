"""`python -m evenflow_devcluster.embedded --state-dir DIR`: one embedded cluster until SIGTERM or Ctrl-C."""

import argparse
import asyncio
import signal
import time
from pathlib import Path

from evenflow_devcluster.embedded.cluster import EmbeddedCluster


async def serve(state_dir: Path, host: str, port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    started = time.perf_counter()
    cluster = await EmbeddedCluster.start(state_dir, host=host, port=port)
    try:
        took = (time.perf_counter() - started) * 1000
        print(f"ready at {cluster.url} after {took:.0f} ms; KUBECONFIG={cluster.kubeconfig}", flush=True)
        await stopped.wait()
    finally:
        await cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evenflow_devcluster.embedded", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True, help="where the kubeconfig is written")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    options = parser.parse_args()
    asyncio.run(serve(options.state_dir, options.host, options.port))


if __name__ == "__main__":
    main()
