"""These tests need a real API server: `make test-kubernetes` starts one. Elsewhere they skip, a line for each file."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

HERE = Path(__file__).parent
NAMED = os.environ.get("EVENFLOW_TEST_KUBECONFIG")
# What other areas' tests are made of: pools and their faults, a plain client, processes, helm.
sys.path += [str(HERE.parent / area) for area in ("operator_api", "contract_suite", "end_to_end", "chart")]

from e2e_stack import cluster, stack  # noqa: E402
from suite_client import Access, Client  # noqa: E402

__all__ = ["cluster", "stack"]


class NeedsServer(pytest.Item):
    """Stands for a file whose tests need a real API server."""

    def runtest(self) -> None:
        pytest.skip("needs a real API server; `make test-kubernetes` builds and starts one")

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class NeedsServerModule(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        item: pytest.Item = NeedsServer.from_parent(self, name=self.path.stem)
        return [item]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if NAMED or module_path.parent != HERE:
        return None
    module: pytest.Module = NeedsServerModule.from_parent(parent, path=module_path)
    return module


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    assert NAMED
    return Path(NAMED)


@pytest.fixture(scope="session")
def access(kubeconfig: Path) -> Access:
    return Access.read(kubeconfig)


@pytest.fixture
async def api(access: Access) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls)) as session:
        yield Client(access, session)
