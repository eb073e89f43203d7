"""The options of `evenflow demo` are refused with the remedy, before anything starts."""

import pytest

from evenflow_cli.demo import demo_command


@pytest.mark.parametrize("scale", ["abc", "0", "101", "1.5"])
def test_a_time_scale_out_of_range_is_refused_in_words(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo_command(["--time-scale", scale])
    assert ended.value.code == 2
    assert f"'{scale}': must be a whole number from 1 to 100" in capsys.readouterr().err
