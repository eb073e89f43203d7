"""Scheduling: which node a pod gets, why it waits, and when room becomes free."""

import secrets
from typing import Any

from suite_behaviours import behaviour
from suite_client import Client, Object, eventually, url
from suite_objects import add_node, pod, remove_now, scheduled

Labels = dict[str, str]


def node_name() -> str:
    return f"contract-{secrets.token_hex(4)}"


async def bound(api: Client, ns: str, name: str) -> Object:
    return await api.settled("pods", ns, name, lambda found: found["spec"].get("nodeName"))


async def refused(api: Client, ns: str, name: str, says: str) -> Object:
    found = await api.settled("pods", ns, name, lambda found: says in scheduled(found).get("message", ""))
    condition = scheduled(found)
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert "nodeName" not in found["spec"]
    assert found["status"]["phase"] == "Pending"
    return condition


def gpu_pod(name: str, labels: Labels, gpus: int = 1) -> Object:
    container = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return pod(name, nodeSelector=labels, container=container)


@behaviour("node-registers", "A node made without a kubelet carries the not-ready taint until somebody removes it.")
async def test_node(api: Client, node_labels: Labels) -> None:
    name = node_name()
    created = await api.create("nodes", None, {"metadata": {"name": name, "labels": node_labels}})
    taints = created["spec"]["taints"]
    assert ("node.kubernetes.io/not-ready", "NoSchedule") in [(one["key"], one["effect"]) for one in taints]


@behaviour("schedule-by-selector", "A pod is bound to a node that its nodeSelector matches; PodScheduled becomes True.")
async def test_selector(api: Client, ns: str, node_labels: Labels) -> None:
    here, other = node_name(), node_name()
    await add_node(api, other, {**node_labels, "place": "other"})
    await add_node(api, here, {**node_labels, "place": "here"})
    await api.create("pods", ns, pod("one", nodeSelector={**node_labels, "place": "here"}))
    found = await bound(api, ns, "one")
    assert found["spec"]["nodeName"] == here
    await api.settled("pods", ns, "one", lambda pod: scheduled(pod).get("status") == "True")


@behaviour(
    "schedule-no-match", "A pod that no node's labels match waits, and PodScheduled says why; a new node takes it."
)
async def test_no_match(api: Client, ns: str, node_labels: Labels) -> None:
    await add_node(api, node_name(), {**node_labels, "place": "other"})
    await api.create("pods", ns, pod("one", nodeSelector={**node_labels, "place": "here"}))
    await refused(api, ns, "one", "didn't match Pod's node affinity/selector")
    name = node_name()
    await add_node(api, name, {**node_labels, "place": "here"})
    assert (await bound(api, ns, "one"))["spec"]["nodeName"] == name


