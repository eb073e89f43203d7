"""helm and the chart; without helm these tests skip and say why."""

import pytest
from helm_tool import Helm, NoHelm, binary


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    try:
        path = binary()
    except NoHelm as error:
        pytest.skip(str(error))
    return Helm(path, tmp_path_factory.mktemp("helm"))
