"""The committed CRD: it is what the models say, and what Kubernetes takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenflow_cli.crd import crd_command
from evenflow_operator.api.crd import crd_document, crd_text
from evenflow_operator.api.rules import RULES

COMMITTED = Path(__file__).parents[2] / "crds" / "serving.evenflow.dev_llmservingpools.yaml"


def version() -> dict[str, Any]:
    (only,) = crd_document()["spec"]["versions"]
    return only


def schema_at(path: str) -> dict[str, Any]:
    node = version()["schema"]["openAPIV3Schema"]
    for step in path.strip(".").split("."):
        node = node["properties"][step]
    return node


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for key, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{key}")
    for keyword in ("items", "additionalProperties"):
        if keyword in node:
            yield from nodes(node[keyword], f"{path}[]")


def test_the_committed_file_is_the_generated_one() -> None:
    assert COMMITTED.read_bytes() == crd_text().encode(), "run: evenflow crd > " + COMMITTED.name


def test_the_command_prints_exactly_the_committed_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert crd_command() == 0
    assert capfdbinary.readouterr().out == COMMITTED.read_bytes()


def test_the_text_means_the_document() -> None:
    assert yaml.safe_load(crd_text()) == crd_document()


def test_it_is_small_enough_for_client_side_apply() -> None:
    assert len(crd_text().encode()) < 256 * 1024


def test_names_and_scope() -> None:
    document = crd_document()
    assert document["metadata"]["name"] == "llmservingpools.serving.evenflow.dev"
    assert document["spec"]["names"]["shortNames"] == ["llmpool"]
    assert "all" not in document["spec"]["names"]["categories"]
    assert document["spec"]["scope"] == "Namespaced"
    assert (version()["name"], version()["served"], version()["storage"]) == ("v1alpha1", True, True)


def test_scale_reads_integers_and_a_string_that_the_schema_has() -> None:
    scale = version()["subresources"]["scale"]
    assert schema_at(scale["specReplicasPath"])["default"] == 1
    assert schema_at(scale["statusReplicasPath"])["type"] == "integer"
    assert schema_at(scale["labelSelectorPath"])["type"] == "string"
    assert version()["subresources"]["status"] == {}


def test_printer_columns_show_fields_that_exist() -> None:
    columns = version()["additionalPrinterColumns"]
    assert [column["name"] for column in columns] == [
        "Model",
        "Desired",
        "Ready",
        "Severity",
        "Evictions",
        "Mode",
        "Age",
    ]
    for column in columns[:-1]:
        assert schema_at(column["jsonPath"])["type"] == column["type"]


def test_every_field_is_documented_and_bounded() -> None:
    root = version()["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        for path, node in nodes(root["properties"][part], part):
            assert node.get("description") or path.endswith("[]"), path
            match node["type"]:
                case "string":
                    assert "maxLength" in node or "enum" in node, path
                case "array":
                    assert "maxItems" in node, path
                case "integer":
                    assert node["minimum"] < node["maximum"], path
                case "object":
                    assert "properties" in node or "maxProperties" in node or path.startswith("spec.podTemplate"), path
                case "number":
                    pytest.fail(f"{path}: integers only")


def test_units_stand_in_the_description() -> None:
    for path, node in nodes(schema_at("spec"), "spec"):
        if path.endswith(("Tokens", "maxModelLen")):
            assert "token" in node["description"].lower(), path
        if path.endswith("Seconds"):
            assert "second" in node["description"].lower(), path
        if path.endswith("Percent"):
            assert "(percent)" in node["description"], path


def test_every_rule_stands_in_the_crd_where_its_path_says() -> None:
    found = [
        (path.removeprefix("."), entry["rule"])
        for path, node in nodes(version()["schema"]["openAPIV3Schema"])
        for entry in node.get("x-kubernetes-validations", [])
    ]
    assert sorted(found) == sorted((rule.path, rule.cel) for rule in RULES)


def test_a_rules_field_path_exists() -> None:
    for rule in RULES:
        if rule.field:
            assert schema_at(f"{rule.path}.{rule.field}")["type"], rule.path
