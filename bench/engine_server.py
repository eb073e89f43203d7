"""How many times faster than real time one simulated engine serves 256 running requests over HTTP.

Starts engines as processes, keeps `--concurrency` requests in flight from this process, and reads the engines' own lag:
engine seconds lost per engine second run. The answer is the highest time scale whose lag stays below `--limit`.

    .venv/bin/python bench/engine_server.py [--engines 1] [--scales 20,50,100] [--stream]
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

PROMPT = "x" * 4 * 512
OUTPUT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    busy_s: float
    lost_s: float
    iterations: float
    tokens: float


async def _metrics(session: aiohttp.ClientSession, port: int) -> dict[str, float]:
    async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
        text = await response.text()
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


async def _sample(session: aiohttp.ClientSession, ports: tuple[int, int]) -> Sample:
    engine, admin = await asyncio.gather(*(_metrics(session, port) for port in ports))
    return Sample(
        admin["evenflow_simulated_busy_seconds_total"],
        admin["evenflow_simulated_lost_seconds_total"],
        admin["evenflow_iterations_total"],
        engine["vllm:generation_tokens_total"],
    )


async def _client(session: aiohttp.ClientSession, port: int, *, stream: bool) -> None:
    body = {"prompt": PROMPT, "stream": stream, "vllm_xargs": {"simulated_output_tokens": OUTPUT_TOKENS}}
    while True:
        async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for _ in response.content.iter_any():
                pass


async def _start(scale: float, interval: int, port: int) -> asyncio.subprocess.Process:
    config = Path(tempfile.gettempdir()) / "evenflow-bench-without-config.json"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "evenflow_worker.simulated",
        "--port", str(port), "--admin-port", str(port + 1), "--time-scale", str(scale),
        "--stream-interval", str(interval), "--shutdown-timeout", "0", "--config", str(config),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _ready(session: aiohttp.ClientSession, port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            async with session.get(f"http://127.0.0.1:{port}/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            await asyncio.sleep(0.05)
    raise TimeoutError(f"no engine on port {port}")


async def measure(scale: float, options: argparse.Namespace) -> dict[str, float]:
    """Lag and rates of `options.engines` engines at one time scale, the worst engine's lag."""
    ports = [options.port + 2 * index for index in range(options.engines)]
    processes = [await _start(scale, options.stream_interval, port) for port in ports]
    connector = aiohttp.TCPConnector(limit=0)
    clients: list[asyncio.Task[None]] = []
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            for port in ports:
                await _ready(session, port)
                clients += [
                    asyncio.create_task(_client(session, port, stream=options.stream))
                    for _ in range(options.concurrency)
                ]
            await asyncio.sleep(options.warm_up)
            before = [await _sample(session, (port, port + 1)) for port in ports]
            cpu, started = [_cpu_seconds(process.pid) for process in processes], time.monotonic()
            await asyncio.sleep(options.seconds)
            after = [await _sample(session, (port, port + 1)) for port in ports]
            wall = time.monotonic() - started
            busy = sum(_cpu_seconds(process.pid) for process in processes) - sum(cpu)
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            await process.wait()
    pairs = list(zip(before, after, strict=True))
    return {
        "time_scale": scale,
        "lag_percent": round(100 * max((b.lost_s - a.lost_s) / (b.busy_s - a.busy_s) for a, b in pairs), 2),
        "times_real_time": round(min((b.busy_s - a.busy_s) for a, b in pairs) / wall, 1),
        "cpu_percent_per_engine": round(100 * busy / wall / len(ports)),
        "steps_per_s": round(sum(b.iterations - a.iterations for a, b in pairs) / wall),
        "tokens_per_s": round(sum(b.tokens - a.tokens for a, b in pairs) / wall),
    }


async def run(options: argparse.Namespace) -> None:
    best = 0.0
    for scale in options.scales:
        figures = await measure(scale, options)
        print(json.dumps(figures), flush=True)
        if figures["lag_percent"] < options.limit:
            best = max(best, scale)
    print(f"highest time scale with lag below {options.limit:g} %: {best:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", type=lambda text: [float(part) for part in text.split(",")], default=[20, 50, 100])
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=256, help="requests in flight per engine")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--stream-interval", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--limit", type=float, default=5.0, help="percent of lag")
    parser.add_argument("--port", type=int, default=18100)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
