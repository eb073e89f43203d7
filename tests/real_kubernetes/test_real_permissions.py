"""The permissions of docs/kubernetes.md §8 are what a pool's whole life needs: nothing is refused, nothing unused."""

import base64
import json
import os
import re
import secrets
from pathlib import Path

import pytest
import yaml
from e2e_stack import Stack, pool
from real_accounts import kubeconfig_of

from evenflow_devcluster.kube import Json

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

DOCUMENT = Path(__file__).parents[2] / "docs" / "kubernetes.md"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "evenflow-operator"

Use = tuple[str, str, str]
"""API group, resource with its subresource, verb."""


def documented(name: str) -> Json:
    """The role of this name in the documentation."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    roles = [one for block in blocks for one in yaml.safe_load_all(block)]
    (found,) = [one for one in roles if one["metadata"]["name"] == name]
    return dict(found)


POOLS_ROLE, LEASE_ROLE, TOKEN_ROLE = map(
    documented, ("evenflow-operator", "evenflow-operator-lease", "evenflow-operator-admin-token")
)
NOT_SEEN = {
    # Whoever may change finalizers may block the owner's deletion: admission asks, no request shows it.
    ("serving.evenflow.dev", "llmservingpools/finalizers", "update"),
    # A second leader or a lost answer has made the pod already: the name is taken, so it looks whose it is.
    ("", "pods", "get"),
    # An Event that comes again after 10 s is counted up.
    ("", "events", "patch"),
}


def uses(*roles: Json) -> set[Use]:
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def seen(account: str) -> tuple[set[Use], list[str]]:
    """What the account asked for, and what it was refused, by the API server's audit log."""
    used, refused = set(), []
    for line in Path(os.environ["EVENFLOW_TEST_AUDIT_LOG"]).read_text().splitlines():
        event = json.loads(line)
        reference = event.get("objectRef")
        if event["user"]["username"] != account:
            continue
        if event["annotations"].get("authorization.k8s.io/decision") == "forbid":
            refused.append(f"{event['verb']} {event['requestURI']}")
        if reference is not None and "resource" in reference:
            parts = (reference["resource"], reference.get("subresource"))
            used.add((reference.get("apiGroup", ""), "/".join(filter(None, parts)), event["verb"]))
    return used, refused


