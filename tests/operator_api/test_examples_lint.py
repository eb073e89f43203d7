"""The examples are what a user copies: they are valid, and the autoscaled one leaves replicas to the autoscaler."""

from pathlib import Path

import pytest
import yaml

from evenflow_cli.lint import lint_command

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_has_no_fault_and_no_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_command([path], "text") == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.out + captured.err


def test_the_autoscaled_example_leaves_replicas_out() -> None:
    spec = yaml.safe_load((EXAMPLES / "pool-autoscaled.yaml").read_text(encoding="utf-8"))["spec"]
    assert spec["autoscaling"]
    assert "replicas" not in spec
