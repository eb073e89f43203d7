"""Services and the EndpointSlices that follow their pods."""

import asyncio
from collections.abc import Callable

import pytest
from suite_behaviours import behaviour
from suite_client import MERGE, PATIENCE, Client, Object, eventually, url
from suite_objects import add_node, pod, remove_now, run_pod, service, unique

SLICES = "endpointslices.discovery.k8s.io"
NODE = unique("contract")
Endpoints = dict[str, tuple[str, bool, bool, bool]]


@pytest.fixture(autouse=True)
async def node(api: Client, node_labels: dict[str, str]) -> None:
    await add_node(api, NODE, node_labels)


async def endpoints(api: Client, ns: str, name: str) -> Endpoints:
    """Pod name -> address, ready, serving, terminating, over all slices of a service."""
    found: Endpoints = {}
    for piece in await api.items(SLICES, ns, labelSelector=f"kubernetes.io/service-name={name}"):
        for endpoint in piece.get("endpoints") or []:
            is_ = endpoint["conditions"]
            values = (is_["ready"], is_["serving"], is_["terminating"])
            found[endpoint["targetRef"]["name"]] = (endpoint["addresses"][0], *values)
    return found


async def become(api: Client, ns: str, name: str, wanted: Endpoints | Callable[[Endpoints], bool]) -> None:
    last: Endpoints = {}

    async def check() -> bool:
        nonlocal last
        last = await endpoints(api, ns, name)
        return wanted(last) if callable(wanted) else last == wanted

    await eventually(check, lambda: f"endpoints of {name}: {wanted}, last {last}", PATIENCE)


async def add_pod(
    api: Client, ns: str, name: str, address: str, labels: dict[str, str], *, ready: bool = True, node: str = NODE
) -> None:
    body = pod(name, labels, nodeName=node, container={"ports": [{"name": "web", "containerPort": 8080}]})
    await api.create("pods", ns, body)
    await run_pod(api, ns, name, address, ready=ready)


@behaviour(
    "service-address", "Each Service gets an address of its own, and defaults: ClusterIP, TCP, targetPort = port."
)
async def test_address(api: Client, ns: str) -> None:
    created = [await api.create("services", ns, service(name, {"app": "x"})) for name in ("one", "two")]
    spec = created[0]["spec"]
    assert spec["type"] == "ClusterIP"
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert spec["clusterIP"] != created[1]["spec"]["clusterIP"]
    assert (spec["ports"][0]["protocol"], spec["ports"][0]["targetPort"]) == ("TCP", 8000)
    assert spec["sessionAffinity"] == "None"


@behaviour(
    "service-address-immutable", "A Service's address can't be changed (422) and survives a PUT that leaves it out."
)
async def test_address_immutable(api: Client, ns: str) -> None:
    created = await api.create("services", ns, service("one", {"app": "x"}))
    changed = {"spec": {"clusterIP": created["spec"]["clusterIP"] + "1", "clusterIPs": None}}
    await api.refused(422, "PATCH", url("services", ns, "one"), changed, content_type=MERGE)
    without = service("one", {"app": "y"})
    without["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"]
    put = await api.ok("PUT", url("services", ns, "one"), without)
    assert put["spec"]["clusterIP"] == created["spec"]["clusterIP"]


@behaviour("service-headless", "A Service with clusterIP None has no address and still has endpoints.")
async def test_headless(api: Client, ns: str) -> None:
    created = await api.create("services", ns, service("one", {"app": "x"}, clusterIP="None"))
    assert created["spec"]["clusterIP"] == "None"
    await add_pod(api, ns, "a", "10.201.0.1", {"app": "x"})
    await become(api, ns, "one", {"a": ("10.201.0.1", True, True, False)})


@behaviour(
    "service-checked",
    "A Service with a bad name, no ports or two ports without names is 422; a name may begin with a digit.",
)
async def test_checked(api: Client, ns: str) -> None:
    path = url("services", ns)
    await api.refused(422, "POST", path, service("Not_Valid", {}))
    assert (await api.send("POST", path, service("1st", {}))).status == 201
    await api.refused(422, "POST", path, service("one", {}, ports=[]))
    await api.refused(422, "POST", path, service("one", {}, ports=[{"port": 1}, {"port": 2}]))
    await api.refused(422, "POST", path, service("one", {}, ports=[{"port": 70000}]))


@behaviour(
    "slices-follow-selector",
    "A Service's slices list the pods with an address that its selector matches, and no other.",
)
async def test_selector(api: Client, ns: str) -> None:
    await add_pod(api, ns, "a", "10.201.0.1", {"app": "x", "class.contract.test/chat": "true"})
    await add_pod(api, ns, "b", "10.201.0.2", {"app": "x"})
    await api.create("pods", ns, pod("no-address", {"app": "x"}, schedulerName="nobody"))
    await api.create("services", ns, service("all", {"app": "x"}))
    await api.create("services", ns, service("chat", {"app": "x", "class.contract.test/chat": "true"}))
    both = {"a": ("10.201.0.1", True, True, False), "b": ("10.201.0.2", True, True, False)}
    await become(api, ns, "all", both)
    await become(api, ns, "chat", {"a": both["a"]})


