"""A Helm release on a real API server: as tests/end_to_end has it on the embedded one, with the chart's permissions.

The node agent starts the operator's own pods as processes of this computer. It mounts no service account tokens, so the
account's kubeconfig comes as a Secret; everything else is the chart's, the permissions above all.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_values import NAMESPACED
from e2e_stack import Stack
from helm_tool import CHART, Helm, NoHelm, Refused, binary
from real_accounts import kubeconfig_of
from release_kit import DEFINITION, QUICK_LEASE, WAIT, leave, live, run
from test_real_permissions import seen

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

ACCOUNT = "evenflow-operator"


@pytest.fixture
def helm(kubeconfig: Path, tmp_path: Path) -> Helm:
    try:
        return Helm(binary(), tmp_path, kubeconfig)
    except NoHelm as error:
        pytest.skip(str(error))


async def test_its_pods_run_restricted_and_nothing_is_refused(stack: Stack, helm: Helm, tmp_path: Path) -> None:
    home, namespace = await stack.namespace(), await stack.namespace()
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await stack.client.patch(f"/api/v1/namespaces/{home}", restricted)
    await stack.client.create(f"/api/v1/namespaces/{home}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    account = await kubeconfig_of(stack, tmp_path, home, ACCOUNT)
    secret = {"metadata": {"name": "account"}, "stringData": {"kubeconfig": account.read_text()}}
    await stack.client.create(f"/api/v1/namespaces/{home}/secrets", secret)
    values: dict[str, Any] = {
        **QUICK_LEASE,
        "serviceAccount": {"create": False, "name": ACCOUNT},
        "extraEnv": [{"name": "KUBECONFIG", "value": "/etc/account/kubeconfig"}],
        "extraVolumes": [{"name": "account", "secret": {"secretName": "account"}}],
        "extraVolumeMounts": [{"name": "account", "mountPath": "/etc/account"}],
    }
    await live(stack, helm, home, namespace, values)
    assert seen(f"system:serviceaccount:{home}:{ACCOUNT}")[1] == [], "nothing was refused"
    await leave(stack, helm, home, namespace)


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


async def test_a_definition_from_elsewhere_is_adopted_and_goes_with_the_releases_versions(
    stack: Stack, helm: Helm, tmp_path: Path
) -> None:
    home = await stack.namespace()
    words = "Engine pods wanted"
    found = await stack.client.get(DEFINITION)
    older = yaml.safe_load(yaml.safe_dump(found).replace(words, "Older words"))
    # Whoever wrote it owns its fields: Helm alone would be told of a conflict.
    await stack.client.patch(DEFINITION, {"spec": {"versions": older["spec"]["versions"]}})
    with pytest.raises(Refused, match="conflict"):
        await run(helm, "install", home)
    await run(helm, "uninstall", home, *WAIT)
    await run(helm, "install", home, "--force-conflicts")

    newer = tmp_path / "newer"
    shutil.copytree(CHART, newer)
    (template,) = (newer / "templates" / "crds").iterdir()
    template.write_text(template.read_text().replace(words, "Newer words"))

    async def shown() -> str:
        return yaml.safe_dump((await stack.client.get(DEFINITION))["spec"])

    assert words in await shown()
    await asyncio.to_thread(helm.run, "upgrade", "evenflow", str(newer), "--namespace", home)
    assert "Newer words" in await shown()
    await asyncio.to_thread(helm.run, "rollback", "evenflow", "1", "--namespace", home)
    assert words in await shown()
    await run(helm, "uninstall", home, *WAIT)
    # The same name again needs no flag.
    await asyncio.to_thread(helm.run, "install", "evenflow", str(CHART), "--namespace", home)
    await run(helm, "uninstall", home, *WAIT)


async def test_monitors_without_the_prometheus_operator_install_nothing(stack: Stack, helm: Helm) -> None:
    home = await stack.namespace()
    with pytest.raises(Refused, match="install the Prometheus Operator"):
        await run(helm, "install", home, values={"metrics": {"podMonitor": {"enabled": True}}})
    found, _ = await stack.client.list(f"/apis/apps/v1/namespaces/{home}/deployments")
    assert found == []
