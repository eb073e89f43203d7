"""Deployments and ReplicaSets, as far as installing an operator needs them; RBAC objects and NetworkPolicies."""

from typing import Any

import pytest
from suite_behaviours import behaviour
from suite_client import APPLY, DISCOVERY_PATIENCE, Client, Object, eventually, url
from suite_objects import remove_now, run_pod

DEPLOYMENTS = "deployments.apps"
SETS = "replicasets.apps"
BUDGETS = "poddisruptionbudgets.policy"
RBAC = "rbac.authorization.k8s.io"
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"


def template(image: str = "example.com/none:1", labels: dict[str, str] | None = None, **spec: Any) -> Object:
    # A node that no agent and no scheduler knows: the tests say what runs.
    container = {"name": "main", "image": image}
    inner = {"nodeName": "contract-nowhere", "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    return {"metadata": {"labels": labels or {"app": "x"}}, "spec": inner}


def deployment(replicas: int = 2, **spec: Any) -> Object:
    wanted = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template(), **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": wanted}


def rolling(surge: int, unavailable: int) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


async def living(api: Client, ns: str) -> list[Object]:
    return [pod for pod in await api.items("pods", ns) if not pod["metadata"].get("deletionTimestamp")]


def shown(found: Object) -> tuple[int, int, int, int]:
    status = found.get("status", {})
    fields = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    replicas, updated, ready, available = (status.get(field, 0) for field in fields)
    return replicas, updated, ready, available


async def settled(api: Client, ns: str, *counts: int) -> Object:
    """Wait until the Deployment has seen its spec and counts (replicas, updated, ready, available)."""

    def right(found: Object) -> bool:
        seen = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        return seen and shown(found) == counts

    return await api.settled(DEPLOYMENTS, ns, "web", right)


async def run(api: Client, ns: str, wanted: int) -> list[Object]:
    """Wait for so many pods and have them run."""

    async def there() -> bool:
        return len(await living(api, ns)) == wanted

    await eventually(there, f"{wanted} pods")
    pods = await living(api, ns)
    for index, pod in enumerate(pods):
        if not pod.get("status", {}).get("podIP"):
            await run_pod(api, ns, pod["metadata"]["name"], f"10.203.{len(pods)}.{index + 1}")
    return pods


def owned_by(found: Object, kind: str, parent: Object) -> bool:
    (reference,) = found["metadata"]["ownerReferences"]
    wanted = {"kind": kind, "name": parent["metadata"]["name"], "uid": parent["metadata"]["uid"]}
    return reference == {**wanted, "apiVersion": "apps/v1", "controller": True, "blockOwnerDeletion": True}


async def sets(api: Client, ns: str) -> dict[str, Object]:
    """By revision."""
    return {one["metadata"]["annotations"][REVISION]: one for one in await api.items(SETS, ns)}


@behaviour("deployment-defaults", "A Deployment gets one replica, a rolling update of 25 % and its pod's defaults.")
async def test_defaults(api: Client, ns: str) -> None:
    body = deployment()
    del body["spec"]["replicas"]
    spec = (await api.create(DEPLOYMENTS, ns, body, dryRun="All"))["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    assert (spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (10, 600)
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    assert spec["template"]["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


@behaviour("deployment-validation", "A selector that misses its own template, or any wrong pod, is 422 and named.")
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"template": template(labels={"app": "y"})}, "spec.template.metadata.labels"),
        ({"selector": {}}, "spec.selector"),
        ({"template": template(restartPolicy="Never")}, "spec.template.spec.restartPolicy"),
        ({"template": template(containers=[])}, "spec.template.spec.containers"),
        ({"replicas": -1}, "spec.replicas"),
    ],
)
async def test_validation(api: Client, ns: str, spec: Object, field: str) -> None:
    status = await api.refused(422, "POST", url(DEPLOYMENTS, ns), deployment(**{"replicas": 1, **spec}), dryRun="All")
    assert field in [cause["field"] for cause in status["details"]["causes"]]


@behaviour("deployment-selector-fixed", "The selector of a Deployment never changes.")
async def test_selector_is_immutable(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(0))
    labels = {"app": "x", "tier": "y"}
    body = {"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}}
    path = url(DEPLOYMENTS, ns, "web")
    status = await api.refused(422, "PATCH", path, body, content_type="application/merge-patch+json")
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec.selector"]


@behaviour(
    "deployment-pods",
    "A Deployment makes a ReplicaSet with a hash of its template, and that the pods; readiness is counted upwards.",
)
async def test_pods(api: Client, ns: str) -> None:
    made = await api.create(DEPLOYMENTS, ns, deployment(2))
    pods = await run(api, ns, 2)
    found = await settled(api, ns, 2, 2, 2, 2)
    (one,) = await api.items(SETS, ns)
    label = one["metadata"]["labels"][HASH]
    assert one["metadata"]["name"] == f"web-{label}"
    assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
    assert one["spec"]["selector"]["matchLabels"] == {"app": "x", HASH: label}
    assert owned_by(one, "Deployment", made)
    for pod in pods:
        assert pod["metadata"]["name"].startswith(f"web-{label}-")
        assert pod["metadata"]["labels"] == {"app": "x", HASH: label}
        assert owned_by(pod, "ReplicaSet", one)
    conditions = {one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]}
    assert conditions == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    assert found["metadata"]["annotations"][REVISION] == "1"


