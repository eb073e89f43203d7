"""These tests need real vLLM in the running Python: `make test-real` makes such environments. Elsewhere they skip."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_VLLM = importlib.util.find_spec("vllm") is not None and importlib.util.find_spec("torch") is not None
REASON = "vLLM is not installed here; `make test-real` runs these on vLLM for CPU"

if HAS_VLLM:
    sys.path.insert(0, str(HERE))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: needs real vLLM, which only `make test-real` installs")


class NeedsVllm(pytest.Item):
    """Stands for a file that can't even be imported without vLLM."""

    def runtest(self) -> None:
        pytest.skip(REASON)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class NeedsVllmModule(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        item: pytest.Item = NeedsVllm.from_parent(self, name=self.path.stem)
        item.add_marker("vllm")
        return [item]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if HAS_VLLM or module_path.parent != HERE:
        return None
    module: pytest.Module = NeedsVllmModule.from_parent(parent, path=module_path)
    return module


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's config and tokenizer, without weights."""
    from vllm_kit import make_model_dir

    return make_model_dir(tmp_path_factory.mktemp("model"))