@behaviour("schedule-affinity", "Required node affinity is honoured: In, NotIn, Exists, and terms as alternatives.")
async def test_affinity(api: Client, ns: str, node_labels: Labels) -> None:
    product = "nvidia.com/gpu.product"
    right, wrong = node_name(), node_name()
    await add_node(api, wrong, {**node_labels, product: "H100"})
    await add_node(api, right, {**node_labels, product: "A100"})
    key, value = next(iter(node_labels.items()))
    mine = {"key": key, "operator": "In", "values": [value]}
    terms = [
        {"matchExpressions": [mine, {"key": product, "operator": "In", "values": ["V100"]}]},
        {"matchExpressions": [mine, {"key": product, "operator": "NotIn", "values": ["H100"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    await api.create("pods", ns, pod("one", affinity={"nodeAffinity": required}))
    assert (await bound(api, ns, "one"))["spec"]["nodeName"] == right


@behaviour("schedule-taints", "A pod stays off a tainted node unless it tolerates the taint.")
async def test_taints(api: Client, ns: str, node_labels: Labels) -> None:
    name = node_name()
    await add_node(api, name, node_labels)
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    await api.patch("nodes", None, name, {"spec": {"taints": [taint]}})
    await api.create("pods", ns, pod("plain", nodeSelector=node_labels))
    await refused(api, ns, "plain", "untolerated taint")
    exists = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    equal = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}
    for pod_name, toleration in (("exists", exists), ("equal", equal)):
        await api.create("pods", ns, pod(pod_name, nodeSelector=node_labels, tolerations=[toleration]))
        await bound(api, ns, pod_name)
    await api.patch("nodes", None, name, {"spec": {"taints": None}})
    await bound(api, ns, "plain")


@behaviour("schedule-cordon", "A cordoned node takes no pods until it is uncordoned.")
async def test_cordon(api: Client, ns: str, node_labels: Labels) -> None:
    name = node_name()
    await add_node(api, name, node_labels)
    await api.patch("nodes", None, name, {"spec": {"unschedulable": True}})
    await api.create("pods", ns, pod("one", nodeSelector=node_labels))
    await refused(api, ns, "one", "unschedulable")
    await api.patch("nodes", None, name, {"spec": {"unschedulable": None, "taints": None}})
    await bound(api, ns, "one")


@behaviour("schedule-gpus", "GPUs are counted: a pod that finds none free waits with `Insufficient nvidia.com/gpu`.")
async def test_gpus(api: Client, ns: str, node_labels: Labels) -> None:
    await add_node(api, node_name(), node_labels, **{"nvidia.com/gpu": "2"})
    await api.create("pods", ns, gpu_pod("two", node_labels, gpus=2))
    await bound(api, ns, "two")
    await api.create("pods", ns, gpu_pod("more", node_labels))
    condition = await refused(api, ns, "more", "Insufficient nvidia.com/gpu")
    assert "nodes are available" in condition["message"]


@behaviour("schedule-cpu-and-memory", "Requests for CPU and memory are counted in all their units.")
async def test_compute(api: Client, ns: str, node_labels: Labels) -> None:
    await add_node(api, node_name(), node_labels, cpu="2", memory="4Gi")

    async def add(name: str, **requests: str) -> None:
        await api.create(
            "pods", ns, pod(name, nodeSelector=node_labels, container={"resources": {"requests": requests}})
        )

    await add("fits", cpu="1500m", memory="3072Mi")
    await bound(api, ns, "fits")
    await add("too-much-cpu", cpu="600m")
    await refused(api, ns, "too-much-cpu", "Insufficient cpu")
    await add("too-much-memory", memory="2G")
    await refused(api, ns, "too-much-memory", "Insufficient memory")
    await add("rest", cpu="0.5", memory="1Gi")
    await bound(api, ns, "rest")


@behaviour(
    "terminating-pod-holds-gpus",
    "A terminating pod holds its GPUs until its object is gone; then a waiting pod is bound.",
)
async def test_terminating(api: Client, ns: str, node_labels: Labels) -> None:
    await add_node(api, node_name(), node_labels, **{"nvidia.com/gpu": "1"})
    await api.create("pods", ns, gpu_pod("old", node_labels))
    await bound(api, ns, "old")
    await api.create("pods", ns, gpu_pod("new", node_labels))
    await refused(api, ns, "new", "Insufficient nvidia.com/gpu")
    await api.delete("pods", ns, "old")
    # A pod that needs no GPU shows that the scheduler has looked since.
    await api.create("pods", ns, pod("probe", nodeSelector=node_labels))
    await bound(api, ns, "probe")
    assert "nodeName" not in (await api.get("pods", ns, "new"))["spec"]
    await remove_now(api, ns, "old")
    await bound(api, ns, "new")


@behaviour("finished-pod-frees-gpus", "A pod that has Succeeded or Failed holds no GPUs.")
async def test_finished(api: Client, ns: str, node_labels: Labels) -> None:
    await add_node(api, node_name(), node_labels, **{"nvidia.com/gpu": "1"})
    await api.create("pods", ns, gpu_pod("old", node_labels))
    await bound(api, ns, "old")
    await api.create("pods", ns, gpu_pod("new", node_labels))
    await refused(api, ns, "new", "Insufficient nvidia.com/gpu")
    await api.patch("pods", ns, "old", {"status": {"phase": "Failed"}}, sub="status")
    await bound(api, ns, "new")


@behaviour("schedule-spreads-no-overcommit", "Pods made all at once never get more GPUs of a node than it has.")
async def test_no_overcommit(api: Client, ns: str, node_labels: Labels) -> None:
    nodes = [node_name() for _ in range(2)]
    for name in nodes:
        await add_node(api, name, node_labels, **{"nvidia.com/gpu": "2"})
    for index in range(6):
        await api.create("pods", ns, gpu_pod(f"p{index}", node_labels))

    async def settled() -> bool:
        pods = await api.items("pods", ns)
        return all(found["spec"].get("nodeName") or scheduled(found) for found in pods)

    await eventually(settled, "every pod is bound or refused")
    found = [item["spec"].get("nodeName") for item in await api.items("pods", ns)]
    assert [found.count(name) for name in nodes] == [2, 2]
    assert found.count(None) == 2


@behaviour("scheduling-events", "The scheduler tells in Events what it did: Scheduled and FailedScheduling.")
async def test_events(api: Client, ns: str, node_labels: Labels) -> None:
    await add_node(api, node_name(), node_labels)
    await api.create("pods", ns, pod("one", nodeSelector=node_labels))
    await api.create("pods", ns, gpu_pod("two", node_labels))
    expected: dict[str, Any] = {"one": ("Scheduled", "Normal"), "two": ("FailedScheduling", "Warning")}
    for name, wanted in expected.items():

        async def told(name: str = name, wanted: Any = wanted) -> bool:
            selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
            events = await api.items("events", ns, fieldSelector=selector)
            return wanted in [(event["reason"], event["type"]) for event in events]

        await eventually(told, f"an event {wanted} of {name}")


@behaviour("other-schedulers-pods", "A pod with another schedulerName is left alone; pods/binding binds it, once.")
async def test_binding(api: Client, ns: str, node_labels: Labels) -> None:
    name = node_name()
    await add_node(api, name, node_labels)
    await api.create("pods", ns, pod("one", schedulerName="nobody"))
    await api.create("pods", ns, pod("probe", nodeSelector=node_labels))
    await bound(api, ns, "probe")
    assert "nodeName" not in (await api.get("pods", ns, "one"))["spec"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "one"},
        "target": {"kind": "Node", "name": name},
    }
    answer = await api.send("POST", url("pods", ns, "one", "binding"), binding)
    assert answer.status == 201
    found = await api.get("pods", ns, "one")
    assert found["spec"]["nodeName"] == name
    assert scheduled(found)["status"] == "True"
    status = await api.refused(409, "POST", url("pods", ns, "one", "binding"), binding)
    assert "already assigned" in status["message"]
