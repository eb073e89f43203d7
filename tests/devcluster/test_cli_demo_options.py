"""The options of `evenflow demo` are refused with the remedy, before anything starts."""

from pathlib import Path

import pytest

from evenflow_cli.demo import demo_command, unwritable


@pytest.mark.parametrize("scale", ["abc", "0", "101", "1.5"])
def test_a_time_scale_out_of_range_is_refused_in_words(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo_command(["--time-scale", scale])
    assert ended.value.code == 2
    assert f"'{scale}': must be a whole number from 1 to 100" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--report", "--picture"])
def test_a_file_that_cannot_be_written_is_said_before_anything_starts(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path, tmp_path / "file" / "below.json"):
        assert demo_command([option, str(target)]) == 2
        assert option in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_file_in_a_folder_yet_to_be_made_is_fine(tmp_path: Path) -> None:
    assert unwritable(str(tmp_path / "new" / "folder" / "report.json")) is None
    assert unwritable(None) is None
    assert list(tmp_path.iterdir()) == []