async def account(stack: Stack, folder: Path, roles: list[tuple[str, Json]], namespace: str) -> Path:
    """A kubeconfig with the token of an account that has these roles, each in its namespace ("": in the cluster)."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await stack.client.create(accounts, {"metadata": {"name": ACCOUNT}})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    for place, role in roles:
        kind, name = role["kind"], f"{ACCOUNT}-{secrets.token_hex(4)}"
        where = f"{RBAC}/namespaces/{place}" if place else RBAC
        await stack.client.create(f"{where}/{kind.lower()}s", {**role, "metadata": {"name": name}})
        binding = {
            "metadata": {"name": name},
            "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        }
        await stack.client.create(f"{where}/{kind.lower()}bindings", binding)
    return await kubeconfig_of(stack, folder, namespace, ACCOUNT)


async def live(stack: Stack, namespace: str) -> None:
    """Apply, serve, change, scale, disturb, delete: whatever the operator can be made to do."""
    token = {"metadata": {"name": "admin"}, "data": {"token": base64.b64encode(b"sesame").decode()}}
    await stack.client.create(f"/api/v1/namespaces/{namespace}/secrets", token)
    foreign = {"metadata": {"name": "tiny-mail"}, "spec": {"selector": {"app": "else"}, "ports": [{"port": 1}]}}
    await stack.client.create(f"/api/v1/namespaces/{namespace}/services", foreign)
    classes = pool(namespace, "tiny")["spec"]["trafficClasses"]
    autoscaling = {"minReplicas": 2, "maxReplicas": 3}
    await stack.create(
        pool(
            namespace,
            "tiny",
            replicas=1,
            autoscaling=autoscaling,
            trafficClasses=[*classes, {**classes[0], "name": "mail"}],
            adminTokenSecretRef={"name": "admin", "key": "token"},
        )
    )
    await stack.wait_condition(namespace, "tiny", "SpecValid", "False", "NameConflict")

    async def scaled() -> str | None:
        replicas = (await stack.get_pool(namespace, "tiny"))["spec"]["replicas"]
        return None if replicas == 2 else f"{replicas} replicas"

    await stack.until(scaled)
    await stack.wait_serving(namespace, "tiny")
    await stack.patch_spec(namespace, "tiny", {"autoscaling": None})
    await stack.patch_spec(namespace, "tiny", {"scheduling": {"policy": "FCFS"}, "trafficClasses": classes[:1]})
    await stack.wait_serving(namespace, "tiny")
    service = f"/api/v1/namespaces/{namespace}/services/tiny-chat"
    await stack.client.patch(service, {"spec": {"selector": {"app": "else"}}})

    async def services() -> str | None:
        items, _ = await stack.client.list(f"/api/v1/namespaces/{namespace}/services")
        found = {one["metadata"]["name"]: one["spec"]["selector"] for one in items}
        right = found.keys() == {"tiny", "tiny-chat", "tiny-mail"} and "app" not in found["tiny-chat"]
        return None if right else f"Services {found}"

    await stack.until(services)
    await stack.patch_spec(namespace, "tiny", {"replicas": 1})

    async def one_pod() -> str | None:
        pods = await stack.pods(namespace)
        return None if len(pods) == 1 else f"{len(pods)} pods"

    await stack.until(one_pod)
    await stack.delete_pool(namespace, "tiny")

    async def gone() -> str | None:
        pods = await stack.pods(namespace)
        return f"{len(pods)} pods left" if pods else None

    await stack.until(gone)


async def lead(stack: Stack, kubeconfig: Path, home: str, namespace: str, *arguments: str) -> None:
    """A pool's whole life in `namespace` under an operator that lives in `home`."""
    operator = await stack.start_operator(
        *("--kubeconfig", str(kubeconfig), "--leader-election", "--lease-namespace", home),
        *("--admin-token-secret", f"{namespace}/admin", *arguments),
    )
    await live(stack, namespace)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{home}/leases/evenflow-operator"
    assert (await stack.client.get(lease))["spec"]["holderIdentity"]
    await operator.stop()
    assert not (await stack.client.get(lease))["spec"].get("holderIdentity")


async def test_cluster_wide(stack: Stack, tmp_path: Path) -> None:
    home, namespace = await stack.namespace(), await stack.namespace()
    roles = [("", POOLS_ROLE), (home, LEASE_ROLE), (namespace, TOKEN_ROLE)]
    kubeconfig = await account(stack, tmp_path, roles, home)
    await lead(stack, kubeconfig, home, namespace)
    used, refused = seen(f"system:serviceaccount:{home}:{ACCOUNT}")
    granted = uses(POOLS_ROLE, LEASE_ROLE, TOKEN_ROLE)
    assert refused == []
    assert used - granted == set()
    assert granted - used <= NOT_SEEN


async def test_one_namespace(stack: Stack, tmp_path: Path) -> None:
    home, namespace = await stack.namespace(), await stack.namespace()
    rules = [rule for rule in POOLS_ROLE["rules"] if rule["resources"] != ["nodes"]]
    roles = [(namespace, {**POOLS_ROLE, "kind": "Role", "rules": rules}), (home, LEASE_ROLE), (namespace, TOKEN_ROLE)]
    kubeconfig = await account(stack, tmp_path, roles, home)
    await lead(stack, kubeconfig, home, namespace, "--namespace", namespace)
    used, refused = seen(f"system:serviceaccount:{home}:{ACCOUNT}")
    assert refused == []
    assert used <= uses(POOLS_ROLE, LEASE_ROLE, TOKEN_ROLE)
