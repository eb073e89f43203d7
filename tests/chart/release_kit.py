"""The life of a Helm release whose pods run: install, serve a pool, upgrade under it, uninstall."""

import asyncio
from typing import Any

from e2e_stack import Stack, pool
from helm_tool import CHART, Helm

RBAC = "/apis/rbac.authorization.k8s.io/v1"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/llmservingpools.serving.evenflow.dev"
WAIT = ("--wait", "--timeout", "50s")
QUICK_LEASE = {"leaderElection": {"leaseDurationSeconds": 6, "renewDeadlineSeconds": 4, "retrySeconds": 1}}


async def run(helm: Helm, verb: str, namespace: str, *options: str, values: dict[str, Any] | None = None) -> str:
    # The definition may have come by other ways before.
    chart = () if verb == "uninstall" else (str(CHART), "--take-ownership")
    command = (verb, "evenflow", *chart, "--namespace", namespace, *options)
    return await asyncio.to_thread(helm.run, *command, values=values)


async def uids(stack: Stack, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in await stack.pods(namespace)}


async def live(stack: Stack, helm: Helm, home: str, namespace: str, values: dict[str, Any]) -> None:
    """Until a pool in `namespace` is served by an upgraded release in `home`."""
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


async def leave(stack: Stack, helm: Helm, home: str, namespace: str) -> None:
    """The rest: the release goes, the pool's engines stay."""
    served = await uids(stack, namespace)
    await run(helm, "uninstall", home, *WAIT)

    async def gone() -> str | None:
        left = await uids(stack, home)
        return f"{len(left)} pods of the operator" if left else None

    await stack.until(gone)
    assert await stack.client.get(DEFINITION)
    roles, _ = await stack.client.list(f"{RBAC}/clusterroles", labelSelector="app.kubernetes.io/instance=evenflow")
    assert roles == []
    assert await uids(stack, namespace) == served, "engines serve on without an operator"
    # The garbage collector ends them: nothing waits for an operator.
    await stack.delete_pool(namespace, "tiny")
