"""How pods end: in order, within their time, with all they started, and when their agent goes first."""

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from agent_kit import PATIENCE, PODS, World, alive, eventually

from evenflow_devcluster.agent import AgentSettings, NodeAgent

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


STUBBORN = textwrap.dedent("""
    import os, pathlib, signal, time
    out = pathlib.Path(os.environ["OUT"])
    def note(text):
        with out.open("a") as file:
            file.write(text + "\\n")
    def term(*_):
        note("term")
        if os.environ.get("POLITE"):
            raise SystemExit(0)
    signal.signal(signal.SIGTERM, term)
    note(f"pid {os.getpid()}")
    while True:
        time.sleep(0.05)
""")


@pytest.mark.parametrize("polite", [True, False])
async def test_the_end_is_orderly_and_bounded(world: World, tmp_path: Path, polite: bool) -> None:
    out = tmp_path / "out"
    name = await world.create(
        {
            "command": ["python", "-c", STUBBORN],
            "env": [{"name": "OUT", "value": str(out)}, {"name": "POLITE", "value": "1" if polite else ""}],
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", 'echo prestop >> "$OUT"']}}},
        }
    )
    async with asyncio.timeout(PATIENCE):
        while not out.exists() or not out.read_text().endswith("\n"):
            await asyncio.sleep(0.02)
    pid = int(out.read_text().split()[1])
    assert alive(pid)
    await world.client.delete(f"{PODS}/{name}", grace_seconds=30 if polite else 1)
    await world.gone(name)
    assert not alive(pid)
    assert out.read_text().splitlines()[1:] == ["prestop", "term"]


async def test_a_pod_takes_along_what_it_started(world: World, tmp_path: Path) -> None:
    out = tmp_path / "pid"
    command = ["sh", "-c", f"setsid sh -c 'echo $$$$ > {out}; exec sleep 1000' & exec sleep 1000"]
    name = await world.create({"command": command})

    async def written() -> bool:
        return out.exists() and out.read_text().endswith("\n")

    await eventually(written)
    pid = int(out.read_text())
    assert alive(pid)
    await world.client.delete(f"{PODS}/{name}", grace_seconds=1)
    await world.gone(name)
    assert not alive(pid)


async def test_what_an_agent_left_behind_is_ended_by_the_next(world: World, tmp_path: Path) -> None:
    left = tmp_path / "agent-0123456789abcdef"
    left.mkdir()
    process = await asyncio.create_subprocess_exec(
        "sleep", "1000", env={"EVENFLOW_NODE_AGENT": left.name}, start_new_session=True
    )
    agent = await NodeAgent.start(world.cluster.kubeconfig, {}, AgentSettings(tmp_path))
    assert await asyncio.wait_for(process.wait(), PATIENCE) == -signal.SIGKILL
    assert not left.exists()
    await agent.stop()
    assert not list(tmp_path.iterdir())


KILLED = textwrap.dedent("""
    import asyncio, pathlib, sys
    from evenflow_devcluster.local import LocalCluster
    from evenflow_devcluster.kube import KubeClient
    async def main():
        cluster = await LocalCluster.start(pathlib.Path(sys.argv[1]), nodes=1)
        async with await KubeClient.connect(cluster.kubeconfig) as client:
            path = "/api/v1/namespaces/default/pods"
            command = ["sh", "-c", "setsid sleep 1000 & sleep 1000"]
            spec = {"containers": [{"name": "c", "image": "none", "command": command}]}
            await client.create(path, {"metadata": {"name": "p"}, "spec": spec})
            while True:
                pod = await client.get(path + "/p")
                if pod["status"].get("phase") == "Running":
                    break
                await asyncio.sleep(0.02)
        print("up", flush=True)
        await asyncio.sleep(1000)
    asyncio.run(main())
""")


def marked(folder: Path) -> list[int]:
    """Processes that were started below `folder`, by their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in environment and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


async def test_an_agent_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"up\n"
    assert len(marked(tmp_path)) >= 2
    process.kill()
    await process.wait()
    async with asyncio.timeout(PATIENCE):
        while marked(tmp_path) or list((tmp_path / "agent").iterdir()):
            await asyncio.sleep(0.02)
