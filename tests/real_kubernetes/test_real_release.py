"""A release on a real API server: what Helm installs runs, serves a pool, is upgraded under it, and goes without it.

The node agent starts the operator's own pods as processes of this computer. It mounts no service account tokens, so the
account's kubeconfig comes as a Secret; everything else is the chart's, the permissions above all.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chart_values import NAMESPACED
from e2e_stack import Stack, pool
from helm_tool import CHART, Helm, NoHelm, Refused, binary
from real_accounts import kubeconfig_of
from test_real_permissions import seen

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/llmservingpools.serving.evenflow.dev"
ACCOUNT = "evenflow-operator"
WAIT = ("--wait", "--timeout", "50s")


@pytest.fixture
def helm(kubeconfig: Path, tmp_path: Path) -> Helm:
    try:
        return Helm(binary(), tmp_path, kubeconfig)
    except NoHelm as error:
        pytest.skip(str(error))


async def run(helm: Helm, verb: str, namespace: str, *options: str, values: dict[str, Any] | None = None) -> str:
    # The definition may have come by other ways before.
    chart = () if verb == "uninstall" else (str(CHART), "--take-ownership")
    command = (verb, "evenflow", *chart, "--namespace", namespace, *options)
    return await asyncio.to_thread(helm.run, *command, values=values)


async def uids(stack: Stack, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in await stack.pods(namespace)}


async def test_it_serves_a_pool_is_upgraded_under_it_and_leaves_it_alone(
    stack: Stack, helm: Helm, tmp_path: Path
) -> None:
    home, namespace = await stack.namespace(), await stack.namespace()
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await stack.client.patch(f"/api/v1/namespaces/{home}", restricted)
    await stack.client.create(f"/api/v1/namespaces/{home}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    account = await kubeconfig_of(stack, tmp_path, home, ACCOUNT)
    secret = {"metadata": {"name": "account"}, "stringData": {"kubeconfig": account.read_text()}}
    await stack.client.create(f"/api/v1/namespaces/{home}/secrets", secret)
    values: dict[str, Any] = {
        "serviceAccount": {"create": False, "name": ACCOUNT},
        "extraEnv": [{"name": "KUBECONFIG", "value": "/etc/account/kubeconfig"}],
        "extraVolumes": [{"name": "account", "secret": {"secretName": "account"}}],
        "extraVolumeMounts": [{"name": "account", "mountPath": "/etc/account"}],
        "leaderElection": {"leaseDurationSeconds": 6, "renewDeadlineSeconds": 4, "retrySeconds": 1},
    }
    # Helm waits until both pods are ready: the leader and the standby.
    await run(helm, "install", home, *WAIT, values=values)
    definition = await stack.client.get(DEFINITION)
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    await stack.create(pool(namespace, "tiny"))
    await stack.wait_serving(namespace, "tiny")
    engines, operators = await uids(stack, namespace), await uids(stack, home)
    assert len(operators) == 2

    await run(helm, "upgrade", home, *WAIT, values={**values, "podAnnotations": {"example.org/again": "1"}})

    async def replaced() -> str | None:
        left = operators & await uids(stack, home)
        return f"{len(left)} old pods of the operator" if left else None

    await stack.until(replaced)
    await stack.patch_spec(namespace, "tiny", {"replicas": 3})
    await stack.wait_serving(namespace, "tiny")
    served = await uids(stack, namespace)
    assert engines < served, "an upgrade of the operator restarts no engine"
    assert seen(f"system:serviceaccount:{home}:{ACCOUNT}")[1] == [], "nothing was refused"

    await run(helm, "uninstall", home, *WAIT)

    async def gone() -> str | None:
        left = await uids(stack, home)
        return f"{len(left)} pods of the operator" if left else None

    await stack.until(gone)
    assert await stack.client.get(DEFINITION)
    roles, _ = await stack.client.list(f"{RBAC}/clusterroles", labelSelector="app.kubernetes.io/instance=evenflow")
    assert roles == []
    assert await uids(stack, namespace) == served, "engines serve on without an operator"


async def test_every_object_of_a_namespaced_release_is_accepted(stack: Stack, helm: Helm) -> None:
    home = await stack.namespace()
    places = [await stack.namespace(), await stack.namespace()]
    values: dict[str, Any] = {
        **NAMESPACED,
        "watchNamespaces": places,
        "adminTokenSecrets": [{"namespace": places[0], "name": "admin"}],
        "networkPolicy": {"enabled": True, "egress": [{}]},
        "metrics": {"dashboard": {"enabled": True}},
    }
    await run(helm, "install", home, values=values)
    for place in places:
        for kind in (
            "rbac.authorization.k8s.io/v1/namespaces/{}/roles",
            "networking.k8s.io/v1/namespaces/{}/networkpolicies",
        ):
            found, _ = await stack.client.list(f"/apis/{kind.format(place)}")
            assert found
    await run(helm, "uninstall", home, *WAIT)


async def test_monitors_without_the_prometheus_operator_install_nothing(stack: Stack, helm: Helm) -> None:
    home = await stack.namespace()
    with pytest.raises(Refused, match="install the Prometheus Operator"):
        await run(helm, "install", home, values={"metrics": {"podMonitor": {"enabled": True}}})
    found, _ = await stack.client.list(f"/apis/apps/v1/namespaces/{home}/deployments")
    assert found == []