@behaviour("deployment-unavailable", "A Deployment without enough ready pods says so.")
async def test_unavailable(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(2))
    found = await settled(api, ns, 2, 2, 0, 0)
    conditions = {one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]}
    assert conditions["Available"] == ("False", "MinimumReplicasUnavailable")
    assert found["status"]["unavailableReplicas"] == 2


@behaviour("deployment-scale", "/scale of a Deployment reads and writes replicas, with its selector as text.")
async def test_scale(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(1))
    await run(api, ns, 1)
    await settled(api, ns, 1, 1, 1, 1)
    path = url(DEPLOYMENTS, ns, "web", "scale")
    scale = await api.ok("GET", path)
    assert scale["spec"] == {"replicas": 1}
    assert scale["status"] == {"replicas": 1, "selector": "app=x"}
    await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"replicas": 3}}, sub="scale")
    await run(api, ns, 3)
    await settled(api, ns, 3, 3, 3, 3)
    await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"replicas": 0}}, sub="scale")
    await settled(api, ns, 0, 0, 0, 0)


@behaviour("replicaset-replaces", "A pod of a ReplicaSet that is deleted or has failed is replaced.")
async def test_replaced(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(2))
    first, second = await run(api, ns, 2)
    await remove_now(api, ns, first["metadata"]["name"])
    failed = {"status": {"phase": "Failed"}}
    await api.patch("pods", ns, second["metadata"]["name"], failed, sub="status")
    old = {first["metadata"]["uid"], second["metadata"]["uid"]}

    async def anew() -> bool:
        pods = {pod["metadata"]["uid"] for pod in await living(api, ns) if pod["status"]["phase"] != "Failed"}
        return len(pods) == 2 and not pods & old

    await eventually(anew, "two new pods")


@behaviour("replicaset-fewer", "A ReplicaSet that shrinks deletes pods that aren't ready before those that are.")
async def test_the_ready_stay(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(3))
    pods = await run(api, ns, 3)
    lame = pods[1]["metadata"]["name"]
    await run_pod(api, ns, lame, "10.203.3.2", ready=False)
    await settled(api, ns, 3, 3, 2, 2)
    await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"replicas": 2}})
    await settled(api, ns, 2, 2, 2, 2)
    assert lame not in [pod["metadata"]["name"] for pod in await living(api, ns)]


@behaviour(
    "deployment-rollout",
    "A new template gets a ReplicaSet of the next revision; with maxUnavailable 0 no old pod goes before it.",
)
async def test_rollout(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(2, strategy=rolling(1, 0)))
    old = {pod["metadata"]["uid"] for pod in await run(api, ns, 2)}
    await settled(api, ns, 2, 2, 2, 2)
    await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"template": template("example.com/none:2")}})
    # One more than wanted, and none of the old ones gone: the new one isn't ready.
    await settled(api, ns, 3, 1, 2, 2)
    assert old <= {pod["metadata"]["uid"] for pod in await living(api, ns)}
    await run(api, ns, 3)
    await settled(api, ns, 3, 2, 2, 2)
    await run(api, ns, 3)
    found = await settled(api, ns, 2, 2, 2, 2)
    assert not old & {pod["metadata"]["uid"] for pod in await living(api, ns)}
    assert found["metadata"]["annotations"][REVISION] == "2"
    assert {revision: one["spec"]["replicas"] for revision, one in (await sets(api, ns)).items()} == {"1": 0, "2": 2}


@behaviour("deployment-rollout-unavailable", "With maxSurge 0 an old pod goes first.")
async def test_rollout_without_surge(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(2, strategy=rolling(0, 1)))
    await run(api, ns, 2)
    await settled(api, ns, 2, 2, 2, 2)
    await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"template": template("example.com/none:2")}})
    await settled(api, ns, 2, 1, 1, 1)
    await run(api, ns, 2)
    await settled(api, ns, 2, 2, 1, 1)
    await run(api, ns, 2)
    await settled(api, ns, 2, 2, 2, 2)


