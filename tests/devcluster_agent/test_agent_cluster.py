"""Pods as real processes on the embedded cluster: start, settings, probes, restarts, ends, lost nodes."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from evenflow_devcluster.agent import AgentSettings, NodeAgent, NodeShape
from evenflow_devcluster.agent.node import UNREACHABLE
from evenflow_devcluster.kube import KubeClient, KubeError
from evenflow_devcluster.local import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

Json = dict[str, Any]
PATIENCE = 20.0

SERVER = textwrap.dedent("""
    import http.server, os, pathlib, sys
    root = pathlib.Path(os.environ.get("ROOT", "."))
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_GET(self):
            name = self.path.strip("/")
            if name == "crash":
                os._exit(3)
            if name == "pid":
                data, status = str(os.getpid()).encode(), 200
            elif name.startswith("env/"):
                data, status = os.environ.get(name[4:], "").encode(), 200
            else:
                file = root / name
                status = 200 if file.exists() else 503
                data = file.read_bytes() if file.is_file() else b"-"
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        def log_message(self, *args):
            pass
    print("listening on", os.environ["IP"], flush=True)
    http.server.ThreadingHTTPServer((os.environ["IP"], 8000), Handler).serve_forever()
""")
IP = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@dataclass
class World:
    cluster: LocalCluster
    client: KubeClient
    serial: int = 0

    def name(self) -> str:
        self.serial += 1
        return f"pod-{self.serial}"

    async def create(self, container: Json, **spec: Any) -> str:
        name = spec.pop("name", None) or self.name()
        metadata = {"name": name, "labels": {"app": name}, "annotations": spec.pop("annotations", {})}
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [{"name": "engine", "image": "none", **container}], **spec},
        }
        await self.client.create(PODS, document)
        return name

    async def get(self, name: str) -> Json:
        return await self.client.get(f"{PODS}/{name}")

    async def until(self, name: str, wanted: Callable[[Json], bool]) -> Json:
        pod: Json = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while not wanted(pod := await self.get(name)):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"never came true; last status: {pod.get('status')}") from None
        return pod

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.exists(name):
                await asyncio.sleep(0.02)

    async def exists(self, name: str) -> bool:
        try:
            await self.get(name)
        except KubeError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def event(self, name: str, reason: str, words: str) -> None:
        """Wait for an event about the pod with this reason and these words."""
        found: list[str] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while not any(text.startswith(reason) and words in text for text in found):
                    await asyncio.sleep(0.02)
                    items, _ = await self.client.list("/api/v1/namespaces/default/events")
                    mine = [item for item in items if item["involvedObject"]["name"] == name]
                    found = [f"{item['reason']} {item['message']}" for item in mine]
        except TimeoutError:
            raise AssertionError(f"no event {reason} with {words!r}; there are {found}") from None

    async def remove(self, name: str) -> None:
        await self.client.delete(f"{PODS}/{name}", grace_seconds=0)
        await self.gone(name)


PODS = "/api/v1/namespaces/default/pods"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = await LocalCluster.start(
        folder, settings=lambda path: AgentSettings(path, crash_backoff=0.2, crash_backoff_limit=0.4)
    )
    async with await KubeClient.connect(cluster.kubeconfig) as client:
        yield World(cluster, client)
    await cluster.stop()
    assert not list((folder / "agent").iterdir())


def server(**more: Any) -> Json:
    return {
        "readinessProbe": {"httpGet": {"port": "http", "path": "/pid"}, "periodSeconds": 1},
        "command": ["python", "-c", SERVER],
        "ports": [{"name": "http", "containerPort": 8000}],
        **more,
        "env": [IP, *more.get("env", [])],
    }


def condition(pod: Json, kind: str) -> Json:
    found = [item for item in pod.get("status", {}).get("conditions") or [] if item["type"] == kind]
    return found[0] if found else {"status": "absent"}


def is_ready(pod: Json) -> bool:
    return bool(condition(pod, "Ready")["status"] == "True")


def engine(pod: Json) -> Json:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


def http() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE))


async def fetch(pod: Json, path: str) -> str:
    async with http() as session, session.get(f"http://{pod['status']['podIP']}:8000/{path}") as answer:
        return await answer.text()


async def eventually(question: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await question():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_nodes_offer_gpus_and_have_no_taint(world: World) -> None:
    nodes, _ = await world.client.list("/api/v1/nodes")
    assert len(nodes) == 2
    for node in nodes:
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert not node["spec"].get("taints")
        assert condition(node, "Ready")["status"] == "True"


async def test_a_pod_sees_its_settings_and_follows_its_annotation(world: World) -> None:
    await world.client.create(
        "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "cm"}, "data": {"greeting": "hello"}}
    )
    field = {"fieldPath": "metadata.annotations['evenflow.dev/worker-config']"}
    name = await world.create(
        server(
            env=[
                {"name": "ROOT", "value": "/etc/evenflow"},
                {"name": "SHARE", "value": "/share/from-init"},
                {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "greeting"}}},
                {"name": "TEXT", "value": "$(GREETING), $(NAME)"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            volumeMounts=[{"name": "config", "mountPath": "/etc/evenflow"}, {"name": "share", "mountPath": "/share"}],
            readinessProbe={"httpGet": {"port": "http", "path": "/config.json"}, "periodSeconds": 1},
            resources={"limits": {"nvidia.com/gpu": "1"}},
        ),
        annotations={"evenflow.dev/worker-config": "one"},
        volumes=[
            {"name": "config", "downwardAPI": {"items": [{"path": "config.json", "fieldRef": field}]}},
            {"name": "share", "emptyDir": {}},
        ],
        initContainers=[
            {
                "name": "first",
                "image": "none",
                "command": ["sh", "-c", 'echo made > "$1"', "sh", "/share/from-init"],
                "volumeMounts": [{"name": "share", "mountPath": "/share"}],
            }
        ],
    )
    pod = await world.until(name, is_ready)
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"].startswith("127.77.")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert await fetch(pod, "config.json") == "one"
    assert await fetch(pod, "env/TEXT") == "hello, $(NAME)"
    assert await fetch(pod, "env/NODE") == pod["spec"]["nodeName"]
    assert await fetch(pod, "env/KUBECONFIG") == ""
    assert Path(await fetch(pod, "env/SHARE")).read_text() == "made\n"

    body = {"metadata": {"annotations": {"evenflow.dev/worker-config": "two"}}}
    await world.client.patch(f"{PODS}/{name}", body)

    async def updated() -> bool:
        return await fetch(pod, "config.json") == "two"

    await eventually(updated)
    await world.remove(name)


async def test_readiness_follows_the_probe_and_reaches_the_router(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    name = await world.create(
        server(
            env=[{"name": "ROOT", "value": str(tmp_path)}],
            readinessProbe={"httpGet": {"port": "http", "path": "/ready"}, "periodSeconds": 1, "failureThreshold": 1},
        )
    )
    service = await world.client.create(
        "/api/v1/namespaces/default/services",
        {"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 8000}]}},
    )
    url = f"http://{service['spec']['clusterIP']}:8000/env/HOSTNAME"
    await world.event(name, "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
    pod = await world.get(name)
    assert not is_ready(pod)
    assert pod["status"]["phase"] == "Running"
    flag.touch()
    await world.until(name, is_ready)
    async with http() as session, session.get(url) as answer:
        assert (answer.status, await answer.text()) == (200, name)
    flag.unlink()
    await world.until(name, lambda pod: not is_ready(pod))
    await world.remove(name)


async def test_a_crash_is_counted_and_the_container_restarts_in_place(world: World) -> None:
    name = await world.create(server())
    pod = await world.until(name, is_ready)
    with pytest.raises(aiohttp.ClientError):
        await fetch(pod, "crash")
    again = await world.until(name, lambda pod: engine(pod).get("restartCount") == 1 and is_ready(pod))
    assert engine(again)["lastState"]["terminated"]["exitCode"] == 3
    assert again["status"]["podIP"] == pod["status"]["podIP"]
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    await world.remove(name)


async def test_a_program_that_always_fails_backs_off(world: World) -> None:
    name = await world.create({"command": ["sh", "-c", "echo oh no; exit 7"]})
    pod = await world.until(
        name, lambda pod: engine(pod).get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    assert engine(pod)["lastState"]["terminated"] | {"startedAt": "", "finishedAt": ""} == {
        "exitCode": 7,
        "reason": "Error",
        "startedAt": "",
        "finishedAt": "",
    }
    assert pod["status"]["phase"] == "Running"
    await world.event(name, "BackOff", "restarting failed container engine")
    await world.remove(name)


async def test_failed_liveness_restarts_the_container(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "alive"
    flag.touch()
    probe = {"httpGet": {"port": 8000, "path": "/alive"}, "periodSeconds": 1, "failureThreshold": 1}
    name = await world.create(
        server(
            env=[{"name": "ROOT", "value": str(tmp_path)}],
            startupProbe={**probe, "failureThreshold": 30},
            livenessProbe=probe,
        ),
        terminationGracePeriodSeconds=1,
    )
    await world.until(name, is_ready)
    flag.unlink()
    await world.until(name, lambda pod: engine(pod).get("restartCount", 0) >= 1)
    await world.event(name, "Killing", "failed liveness probe")
    await world.remove(name)


async def test_jobs_end_as_their_policy_says(world: World) -> None:
    good = await world.create({"command": ["true"]}, restartPolicy="Never")
    bad = await world.create({"command": ["false"]}, restartPolicy="Never")
    await world.until(good, lambda pod: pod["status"].get("phase") == "Succeeded")
    pod = await world.until(bad, lambda pod: pod["status"].get("phase") == "Failed")
    assert engine(pod)["state"]["terminated"]["exitCode"] == 1
    for name in (good, bad):
        await world.remove(name)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"args": ["--x"]}, "doesn't run images"),
        ({"command": ["no-such-program"]}, "executable file not found"),
        ({"command": ["true"], "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
         "env[X].secretKeyRef"),
        ({"command": ["true"], "livenessProbe": {"grpc": {"port": 1}}}, "livenessProbe"),
    ],
)  # fmt: skip
async def test_what_cannot_run_says_why(world: World, container: Json, words: str) -> None:
    name = await world.create(container)
    await world.event(name, "Failed", words)
    assert not is_ready(await world.get(name))
    await world.remove(name)


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


async def test_logs_and_the_log_before_them(world: World) -> None:
    name = await world.create(
        {"command": ["sh", "-c", "echo run on $HOSTNAME; sleep 0.2; exit 1"]}, terminationGracePeriodSeconds=0
    )
    await world.until(name, lambda pod: engine(pod).get("restartCount", 0) >= 1)
    pod = await world.get(name)
    node = await world.client.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"http://127.0.0.1:{port}/containerLogs/default/{name}/engine"
    async with http() as session:
        async with session.get(url, params={"previous": "true"}) as answer:
            assert await answer.text() == f"run on {name}\n"
        async with session.get(url, params={"follow": "true"}) as answer:
            assert (await answer.text()).endswith(f"run on {name}\n")
        async with session.get(url, params={"tailLines": "x"}) as answer:
            assert answer.status == 400
        async with session.get(url.replace("engine", "other")) as answer:
            assert answer.status == 404
    await world.remove(name)


@pytest.mark.parametrize("leave_running", [False, True])
async def test_a_lost_node_is_silent_and_comes_back(world: World, leave_running: bool) -> None:
    agent = world.cluster.agent
    assert agent is not None
    tolerations = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]
    name = await world.create(server(), tolerations=tolerations)
    pod = await world.until(name, is_ready)
    pid = int(await fetch(pod, "pid"))
    node = pod["spec"]["nodeName"]
    await agent.lose_node(node, leave_running=leave_running)
    assert alive(pid) == leave_running
    lost = await world.client.get(f"/api/v1/nodes/{node}")
    assert condition(lost, "Ready")["status"] == "Unknown"
    assert {taint["key"] for taint in lost["spec"]["taints"]} == {UNREACHABLE}
    pod = await world.until(name, lambda pod: bool(pod["metadata"].get("deletionTimestamp")))
    assert not is_ready(pod)
    assert alive(pid) == leave_running
    await agent.return_node(node)
    assert not alive(pid)
    await world.gone(name)
    back = await world.client.get(f"/api/v1/nodes/{node}")
    assert condition(back, "Ready")["status"] == "True"
    assert not back["spec"].get("taints")


async def test_dropped_watches_do_no_harm(world: World) -> None:
    name = await world.create(server())
    pod = await world.until(name, is_ready)
    pid = int(await fetch(pod, "pid"))
    world.cluster.server.faults.drop_watches()
    other = await world.create(server())
    await world.until(other, is_ready)
    assert alive(pid)
    for one in (name, other):
        await world.remove(one)

    async def ended() -> bool:
        return not alive(pid)

    await eventually(ended)


async def test_an_agent_that_starts_again_restarts_its_pods_under_their_addresses(world: World) -> None:
    name = await world.create(server())
    pod = await world.until(name, is_ready)
    pid = int(await fetch(pod, "pid"))
    old = world.cluster.agent
    assert old is not None
    await old.stop()
    assert not alive(pid)
    shapes = {node: NodeShape() for node in ("a100-0", "a100-1")}
    folder = world.cluster.kubeconfig.parent / "agent"
    world.cluster.agent = await NodeAgent.start(world.cluster.kubeconfig, shapes, AgentSettings(folder))
    again = await world.until(name, lambda pod: engine(pod).get("restartCount") == 1 and is_ready(pod))
    assert again["status"]["podIP"] == pod["status"]["podIP"]
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert int(await fetch(again, "pid")) != pid
    await world.remove(name)


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
