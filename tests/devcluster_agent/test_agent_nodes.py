"""Nodes: what they offer, and their pods when a node is lost, watches drop or the agent starts again."""

import pytest
from agent_kit import World, alive, condition, engine, eventually, fetch, is_ready, server

from evenflow_devcluster.agent import AgentSettings, NodeAgent, NodeShape
from evenflow_devcluster.agent.node import UNREACHABLE

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


async def test_nodes_offer_gpus_and_have_no_taint(world: World) -> None:
    nodes, _ = await world.client.list("/api/v1/nodes")
    assert len(nodes) == 2
    for node in nodes:
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert not node["spec"].get("taints")
        assert condition(node, "Ready")["status"] == "True"


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