@behaviour("deployment-rollback", "An earlier template gets its ReplicaSet back, as the newest revision.")
async def test_rollback(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(1))
    await run(api, ns, 1)
    await settled(api, ns, 1, 1, 1, 1)
    first = (await sets(api, ns))["1"]["metadata"]["uid"]
    for image in ("example.com/none:2", "example.com/none:1"):
        await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"template": template(image)}})
        await settled(api, ns, 2, 1, 1, 1)
        await run(api, ns, 2)
        await settled(api, ns, 1, 1, 1, 1)
    found = await sets(api, ns)
    assert found.keys() == {"2", "3"}
    assert found["3"]["metadata"]["uid"] == first


@behaviour("deployment-history", "ReplicaSets without pods are kept up to revisionHistoryLimit.")
async def test_history(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(0, revisionHistoryLimit=1))
    for tag in (2, 3):
        await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"template": template(f"example.com/none:{tag}")}})

        async def there(revision: str = str(tag)) -> bool:
            return revision in await sets(api, ns)

        await eventually(there, f"revision {tag}")

    async def one_old() -> bool:
        return (await sets(api, ns)).keys() == {"2", "3"}

    await eventually(one_old, "the oldest ReplicaSet is gone")


@behaviour("deployment-deleted", "With a Deployment go its ReplicaSets and their pods.")
async def test_deleted(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(2))
    await run(api, ns, 2)
    await settled(api, ns, 2, 2, 2, 2)
    await api.delete(DEPLOYMENTS, ns, "web")

    async def gone() -> bool:
        return not await api.items(SETS, ns) and not await living(api, ns)

    await eventually(gone, "ReplicaSet and pods are gone", DISCOVERY_PATIENCE)


@behaviour("deployment-applied", "Server-side apply owns what it says; replicas that it leaves out stay another's.")
async def test_applied(api: Client, ns: str) -> None:
    body = deployment(0)
    del body["spec"]["replicas"]
    await api.patch(DEPLOYMENTS, ns, "web", body, kind=APPLY, fieldManager="chart")
    await api.patch(DEPLOYMENTS, ns, "web", {"spec": {"replicas": 3}}, sub="scale")
    body["metadata"]["labels"] = {"again": "1"}
    found = await api.patch(DEPLOYMENTS, ns, "web", body, kind=APPLY, fieldManager="chart")
    assert found["spec"]["replicas"] == 3


@behaviour("budget-of-a-deployment", "A budget expects as many pods as the Deployment above their ReplicaSet wants.")
async def test_budget(api: Client, ns: str) -> None:
    await api.create(DEPLOYMENTS, ns, deployment(3))
    await run(api, ns, 3)
    spec = {"selector": {"matchLabels": {"app": "x"}}, "maxUnavailable": 1}
    await api.create(BUDGETS, ns, {"metadata": {"name": "budget"}, "spec": spec})

    def right(budget: Object) -> bool:
        status = budget.get("status", {})
        return (status.get("expectedPods"), status.get("disruptionsAllowed")) == (3, 1)

    await api.settled(BUDGETS, ns, "budget", right)


@behaviour("rbac-bindings", "A binding's roleRef never changes, and users and groups get their API group.")
async def test_bindings(api: Client, ns: str) -> None:
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "some:role"}}
    await api.create(
        f"roles.{RBAC}", ns, {**role, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
    )
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "some:role"},
        "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": ns}, {"kind": "User", "name": "b"}],
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "some:role"},
    }
    made = await api.create(f"rolebindings.{RBAC}", ns, binding)
    assert made["subjects"][0] == binding["subjects"][0]
    assert made["subjects"][1] == {"apiGroup": RBAC, "kind": "User", "name": "b"}
    other = {"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "other"}}
    path = url(f"rolebindings.{RBAC}", ns, "some:role")
    status = await api.refused(422, "PATCH", path, other, content_type="application/merge-patch+json")
    assert status["details"]["causes"][0]["field"] == "roleRef"


@behaviour(
    "network-policy-defaults",
    "A NetworkPolicy is about ingress, and about egress if it has egress rules; ports are TCP.",
)
async def test_network_policy(api: Client, ns: str) -> None:
    kind = "networkpolicies.networking.k8s.io"
    body = {"metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}}
    made = await api.create(kind, ns, body)
    assert made["spec"]["policyTypes"] == ["Ingress"]
    assert made["spec"]["ingress"] == [{"ports": [{"port": 80, "protocol": "TCP"}]}]
    body = {"metadata": {"name": "b"}, "spec": {"podSelector": {}, "egress": [{}]}}
    assert (await api.create(kind, ns, body))["spec"]["policyTypes"] == ["Ingress", "Egress"]
