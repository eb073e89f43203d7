"""The Cluster port against the embedded API server: preconditions, conflicts, paging, credentials, time-outs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Stage, eventually, pools, stage

from evenflow_devcluster.embedded.faults import Fault
from evenflow_operator.adapters import cluster as adapter
from evenflow_operator.adapters import kube
from evenflow_operator.adapters.cluster import KubeCluster
from evenflow_operator.adapters.kube import KubeClient, load_configuration
from evenflow_operator.ports import ApiError


def manifest(name: str = "llama-0-x", *, slot: int = 0) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"evenflow.dev/pool": "llama", "evenflow.dev/slot": str(slot)}},
        "spec": {"containers": [{"name": "engine", "image": "i"}]},
    }


async def failing(work: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value


async def test_pods_are_created_patched_and_deleted_exactly(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        s.ready = False
        cluster = KubeCluster(s.client)
        created = await cluster.create_pod("default", manifest())
        await eventually(lambda: bool(s.pods()[0]["spec"].get("nodeName")), "the scheduler is done with it")
        record = await cluster.get_pod("default", created.name)
        assert record is not None
        pod = record.view
        assert (record.pool, pod.uid, pod.slot) == ("llama", created.uid, 0)
        twice = await failing(cluster.create_pod("default", manifest()))
        assert twice.already_exists
        assert not twice.conflict
        labels = {"evenflow.dev/serving": "true"}
        body = {"metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version, "labels": labels}}
        patched = await cluster.patch_pod("default", pod.name, body)
        assert patched.serving
        assert (await failing(cluster.patch_pod("default", pod.name, body))).conflict
        other = {"metadata": {"uid": "another", "labels": labels}}
        refused = await failing(cluster.patch_pod("default", pod.name, other))
        assert refused.status in (409, 422)
        assert (await failing(cluster.delete_pod("default", pod.name, "another", None))).conflict
        old = await failing(cluster.delete_pod("default", pod.name, pod.uid, pod.resource_version))
        assert old.conflict
        await cluster.delete_pod("default", pod.name, pod.uid, None)
        gone = await cluster.get_pod("default", pod.name)
        assert gone is None or gone.view.deleting


async def test_a_dry_run_says_what_a_create_would_and_stores_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        s.ready = False
        cluster = KubeCluster(s.client)
        await cluster.dry_run_pod("default", manifest())
        bad = manifest()
        bad["spec"]["tolerations"] = [{"operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]
        refused = await failing(cluster.dry_run_pod("default", bad))
        assert (refused.status, refused.reason) == (422, "Invalid")
        assert "spec.tolerations[0]" in refused.message
        assert s.pods() == []
        await cluster.create_pod("default", manifest())
        assert (await failing(cluster.dry_run_pod("default", manifest()))).already_exists


async def test_an_adoption_keeps_other_owners(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        s.ready = False
        cluster = KubeCluster(s.client)
        pool = await s.apply_pool()
        other = await s.request(
            "POST", "/api/v1/namespaces/default/configmaps", body={"metadata": {"name": "other"}, "kind": "ConfigMap"}
        )
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"]}
        body = manifest()
        body["metadata"]["ownerReferences"] = [owner]
        pod = await cluster.create_pod("default", body)
        assert pod.owner_uid is None
        reference = {
            "apiVersion": pool["apiVersion"],
            "kind": pool["kind"],
            "name": "llama",
            "uid": pool["metadata"]["uid"],
            "controller": True,
        }
        patch = {"metadata": {"uid": pod.uid, "ownerReferences": [reference]}}
        adopted = await cluster.patch_pod("default", pod.name, patch, strategic=True)
        assert adopted.owner_uid == pool["metadata"]["uid"]
        assert len(s.pods()[0]["metadata"]["ownerReferences"]) == 2


async def test_a_status_replaces_the_old_one_whole_and_only_of_the_very_pool(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        cluster = KubeCluster(s.client)
        uid = (await s.apply_pool())["metadata"]["uid"]
        await cluster.patch_pool_status("default", "llama", uid, {"replicas": 2, "severityMicro": 7})
        await cluster.patch_pool_status("default", "llama", uid, {"replicas": 3})
        live = await cluster.get_pool("default", "llama")
        assert live is not None
        record, status = live
        assert (record.uid, status) == (uid, {"replicas": 3})
        wrong = await failing(cluster.patch_pool_status("default", "llama", "another", {"replicas": 9}))
        assert wrong.status in (409, 422)
        missing = await failing(cluster.patch_pool_status("default", "none", uid, {"replicas": 9}))
        assert missing.not_found
        assert (await s.pool())["status"] == {"replicas": 3}


async def test_lists_are_paged_and_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PAGE", 3)
    async with stage(tmp_path) as s:
        s.ready = False
        cluster = KubeCluster(s.client)
        for slot in range(8):
            await cluster.create_pod("default", manifest(f"llama-{slot}-x", slot=slot))
        await s.request(
            "POST", "/api/v1/namespaces/default/pods", body={**manifest("stray"), "metadata": {"name": "stray"}}
        )
        assert sorted(pod.slot or 0 for pod in await cluster.list_pods("default", "llama")) == list(range(8))
        assert len(await cluster.list_records("pods", None)) == 8
        identities = await cluster.list_identities("pods", "default")
        assert {one.name for one in identities} == {f"llama-{slot}-x" for slot in range(8)}
        assert all(one.resource_version for one in identities)


async def test_the_resource_is_known_or_not(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        cluster = KubeCluster(s.client)
        assert await cluster.crd_installed()
        await s.request(
            "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/llmservingpools.serving.evenflow.dev"
        )
        assert not await cluster.crd_installed()


async def own_client(s: Stage, failures: list[tuple[str, int]]) -> KubeClient:
    client = KubeClient(s.kubeconfig, None, lambda verb, status: failures.append((verb, status)))
    await client.connect()
    return client


async def test_one_unauthorised_answer_reads_the_credentials_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        failures: list[tuple[str, int]] = []
        client = await own_client(s, failures)
        s.cluster.faults.add(Fault(resources=("services",), status=401, count=1))
        await client.request("GET", "/api/v1/namespaces/default/services")
        s.cluster.faults.add(Fault(resources=("services",), status=401))
        refused = await failing(client.request("GET", "/api/v1/namespaces/default/services"))
        await client.close()
        assert refused.status == 401
        assert failures == [("GET", 401), ("GET", 401)]


async def test_an_answer_that_does_not_come_leaves_open_whether_it_happened(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        client = await own_client(s, [])
        s.cluster.faults.add(Fault(resources=("services",), latency=30, count=1))
        late = await failing(client.request("GET", "/api/v1/namespaces/default/services", timeout=0.1))
        await client.close()
        assert (late.status, late.reason) == (0, "Timeout")
        assert not late.certain
        assert late.transient


async def test_a_server_that_is_gone_is_no_surprise(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        client = await own_client(s, [])
    gone = await failing(client.request("GET", pools("default")))
    await client.close()
    assert gone.status == 0


async def test_retry_after_is_handed_on_and_bounded(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        client = await own_client(s, [])
        s.cluster.faults.add(Fault(resources=("services",), status=429, retry_after=7, count=1))
        first = await failing(client.request("GET", "/api/v1/namespaces/default/services"))
        s.cluster.faults.add(Fault(resources=("services",), status=429, retry_after=9999, count=1))
        second = await failing(client.request("GET", "/api/v1/namespaces/default/services"))
        await client.close()
        assert (first.retry_after, second.retry_after) == (7.0, 60.0)
        assert first.certain
        assert first.transient


async def test_many_requests_refused_at_once_have_the_credentials_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading closes the connections before the last: requests under way would be cut off."""
    async with stage(tmp_path) as s:
        client = KubeClient(s.kubeconfig)
        await client.connect()
        read: list[bool] = []

        async def counted(*given: str | None) -> Any:
            read.append(True)
            return await load_configuration(*given)

        monkeypatch.setattr(kube, "load_configuration", counted)
        s.cluster.faults.add(Fault(resources=("services",), status=401, count=8))
        path = "/api/v1/namespaces/default/services"
        await asyncio.gather(*(client.request("GET", path) for _ in range(8)))
        await client.close()
        assert len(read) == 1
