"""The operator may do what docs/kubernetes.md §8 lists, and nothing more.

What stands there is compared with what a pool's whole life takes on a real API server, by tests/real_kubernetes.
"""

import re
from typing import Any

import pytest
import yaml
from chart_values import NAMESPACED
from helm_tool import ROOT, Helm, Objects

Rule = tuple[str, str, str, tuple[str, ...]]


def grants(role: dict[str, Any]) -> set[Rule]:
    """(group, resource, verb, names), whatever the order and grouping of the rules."""
    return {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(scope="module")
def listed() -> list[dict[str, Any]]:
    """The cluster's role, the lease's and the token's, as documented."""
    section = (ROOT / "docs" / "kubernetes.md").read_text().partition("\n## 8. Permissions\n")[2]
    block = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert block
    return list(yaml.safe_load_all(block[1]))


def roles(objects: Objects) -> dict[tuple[str | None, str], set[Rule]]:
    """The operator's, by namespace and name."""
    found = [*objects.named("ClusterRole", "evenflow-operator"), *objects.named("Role")]
    return {(one["metadata"].get("namespace"), one["metadata"]["name"]): grants(one) for one in found}


def test_cluster_wide(helm: Helm, listed: list[dict[str, Any]]) -> None:
    everywhere, lease, _ = map(grants, listed)
    assert roles(helm.template()) == {
        (None, "evenflow-operator"): everywhere,
        ("operators", "evenflow-operator-lease"): lease,
    }


def test_without_nodes(helm: Helm, listed: list[dict[str, Any]]) -> None:
    found = roles(helm.template({"watchNodes": False}))[None, "evenflow-operator"]
    assert grants(listed[0]) - found == {("", "nodes", verb, ()) for verb in ("list", "watch")}
    assert found < grants(listed[0])


def test_namespaced(helm: Helm, listed: list[dict[str, Any]]) -> None:
    everywhere, lease, token = map(grants, listed)
    assert token == {("", "secrets", "get", ("admin",))}
    objects = helm.template(NAMESPACED)
    here = {rule for rule in everywhere if rule[1] != "nodes"}
    assert roles(objects) == {
        ("team-a", "evenflow-operator"): here,
        ("team-b", "evenflow-operator"): here,
        ("operators", "evenflow-operator-lease"): lease,
        ("team-a", "evenflow-operator-admin-tokens"): {("", "secrets", "get", ("admin", "spare"))},
        ("team-b", "evenflow-operator-admin-tokens"): token,
    }
    assert objects.named("ClusterRoleBinding") == []


def test_users_with_the_clusters_roles_may_use_pools_and_not_their_status(helm: Helm) -> None:
    objects = helm.template()
    view, edit = (objects.the("ClusterRole", f"evenflow-pools-{name}") for name in ("view", "edit"))
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    aggregated = {
        role["metadata"]["name"]: {key.removeprefix(prefix) for key in role["metadata"]["labels"] if prefix in key}
        for role in (view, edit)
    }
    assert aggregated == {"evenflow-pools-view": {"view", "edit", "admin"}, "evenflow-pools-edit": {"edit", "admin"}}
    assert {verb for _, _, verb, _ in grants(view)} == {"get", "list", "watch"}
    assert grants(view) < grants(edit)
    assert {(resource, verb) for _, resource, verb, _ in grants(edit) - grants(view)} == {
        ("llmservingpools", "create"),
        ("llmservingpools", "delete"),
        ("llmservingpools", "deletecollection"),
        ("llmservingpools", "patch"),
        ("llmservingpools", "update"),
        ("llmservingpools/scale", "patch"),
        ("llmservingpools/scale", "update"),
    }
