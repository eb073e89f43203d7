"""What a person does with kubectl to a pool that the operator runs."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from e2e_stack import Stack, pool

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

KUBECTL = str(Path(sys.executable).with_name("kubectl"))


async def kubectl(stack: Stack, namespace: str, *arguments: str, stdin: str = "", status: int = 0) -> str:
    """Run kubectl 1.37; its output and errors together. A wrong exit status fails the test with them."""
    process = await asyncio.create_subprocess_exec(
        KUBECTL,
        "--namespace",
        namespace,
        *arguments,
        env={**os.environ, "KUBECONFIG": str(stack.kubeconfig)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
    assert process.returncode == status, output.decode()
    return output.decode()


async def test_the_life_of_a_pool_by_kubectl(stack: Stack) -> None:
    namespace = await stack.namespace()
    await stack.start_operator()
    manifest = yaml.safe_dump(pool(namespace, "tiny"))
    assert "tiny created" in await kubectl(stack, namespace, "apply", "-f", "-", stdin=manifest)
    await kubectl(stack, namespace, "wait", "--for=condition=Ready", "llmpool/tiny", "--timeout=40s")

    header, row = (await kubectl(stack, namespace, "get", "llmpool")).splitlines()
    assert header.split() == ["NAME", "MODEL", "DESIRED", "READY", "SEVERITY", "EVICTIONS", "MODE", "AGE"]
    assert row.split()[:4] == ["tiny", "tiny", "2", "2"]
    assert 0 <= float(row.split()[4]) < 1, "evictions per completion, not millionths"
    described = await kubectl(stack, namespace, "describe", "llmpool", "tiny")
    for text in ("AllSlotsReady", "CreateService", "SlotReady", "evenflow-operator"):
        assert text in described
    assert "capMicro" in await kubectl(stack, namespace, "explain", "llmpool.spec.admission")

    pods = (await kubectl(stack, namespace, "get", "pods", "-o", "name")).split()
    assert len(pods) == 2
    assert "KV tokens" in await kubectl(stack, namespace, "logs", pods[0])

    applied = await kubectl(stack, namespace, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
    assert "tiny serverside-applied" in applied
    patch = json.dumps({"spec": {"scheduling": {"policy": "FCFS"}}})
    await kubectl(stack, namespace, "patch", "llmpool", "tiny", "--type=merge", "-p", patch)
    await stack.wait_serving(namespace, "tiny")
    refused = json.dumps({"spec": {"scheduling": {"policy": "LIFO"}}})
    told = await kubectl(stack, namespace, "patch", "llmpool", "tiny", "--type=merge", "-p", refused, status=1)
    assert "spec.scheduling.policy" in told
    assert "FCFS" in told

    await kubectl(stack, namespace, "scale", "llmpool", "tiny", "--replicas=1")
    await kubectl(stack, namespace, "wait", "--for=delete", pods[1], "--timeout=40s")
    assert (await kubectl(stack, namespace, "get", "pods", "-o", "name")).split() == [pods[0]]

    await kubectl(stack, namespace, "delete", "llmpool", "tiny", "--timeout=30s")

    async def gone() -> str | None:
        left = await kubectl(stack, namespace, "get", "pods,services,endpointslices", "-o", "name")
        return left.strip() if left.strip() and "No resources" not in left else None

    await stack.until(gone)
