"""The embedded EndpointSlice controller on the real store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controllers_fixture import Object, World, add_node, pod, running, world

SLICES = "endpointslices.discovery.k8s.io"
# Nobody plays the node's kubelet: without a grace period its pods go at once.
ON_NODE = {"nodeName": "n1", "terminationGracePeriodSeconds": 0}


@asynccontextmanager
async def with_node() -> AsyncIterator[World]:
    async with world() as cluster:
        await add_node(cluster, "n1")
        yield cluster


def service(name: str = "web", **spec: object) -> Object:
    ports = [{"name": "http", "port": 80, "targetPort": 8000}]
    return {"metadata": {"name": name}, "spec": {"selector": {"app": "x"}, "ports": ports, **spec}}


async def add_pod(cluster: World, name: str, address: str, *, ready: bool = True, **spec: object) -> None:
    await cluster.create("pods", pod(name, {"app": "x"}, **{**ON_NODE, **spec}))
    await cluster.status("pods", name, running(address, ready=ready))


def slices(cluster: World) -> list[Object]:
    return cluster.api.list(SLICES, "default")


async def test_nothing_is_written_when_nothing_changes() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service())
        await add_pod(cluster, "a", "10.0.0.1")
        version = cluster.server.store.version
        cluster.api.merge_patch("pods", "default", "a", {"metadata": {"annotations": {"note": "1"}}})
        await cluster.settle()
        assert cluster.server.store.version == version + 1


async def test_one_write_for_many_pods() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service())
        for index in range(5):
            cluster.api.create("pods", "default", pod(f"p{index}", {"app": "x"}, **ON_NODE))
            status = running(f"10.0.0.{index}")
            cluster.api.merge_patch("pods", "default", f"p{index}", {"status": status}, subresource="status")
        await cluster.settle()
        [piece] = slices(cluster)
        assert len(piece["endpoints"]) == 5
        assert piece["metadata"]["generation"] == 2


async def test_pods_with_other_numbers_for_a_named_port_get_a_slice_of_their_own() -> None:
    async with with_node() as cluster:
        ports = [{"name": "http", "port": 80, "targetPort": "web"}]
        await cluster.create("services", service(ports=ports))
        for name, number in (("a", 8000), ("b", 8000), ("c", 9000)):
            named = {"ports": [{"name": "web", "containerPort": number}]}
            await add_pod(cluster, name, f"10.0.0.{number % 7}", container=named)
        await add_pod(cluster, "d", "10.0.0.9")
        found = {
            tuple(port["port"] for port in piece.get("ports") or []): [
                e["targetRef"]["name"] for e in piece["endpoints"]
            ]
            for piece in slices(cluster)
        }
        assert found == {(8000,): ["a", "b"], (9000,): ["c"], (): ["d"]}
        await cluster.delete("pods", "c")
        assert len(slices(cluster)) == 2


async def test_publish_not_ready_addresses() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service(publishNotReadyAddresses=True, clusterIP="None"))
        await add_pod(cluster, "a", "10.0.0.1", ready=False)
        [piece] = slices(cluster)
        assert piece["endpoints"][0]["conditions"] == {"ready": True, "serving": False, "terminating": False}
        assert piece["metadata"]["labels"]["service.kubernetes.io/headless"] == ""


async def test_a_service_without_a_selector_has_no_slices_of_ours() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service(selector=None))
        await add_pod(cluster, "a", "10.0.0.1")
        assert slices(cluster) == []


async def test_a_slice_that_somebody_spoils_or_deletes_is_restored() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service())
        await add_pod(cluster, "a", "10.0.0.1")
        name = slices(cluster)[0]["metadata"]["name"]
        cluster.api.merge_patch(SLICES, "default", name, {"endpoints": []})
        await cluster.settle()
        assert len(slices(cluster)[0]["endpoints"]) == 1
        await cluster.delete(SLICES, name)
        assert len(slices(cluster)[0]["endpoints"]) == 1


async def test_somebody_elses_slice_is_not_touched() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service())
        labels = {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "me"}
        body = {"metadata": {"name": "mine", "labels": labels}, "addressType": "IPv4", "endpoints": []}
        mine = await cluster.create(SLICES, body)
        await add_pod(cluster, "a", "10.0.0.1")
        assert cluster.found(SLICES, "mine") == mine


async def test_a_service_made_again_gets_slices_of_its_own() -> None:
    async with with_node() as cluster:
        await add_pod(cluster, "a", "10.0.0.1")
        first = await cluster.create("services", service())
        cluster.api.delete("services", "default", "web")
        second = cluster.api.create("services", "default", service())
        await cluster.settle()
        owners = {piece["metadata"]["ownerReferences"][0]["uid"] for piece in slices(cluster)}
        assert first["metadata"]["uid"] not in owners
        assert owners == {second["metadata"]["uid"]}


async def test_namespaces_are_apart() -> None:
    async with with_node() as cluster:
        await cluster.create("namespaces", {"metadata": {"name": "other"}}, None)
        await cluster.create("services", service())
        await cluster.create("pods", pod("a", {"app": "x"}, **ON_NODE), "other")
        await cluster.status("pods", "a", running("10.0.0.1"), "other")
        assert not slices(cluster)[0].get("endpoints")


async def test_an_empty_slice_stays_when_the_last_pod_goes() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service())
        await add_pod(cluster, "a", "10.0.0.1")
        before = slices(cluster)
        await cluster.delete("pods", "a")
        [after] = slices(cluster)
        assert after["metadata"]["uid"] == before[0]["metadata"]["uid"]
        assert not after.get("endpoints")


async def test_slices_hold_100_endpoints_and_an_endpoint_stays_where_it_is() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service())
        for index in range(230):
            body = pod(f"p{index:03}", {"app": "x"}, **ON_NODE)
            cluster.api.create("pods", "default", body)
            status = running(f"10.0.{index // 200}.{index % 200}")
            cluster.api.merge_patch("pods", "default", f"p{index:03}", {"status": status}, subresource="status")
        await cluster.settle()
        assert sorted(len(piece["endpoints"]) for piece in slices(cluster)) == [30, 100, 100]
        versions = {piece["metadata"]["name"]: piece["metadata"]["resourceVersion"] for piece in slices(cluster)}
        await cluster.delete("pods", "p000")
        await add_pod(cluster, "new", "10.0.9.9")
        after = slices(cluster)
        changed = [
            piece for piece in after if piece["metadata"]["resourceVersion"] != versions[piece["metadata"]["name"]]
        ]
        assert len(changed) == 1
        names = [endpoint["targetRef"]["name"] for piece in after for endpoint in piece["endpoints"]]
        assert len(names) == len(set(names)) == 230
        cluster.api.merge_patch("services", "default", "web", {"spec": {"selector": {"app": "none"}}})
        await cluster.settle()
        assert [piece.get("endpoints") for piece in slices(cluster)] == [[]]


async def test_pods_leave_with_their_node_and_come_back_with_it() -> None:
    async with with_node() as cluster:
        await cluster.create("services", service())
        await add_pod(cluster, "a", "10.0.0.1")
        assert len(slices(cluster)[0]["endpoints"]) == 1
        cluster.api.delete("nodes", None, "n1")
        await cluster.settle()
        assert not slices(cluster)[0]["endpoints"]
        await add_node(cluster, "n1")
        assert len(slices(cluster)[0]["endpoints"]) == 1
