"""`helm install` on the cluster of one computer: no container engine, the operator's pods are local processes."""

import sys
from pathlib import Path

import pytest
from e2e_stack import Stack

sys.path.append(str(Path(__file__).parents[1] / "chart"))

from helm_tool import Helm, NoHelm, binary
from release_kit import QUICK_LEASE, leave, live

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


async def test_a_release_serves_a_pool_is_upgraded_under_it_and_leaves_it_alone(stack: Stack, tmp_path: Path) -> None:
    try:
        helm = Helm(binary(), tmp_path, stack.kubeconfig)
    except NoHelm as error:
        pytest.skip(str(error))
    home, namespace = await stack.namespace(), await stack.namespace()
    await live(stack, helm, home, namespace, QUICK_LEASE)
    await leave(stack, helm, home, namespace)
