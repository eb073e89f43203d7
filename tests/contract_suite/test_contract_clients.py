"""What client libraries build on: leases, Events, and list-then-watch of kubernetes.aio."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client, config, dynamic, watch
from suite_behaviours import behaviour
from suite_client import Client, url
from suite_objects import Gadgets

LEASES = "leases.coordination.k8s.io"


@pytest.fixture
async def library(kubeconfig: Path) -> AsyncIterator[Any]:
    settings = client.Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
    async with client.ApiClient(settings) as opened:
        yield opened


@behaviour("lease-election", "Leases elect: of two holders that write at the same resourceVersion one gets 409.")
async def test_lease(api: Client, ns: str) -> None:
    spec = {
        "holderIdentity": "anna",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.123456Z",
        "leaseTransitions": 0,
    }
    created = await api.create(LEASES, ns, {"metadata": {"name": "leader"}, "spec": spec})
    assert created["spec"] == spec
    await api.refused(409, "POST", url(LEASES, ns), {"metadata": {"name": "leader"}, "spec": spec})
    renewed = {**created, "spec": {**spec, "holderIdentity": "ben"}}
    path = url(LEASES, ns, "leader")
    answers = await asyncio.gather(
        *(api.send("PUT", path, renewed | {"spec": {**spec, "holderIdentity": who}}) for who in "ab")
    )
    assert sorted(answer.status for answer in answers) == [200, 409]


@behaviour("lease-put-needs-version", "A Lease is replaced only with a resourceVersion.")
async def test_lease_version(api: Client, ns: str) -> None:
    await api.create(LEASES, ns, {"metadata": {"name": "leader"}, "spec": {}})
    await api.refused(422, "PUT", url(LEASES, ns, "leader"), {"metadata": {"name": "leader"}, "spec": {}})


@behaviour("events-update", "An Event's count can be patched, and Events are selected by what they are about.")
async def test_events(api: Client, ns: str) -> None:
    involved = {"kind": "Pod", "name": "one", "namespace": ns, "uid": "u1"}
    event = {
        "metadata": {"name": "one.1"},
        "involvedObject": involved,
        "reason": "Started",
        "type": "Normal",
        "count": 1,
    }
    await api.create("events", ns, event)
    await api.create("events", ns, {**event, "metadata": {"name": "one.2"}, "reason": "Killing", "type": "Warning"})
    patched = await api.patch("events", ns, "one.1", {"count": 2})
    assert patched["count"] == 2
    for selector, names in (
        ("involvedObject.name=one,reason=Started", ["one.1"]),
        ("type=Warning", ["one.2"]),
        ("involvedObject.uid=u1", ["one.1", "one.2"]),
    ):
        assert await api.names("events", ns, fieldSelector=selector) == names


@behaviour("events-in-their-namespace", "An Event stands in the namespace of the object that it is about: else 422.")
async def test_event_namespace(api: Client, ns: str) -> None:
    involved = {"kind": "Pod", "name": "one", "namespace": "elsewhere"}
    await api.refused(422, "POST", url("events", ns), {"metadata": {"name": "one.1"}, "involvedObject": involved})


@behaviour("library-typed", "kubernetes.aio creates, lists, patches and deletes typed objects and reads errors.")
async def test_typed(library: Any, ns: str) -> None:
    core = client.CoreV1Api(library)
    await core.create_namespaced_config_map(ns, client.V1ConfigMap(metadata={"name": "one"}, data={"a": "1"}))
    assert (await core.read_namespaced_config_map("one", ns)).data == {"a": "1"}
    patched = await core.patch_namespaced_config_map(
        "one", ns, {"data": {"b": "2"}}, _content_type="application/merge-patch+json"
    )
    assert patched.data == {"a": "1", "b": "2"}
    await core.delete_namespaced_config_map("one", ns)
    with pytest.raises(client.ApiException) as refused:
        await core.read_namespaced_config_map("one", ns)
    assert refused.value.status == 404


@behaviour("library-watch", "kubernetes.aio's Watch follows a list and resumes by itself after each timeout.")
async def test_watch(library: Any, api: Client, ns: str) -> None:
    core = client.CoreV1Api(library)
    listed = await core.list_namespaced_secret(ns)
    seen = []

    async def follow() -> None:
        async with watch.Watch() as stream:
            arguments = {"resource_version": listed.metadata.resource_version, "timeout_seconds": 20}
            async for event in stream.stream(core.list_namespaced_secret, ns, **arguments):
                seen.append((event["type"], event["object"].metadata.name))
                if len(seen) == 3:
                    return

    following = asyncio.create_task(follow())
    for name in ("one", "two"):
        await api.create("secrets", ns, {"metadata": {"name": name}})
    await api.delete("secrets", ns, "one")
    async with asyncio.timeout(20):
        await following
    assert seen == [("ADDED", "one"), ("ADDED", "two"), ("DELETED", "one")]


@behaviour("library-dynamic", "kubernetes.aio's dynamic client discovers a custom kind and applies it server-side.")
async def test_dynamic(library: Any, gadgets: Gadgets, ns: str) -> None:
    opened = await dynamic.DynamicClient(library)
    resource = await opened.resources.get(api_version=gadgets.api_version, kind="Gadget")
    body = gadgets.make("one", {"size": 3})
    applied = await resource.server_side_apply(body=body, name="one", namespace=ns, field_manager="suite")
    assert applied.spec.size == 3