@behaviour("slices-need-the-node", "A pod on a node that doesn't exist is no endpoint.")
async def test_unknown_node(api: Client, ns: str) -> None:
    await add_pod(api, ns, "lost", "10.201.0.1", {"app": "x"}, node="contract-nowhere")
    await add_pod(api, ns, "a", "10.201.0.2", {"app": "x"})
    await api.create("services", ns, service("one", {"app": "x"}))
    await become(api, ns, "one", {"a": ("10.201.0.2", True, True, False)})


@behaviour(
    "slices-follow-readiness", "A pod that isn't ready stays in the slices, marked ready: false and serving: false."
)
async def test_readiness(api: Client, ns: str) -> None:
    await api.create("services", ns, service("one", {"app": "x"}))
    await add_pod(api, ns, "a", "10.201.0.1", {"app": "x"}, ready=False)
    await become(api, ns, "one", {"a": ("10.201.0.1", False, False, False)})
    await run_pod(api, ns, "a", "10.201.0.1", ready=True)
    await become(api, ns, "one", {"a": ("10.201.0.1", True, True, False)})


@behaviour("slices-follow-labels", "A relabelled pod leaves one Service's slices and enters another's.")
async def test_relabel(api: Client, ns: str) -> None:
    for name in ("x", "y"):
        await api.create("services", ns, service(name, {"app": name}))
    await add_pod(api, ns, "a", "10.201.0.1", {"app": "x"})
    await become(api, ns, "x", {"a": ("10.201.0.1", True, True, False)})
    await api.patch("pods", ns, "a", {"metadata": {"labels": {"app": "y"}}})
    await asyncio.gather(become(api, ns, "x", {}), become(api, ns, "y", {"a": ("10.201.0.1", True, True, False)}))


@behaviour("slices-follow-spec", "A changed selector or port of a Service changes its slices.")
async def test_spec_change(api: Client, ns: str) -> None:
    await api.create("services", ns, service("one", {"app": "x"}))
    for name, address in (("x", "10.201.0.1"), ("y", "10.201.0.2")):
        await add_pod(api, ns, name, address, {"app": name})
    await become(api, ns, "one", lambda found: list(found) == ["x"])
    patch = {"spec": {"selector": {"app": "y"}, "ports": [{"name": "http", "port": 80, "targetPort": 9090}]}}
    await api.patch("services", ns, "one", patch)
    await become(api, ns, "one", lambda found: list(found) == ["y"])

    async def on_new_port() -> bool:
        pieces = await api.items(SLICES, ns, labelSelector="kubernetes.io/service-name=one")
        return [port["port"] for piece in pieces for port in piece.get("ports") or []] == [9090]

    await eventually(on_new_port, "the slices have the new port")


@behaviour(
    "slices-show-terminating",
    "A deleted pod that still runs shows as terminating: serving, but not ready; then it leaves.",
)
async def test_terminating(api: Client, ns: str) -> None:
    await api.create("services", ns, service("one", {"app": "x"}))
    await add_pod(api, ns, "a", "10.201.0.1", {"app": "x"})
    await become(api, ns, "one", {"a": ("10.201.0.1", True, True, False)})
    await api.delete("pods", ns, "a")
    await become(api, ns, "one", {"a": ("10.201.0.1", False, True, True)})
    await remove_now(api, ns, "a")
    await become(api, ns, "one", {})


@behaviour("slices-drop-finished", "A pod that has failed or succeeded is no endpoint.")
async def test_finished(api: Client, ns: str) -> None:
    await api.create("services", ns, service("one", {"app": "x"}))
    await add_pod(api, ns, "a", "10.201.0.1", {"app": "x"})
    await become(api, ns, "one", lambda found: list(found) == ["a"])
    await api.patch("pods", ns, "a", {"status": {"phase": "Failed"}}, sub="status")
    await become(api, ns, "one", {})


@behaviour("slices-named-ports", "A named targetPort is resolved in each pod.")
async def test_named_port(api: Client, ns: str) -> None:
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    await api.create("services", ns, service("one", {"app": "x"}, ports=ports))
    for name, address, number in (("a", "10.201.0.1", 8080), ("b", "10.201.0.2", 9090)):
        container = {"ports": [{"name": "web", "containerPort": number}]}
        await api.create("pods", ns, pod(name, {"app": "x"}, nodeName=NODE, container=container))
        await run_pod(api, ns, name, address)

    async def resolved() -> bool:
        found: dict[str, int] = {}
        for piece in await api.items(SLICES, ns, labelSelector="kubernetes.io/service-name=one"):
            for endpoint in piece.get("endpoints") or []:
                found[endpoint["targetRef"]["name"]] = piece["ports"][0]["port"]
        return found == {"a": 8080, "b": 9090}

    await eventually(resolved, "each pod's own port number")


@behaviour("slices-belong-to-service", "Slices carry the Service's name and labels, are owned by it and go with it.")
async def test_ownership(api: Client, ns: str) -> None:
    body = service("one", {"app": "x"})
    body["metadata"]["labels"] = {"team": "blue"}
    created = await api.create("services", ns, body)
    pieces: list[Object] = []

    async def made() -> bool:
        nonlocal pieces
        pieces = await api.items(SLICES, ns, labelSelector="kubernetes.io/service-name=one")
        return bool(pieces)

    await eventually(made, "a slice")
    metadata = pieces[0]["metadata"]
    assert metadata["labels"]["team"] == "blue"
    assert metadata["labels"]["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io"
    assert metadata["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
    await api.delete("services", ns, "one")
    await api.gone(SLICES, ns, metadata["name"])
