"""The node agent: plays the kubelet of one or more nodes on this computer, against any API server."""

import asyncio
import contextlib
import logging
import os
import random
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from aiohttp import web

from evenflow_devcluster.agent import guard
from evenflow_devcluster.agent.events import EventRecorder
from evenflow_devcluster.agent.node import AgentNode
from evenflow_devcluster.agent.pod_worker import PodTools, PodWorker
from evenflow_devcluster.agent.server import build_app
from evenflow_devcluster.agent.settings import AgentSettings, NodeShape
from evenflow_devcluster.embedded.http.tls import make_certificates, server_context
from evenflow_devcluster.kube import KubeClient

_MARKER_NAME = "EVENFLOW_NODE_AGENT"
_START_SECONDS = 30.0

log = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _marker(folder: Path) -> str:
    """What stands in the environment of every process of the agent that works in `folder`, so that none is missed."""
    return f"{_MARKER_NAME}={folder.name}"


def _take_over(base: Path) -> Path:
    """A fresh folder below `base`, after ending all that earlier agents left in theirs.

    Fresh, because the guard of an agent that was just killed may still be at work, and must not touch ours.
    """
    base.mkdir(parents=True, exist_ok=True)
    for old in base.glob("agent-*"):
        left = guard.kill_marked(_marker(old))
        if left:
            log.warning("killed %d processes that an earlier node agent left", left)
        shutil.rmtree(old, ignore_errors=True)
    folder = base / f"agent-{secrets.token_hex(16)}"
    folder.mkdir(mode=0o700)
    return folder


def start_guard(marker: str, *paths: Path) -> subprocess.Popen[bytes]:
    """A process that outlives this one just long enough to end all processes with `marker` and remove `paths`.

    Close its stdin, or die, and it acts (agent/guard.py). Its environment is empty, so that it carries no marker of
    another guard above this process: that one must not end this guard before it has done its work.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, marker, *map(str, paths)],
        env={},
        stdin=subprocess.PIPE,
        start_new_session=True,
        close_fds=True,
    )


class NodeAgent:
    """Start with `await NodeAgent.start(…)`, end with `stop`. If its process is killed, a guard ends its children."""

    def __init__(self, tools: PodTools, warden: subprocess.Popen[bytes]) -> None:
        self._tools = tools
        self._guard = warden
        self._nodes: dict[str, AgentNode] = {}
        self._shapes: dict[str, NodeShape] = {}
        self._runner: web.AppRunner | None = None
        self._events: asyncio.Task[None] | None = None
        self.port = 0

    @classmethod
    async def start(
        cls,
        kubeconfig: Path | str,
        nodes: Mapping[str, NodeShape],
        settings: AgentSettings,
        *,
        now: Callable[[], datetime] = _utc_now,
        rng: random.Random | None = None,
    ) -> "NodeAgent":
        """Register the nodes and begin to run their pods. Raises KubeError or OSError if that fails.

        What an earlier agent with the same folder left running is killed first: its pods start anew, each
        container with one more restart on its count. So a folder serves one agent at a time.
        """
        settings = replace(settings, folder=await asyncio.to_thread(_take_over, settings.folder))
        marker = _marker(settings.folder)
        client = await KubeClient.connect(kubeconfig)
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        events = EventRecorder(client, now, asyncio.get_running_loop().time, component="evenflow-node-agent")
        tools = PodTools(client, settings, session, events, now, rng or random.Random(), set(), marker)
        agent = cls(tools, start_guard(marker, settings.folder))
        try:
            await agent._serve()
            agent._events = asyncio.create_task(events.run())
            for name, shape in nodes.items():
                await agent.add_node(name, shape)
        except BaseException:
            await agent.stop()
            raise
        return agent

    async def _serve(self) -> None:
        app = build_app(self.find, self._tools.now)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await self._runner.setup()
        settings = self._tools.settings
        # A real API server speaks TLS to kubelets, and by default believes any certificate.
        context = server_context(make_certificates(settings.host_ip), settings.folder)
        site = web.TCPSite(self._runner, settings.host_ip, 0, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def find(self, namespace: str, name: str) -> PodWorker | None:
        for node in self._nodes.values():
            for worker in node.workers.values():
                meta = worker.pod["metadata"]
                if meta["name"] == name and meta["namespace"] == namespace:
                    return worker
        return None

    async def add_node(self, name: str, shape: NodeShape) -> None:
        """Register one more node, or bring a lost one back: what it ran is killed, and its pods start anew or end."""
        node = AgentNode(name, shape, self._tools, port=self.port)
        await node.register()
        node.start()
        self._nodes[name] = node
        self._shapes[name] = shape
        assert node.informer is not None
        await asyncio.wait_for(node.informer.synced.wait(), _START_SECONDS)

    async def lose_node(self, name: str, *, leave_running: bool = False) -> None:
        """Test hook: play a node that is cut off, its processes dead or, with `leave_running`, alive behind the cut."""
        await self._nodes[name].lose(leave_running=leave_running)

    async def return_node(self, name: str) -> None:
        """Test hook: the lost node is back, rebooted."""
        await self._nodes[name].stop()
        await self.add_node(name, self._shapes[name])

    async def stop(self) -> None:
        """Kill every process of every pod and stop; Node and Pod objects stay as they are."""
        await asyncio.gather(*(node.stop() for node in self._nodes.values()))
        if self._events is not None:
            self._events.cancel()
            await asyncio.gather(self._events, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._tools.session.close()
        await self._tools.client.close()
        with contextlib.suppress(BrokenPipeError):
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        try:
            await asyncio.to_thread(self._guard.wait, 5)
        except subprocess.TimeoutExpired:
            os.kill(self._guard.pid, 9)
            await asyncio.to_thread(self._guard.wait)
