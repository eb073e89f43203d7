"""Size of the operator: memory, CPU, API requests and reaction beside many pools; a real process, a cluster of fakes.

    .venv/bin/python bench/operator_scale.py [--pools 300] [--replicas 4] [--ready] [--rest 60] [--changes 20]

The embedded API server runs in this process, the operator in one of its own, with its default settings. Without
`--ready` no node exists and every pod stays pending. With it pods become ready at once, each on an address in
127.0.0.0/8 where a stub answers as an engine under even load does, and the operator scrapes them all.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from evenflow_devcluster.demo.children import Child, Children
from fakes.fleet import Fleet, fleet

EVENFLOW = str(Path(sys.executable).with_name("evenflow"))
QUIET_SECONDS = 10.0
"""Before figures of rest are taken: what follows a change is over by then."""
SAY_SECONDS = 5.0
TICKS = os.sysconf("SC_CLK_TCK")
PREFIX = "evenflow_operator_"
PASSES = "reconcile_duration_seconds_count"


@dataclass(frozen=True, slots=True)
class Usage:
    """What the operator has used by now: CPU in seconds, memory in MiB, requests to the API server, passes."""

    at: float
    cpu: float
    rss: float
    peak: float
    requests: int
    passes: float


def row(what: str, start: Usage, end: Usage, per: float | None = None) -> None:
    """A line of the table; `per`: CPU, requests and passes in this many seconds."""
    share = 1.0 if per is None else per / (end.at - start.at)
    cpu, requests = (end.cpu - start.cpu) * share, (end.requests - start.requests) * share
    passes = (end.passes - start.passes) * share
    print(f"{what:40}{end.rss:8.0f}{end.peak:8.0f}{cpu:10.2f}{requests:10.0f}{passes:8.0f}", flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    """One operator process beside the fleet."""

    def __init__(self, options: argparse.Namespace, stock: Fleet, process: Child, port: int) -> None:
        self._options = options
        self._stock = stock
        self.process = process
        self._url = f"http://127.0.0.1:{port}"

    async def ready(self) -> None:
        deadline = time.monotonic() + self._options.limit
        while await self._get("/readyz") is None:
            self._check("the operator isn't ready", deadline)
            await asyncio.sleep(0.1)

    async def rest(self, what: str) -> None:
        say(f"{what}: measuring for {self._options.rest:g} s")
        await asyncio.sleep(QUIET_SECONDS)
        start = await self.usage()
        await asyncio.sleep(self._options.rest)
        row(f"{what}: per minute", start, await self.usage(), 60.0)

    async def settle(self) -> None:
        """Make all pools, and wait until each one's status says what its spec asks for."""
        start, stock = await self.usage(), self._stock
        for number in range(self._options.pools):
            stock.create(number)
            await asyncio.sleep(0)
        await self._until("new pools", lambda: not stock.unsettled, lambda: f"{len(stock.unsettled)} pools")
        end = await self.usage()
        row(f"made: settled after {end.at - start.at:.1f} s", start, end)

    async def change_caps(self) -> list[float]:
        """Seconds from each new cap in a spec until all of its pods, and their engines, have it."""
        seconds = []
        for turn in range(self._options.changes):
            number, cap = turn * 7919 % self._options.pools, round(1.1 + 0.001 * turn, 3)
            began = time.monotonic()
            self._stock.set_cap(number, cap)
            await self._until("cap", functools.partial(self._stock.has_cap, number, cap), f"pool {number}".__str__)
            seconds.append(time.monotonic() - began)
        return seconds

    async def seen_all(self, start: Usage) -> None:
        """Wait until a new operator has had a look at every pool."""
        deadline = time.monotonic() + self._options.limit
        while (end := await self.usage()).passes < self._stock.pools:
            self._check(f"{end.passes:g} looks at {self._stock.pools} pools", deadline)
            await asyncio.sleep(0.2)
        row(f"started again: all seen after {end.at - start.at:.1f} s", start, end)

    async def usage(self) -> Usage:
        self.process.check()
        page = await self._get("/metrics") or ""
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(PREFIX + PASSES))
        passes = sum(float(value) for _, value in lines)
        cpu, rss, peak = _process(self.process.process.pid)
        return Usage(time.monotonic(), cpu, rss, peak, self._stock.requests, passes)

    async def _get(self, path: str) -> str | None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
                session.get(self._url + path) as answer,
            ):
                return await answer.text() if answer.status == 200 else None
        return None

    async def _until(self, what: str, done: Callable[[], bool], left: Callable[[], str]) -> None:
        """Wait for the store to show it; says from time to time what is `left`."""
        deadline, said = time.monotonic() + self._options.limit, time.monotonic()
        while not done():
            self._check(f"{what}: left {left()}", deadline)
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                say(f"{what}: left {left()}")
            self._stock.changed.clear()
            with contextlib.suppress(TimeoutError):
                # A push to an engine shows in no write.
                await asyncio.wait_for(self._stock.changed.wait(), 0.01)

    def _check(self, what: str, deadline: float) -> None:
        self.process.check()
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{what}, after {self._options.limit:g} s; the operator's log ends:\n{self.process.tail()}"
            )


def _process(pid: int) -> tuple[float, float, float]:
    """CPU in seconds, resident memory and its peak in MiB."""
    folder = Path("/proc", str(pid))
    after_name = (folder / "stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    rss, peak = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return (int(after_name[11]) + int(after_name[12])) / TICKS, rss, peak


async def start(options: argparse.Namespace, stock: Fleet, children: Children) -> Bench:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kubeconfig = str(stock.cluster.kubeconfig)
    command = [EVENFLOW, "operator", "--kubeconfig", kubeconfig, "--metrics-port", str(port)]
    return Bench(options, stock, await children.start("operator", command), port)


async def measure(options: argparse.Namespace, stock: Fleet, children: Children) -> None:
    what = "ready" if options.ready else "pending"
    print(f"{options.pools} pools, {options.pools * options.replicas} pods, all {what}")
    print(f"{'':40}{'RSS MiB':>8}{'peak':>8}{'CPU s':>10}{'requests':>10}{'passes':>8}", flush=True)
    bench = await start(options, stock, children)
    await bench.ready()
    await bench.rest("no pools")
    await bench.settle()
    await bench.rest("all settled")
    seconds = await bench.change_caps()
    await bench.process.stop()
    bench = await start(options, stock, children)
    await bench.seen_all(await bench.usage())
    await bench.rest("started again")
    where = "its engines have" if options.ready else "its pods' annotations have"
    print(f"from a new cap in a pool's spec until all {where} it: ", end="")
    print(f"median {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s of {len(seconds)}")


async def main(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="evenflow-bench-"))
    try:
        cluster = fleet(folder / "cluster", options.pools, options.replicas, ready=options.ready)
        async with cluster as stock, Children(folder) as children:
            await measure(options, stock, children)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pools", type=int, default=300)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--ready", action="store_true", help="pods become ready, stubs answer for their engines")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds per measurement at rest (%(default)g)")
    parser.add_argument("--changes", type=int, default=20, help="new caps to time (%(default)s)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one phase may take (%(default)g)")
    asyncio.run(main(parser.parse_args()))
