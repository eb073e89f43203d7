"""Deletion: finalizers, preconditions, grace periods, collections, namespaces."""

from suite_behaviours import behaviour
from suite_client import MERGE, Client, eventually, url
from suite_objects import Gadgets, config_map, pod, remove_now, unique

HOLD = "contract.test/hold"


async def release(api: Client, resource: str, ns: str, name: str) -> None:
    await api.patch(resource, ns, name, {"metadata": {"finalizers": None}})


@behaviour(
    "finalizers-hold", "A deleted object with finalizers stays, marked with deletionTimestamp, until they are gone."
)
async def test_finalizers(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one", finalizers=[HOLD]))
    await api.delete("configmaps", ns, "one")
    marked = await api.get("configmaps", ns, "one")
    assert marked["metadata"]["deletionTimestamp"] >= created["metadata"]["creationTimestamp"]
    await api.delete("configmaps", ns, "one")
    again = await api.get("configmaps", ns, "one")
    assert again["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
    await release(api, "configmaps", ns, "one")
    assert not await api.exists("configmaps", ns, "one")


@behaviour("no-new-finalizers", "While an object is being deleted no finalizer can be added: 422.")
async def test_no_new_finalizers(api: Client, ns: str) -> None:
    await api.create("configmaps", ns, config_map("one", finalizers=[HOLD]))
    await api.delete("configmaps", ns, "one")
    patch = {"metadata": {"finalizers": [HOLD, "contract.test/more"]}}
    status = await api.refused(422, "PATCH", url("configmaps", ns, "one"), patch, content_type=MERGE)
    assert status["details"]["causes"][0]["field"] == "metadata.finalizers"
    await release(api, "configmaps", ns, "one")


@behaviour(
    "marked-objects-change", "An object that is being deleted can still be changed, its deletionTimestamp can't."
)
async def test_marked_objects_change(api: Client, ns: str) -> None:
    await api.create("configmaps", ns, config_map("one", finalizers=[HOLD]))
    await api.delete("configmaps", ns, "one")
    patched = await api.patch("configmaps", ns, "one", {"data": {"a": "b"}, "metadata": {"deletionTimestamp": None}})
    assert patched["data"] == {"a": "b"}
    assert patched["metadata"]["deletionTimestamp"]
    await release(api, "configmaps", ns, "one")


@behaviour("delete-marks-generation", "Marking a custom resource for deletion raises its generation.")
async def test_delete_generation(api: Client, ns: str, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, ns, gadgets.make("one", metadata={"finalizers": [HOLD]}))
    await api.delete(gadgets.resource, ns, "one")
    assert (await api.get(gadgets.resource, ns, "one"))["metadata"]["generation"] == 2
    await release(api, gadgets.resource, ns, "one")


@behaviour(
    "delete-preconditions-409", "A delete whose uid or resourceVersion precondition fails is 409 and deletes nothing."
)
async def test_preconditions(api: Client, ns: str) -> None:
    created = await api.create("configmaps", ns, config_map("one"))
    path = url("configmaps", ns, "one")
    for preconditions in ({"uid": "00000000-0000-0000-0000-000000000001"}, {"resourceVersion": "1"}):
        status = await api.refused(409, "DELETE", path, {"preconditions": preconditions})
        assert status["reason"] == "Conflict"
    metadata = created["metadata"]
    right = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    await api.delete("configmaps", ns, "one", {"preconditions": right})
    assert not await api.exists("configmaps", ns, "one")


@behaviour("unbound-pod-goes-at-once", "A pod that no node has goes at once, whatever its grace period.")
async def test_unbound_pod(api: Client, ns: str) -> None:
    await api.create("pods", ns, pod("one", schedulerName="nobody", terminationGracePeriodSeconds=60))
    await api.delete("pods", ns, "one")
    assert not await api.exists("pods", ns, "one")


@behaviour(
    "bound-pod-waits-for-its-node",
    "A pod on a node stays for its grace period; gracePeriodSeconds 0 removes it at once.",
)
async def test_bound_pod(api: Client, ns: str) -> None:
    await api.create("pods", ns, pod("one", nodeName="contract-nowhere", terminationGracePeriodSeconds=60))
    await api.delete("pods", ns, "one")
    marked = (await api.get("pods", ns, "one"))["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 60
    assert marked["deletionTimestamp"] > marked["creationTimestamp"]
    await api.delete("pods", ns, "one", {"gracePeriodSeconds": 5})
    assert (await api.get("pods", ns, "one"))["metadata"]["deletionGracePeriodSeconds"] == 5
    await api.delete("pods", ns, "one", {"gracePeriodSeconds": 50})
    assert (await api.get("pods", ns, "one"))["metadata"]["deletionGracePeriodSeconds"] == 5
    await remove_now(api, ns, "one")
    assert not await api.exists("pods", ns, "one")


@behaviour("finished-pod-goes-at-once", "A pod on a node that has Succeeded or Failed goes at once.")
async def test_finished_pod(api: Client, ns: str) -> None:
    await api.create("pods", ns, pod("one", nodeName="contract-nowhere"))
    await api.patch("pods", ns, "one", {"status": {"phase": "Failed"}}, sub="status")
    await api.delete("pods", ns, "one")
    assert not await api.exists("pods", ns, "one")


@behaviour(
    "delete-body-beats-query", "A DELETE with a body takes its options from there and ignores those of the query."
)
async def test_body_beats_query(api: Client, ns: str) -> None:
    created = await api.create("pods", ns, pod("one", nodeName="contract-nowhere"))
    body = {"preconditions": {"uid": created["metadata"]["uid"]}}
    await api.delete("pods", ns, "one", body, gracePeriodSeconds=0)
    assert (await api.get("pods", ns, "one"))["metadata"]["deletionGracePeriodSeconds"] == 30
    await api.delete("pods", ns, "one", gracePeriodSeconds=0)
    assert not await api.exists("pods", ns, "one")


@behaviour("delete-collection", "DELETE of a collection removes what its selectors match.")
async def test_collection(api: Client, ns: str) -> None:
    for name, group in (("a", "x"), ("b", "x"), ("c", "y")):
        await api.create("secrets", ns, {"metadata": {"name": name, "labels": {"group": group}}})
    await api.ok("DELETE", url("secrets", ns), labelSelector="group=x")
    assert await api.names("secrets", ns) == ["c"]


@behaviour("deleted-name-is-free", "A deleted object's name can be used again at once, for an object with another uid.")
async def test_name_free(api: Client, ns: str) -> None:
    first = await api.create("configmaps", ns, config_map("one"))
    await api.delete("configmaps", ns, "one")
    assert (await api.create("configmaps", ns, config_map("one")))["metadata"]["uid"] != first["metadata"]["uid"]


@behaviour("namespace-takes-its-contents", "Deleting a namespace removes everything in it, then the namespace.")
async def test_namespace(api: Client, gadgets: Gadgets) -> None:
    name = unique("contract")
    await api.create("namespaces", None, {"metadata": {"name": name}})
    await api.create("configmaps", name, config_map("one"))
    await api.create(gadgets.resource, name, gadgets.make("one"))
    await api.create("pods", name, pod("one", schedulerName="nobody"))
    await api.delete("namespaces", None, name)
    await api.gone("namespaces", None, name, 60)
    for resource in ("configmaps", gadgets.resource, "pods"):
        assert await api.names(resource, name) == []


@behaviour(
    "terminating-namespace-is-closed",
    "In a namespace that is going away nothing can be made: 403, NamespaceTerminating.",
)
async def test_terminating_namespace(api: Client) -> None:
    name = unique("contract")
    await api.create("namespaces", None, {"metadata": {"name": name}})
    await api.create("configmaps", name, config_map("one", finalizers=[HOLD]))
    await api.delete("namespaces", None, name)
    found = await api.get("namespaces", None, name)
    assert found["status"]["phase"] == "Terminating"
    status = await api.refused(403, "POST", url("configmaps", name), config_map("two"))
    assert (status["reason"], status["details"]["causes"][0]["reason"]) == ("Forbidden", "NamespaceTerminating")

    async def marked() -> bool:
        return "deletionTimestamp" in (await api.get("configmaps", name, "one"))["metadata"]

    await eventually(marked, "the content of the namespace is being deleted")
    await release(api, "configmaps", name, "one")
    await api.gone("namespaces", None, name, 60)


@behaviour("namespace-default-account", "A new namespace gets a service account named default.")
async def test_default_account(api: Client, ns: str) -> None:
    async def there() -> bool:
        return await api.exists("serviceaccounts", ns, "default")

    await eventually(there, "the default service account")
