"""docs/reference says what the code says."""

import re
from enum import StrEnum
from pathlib import Path

import pytest
from docs_module import ROOT, generator

from evenflow_contract import metrics as names
from evenflow_operator.api import conditions, enums
from evenflow_operator.api.schema import structural_schema
from evenflow_operator.api.spec import LLMServingPoolSpec

generate = generator()


@pytest.mark.parametrize("file", sorted(str(path.relative_to(ROOT)) for path in generate.documents()))
def test_generated_file_has_not_drifted(file: str) -> None:
    assert (ROOT / file).read_text() == generate.documents()[ROOT / file], "run: make generate"


def test_check_tells_of_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "REFERENCE", tmp_path)
    monkeypatch.setattr(generate, "CHART_DEFINITION", tmp_path / "chart" / "definition.yaml")
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "metrics.md").write_text("")
    assert generate.main(["--check"]) == 1


def test_every_field_of_the_spec_is_listed() -> None:
    def paths(node: dict, here: str) -> list[str]:
        inner = node["items"] if node["type"] == "array" else node
        suffix = "[]" if node["type"] == "array" else ""
        found = []
        for name, child in inner.get("properties", {}).items():
            found += [f"{here}{suffix}.{name}", *paths(child, f"{here}{suffix}.{name}")]
        return found

    text = (ROOT / "docs" / "reference" / "pool.md").read_text()
    expected = paths(structural_schema(LLMServingPoolSpec), "spec")
    assert len(expected) > 80
    # An object that has a table of its own is its heading.
    missing = [path for path in expected if f"`{path}`" not in text and f"### {path}\n" not in text]
    assert missing == []


def test_every_worker_metric_of_the_contract_is_listed() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    own = [value for key, value in vars(names).items() if key.isupper() and str(value).startswith("evenflow_")]
    assert [name for name in own if name != names.PREFIX and f"`{name}`" not in text] == []


def test_every_metric_of_the_operator_is_listed_with_its_labels() -> None:
    silent = [family.name for family in generate._operator().collect() if not family.samples]
    assert silent == [], "a series that the generator doesn't make exist is listed without labels"


def test_a_member_without_a_meaning_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_said.py").write_text(
        'from enum import StrEnum\nclass Half(StrEnum):\n    A = "A"\n    """Said."""\n    B = "B"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from half_said import Half

    with pytest.raises(ValueError, match=r"Half\.B"):
        generate.meanings(Half)


@pytest.mark.parametrize("kind", [enums.DecisionType, conditions.DecisionReason])
def test_decisions_that_nothing_makes_are_marked_as_reserved(kind: type[StrEnum]) -> None:
    code = "\n".join(
        path.read_text()
        for area in ("core", "engine")
        for path in (ROOT / "operator/evenflow_operator" / area).rglob("*.py")
    )
    unmade = {member.value for member in kind if not re.search(rf"\b{kind.__name__}\.{member.name}\b", code)}
    reserved = {value for value, text in generate.meanings(kind).items() if text.startswith("Reserved")}
    assert unmade <= reserved
