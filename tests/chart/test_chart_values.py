"""values.yaml, its schema and the definition in the chart."""

import copy
import json
import sys
import tomllib
from typing import Any

import pytest
import yaml
from helm_tool import CHART, ROOT, Helm, Refused

sys.path.append(str(ROOT / "tests" / "docs"))

from docs_module import generator

from evenflow_cli.lint import lint_command

generate = generator()
DEFINITION = ROOT / "crds" / "serving.evenflow.dev_llmservingpools.yaml"
METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def keys(values: dict[str, Any], schema: dict[str, Any], here: str = "") -> set[str]:
    """Paths in which values and schema differ; objects without listed keys take anything."""
    if "properties" not in schema:
        return set()
    known = set(schema["properties"]) - ({"global"} if not here else {"claims"})
    assert schema["additionalProperties"] is False, f"{here}: additionalProperties"
    differing = {f"{here}/{key}" for key in known ^ set(values)}
    for key in known & set(values):
        differing |= keys(values[key], schema["properties"][key], f"{here}/{key}")
    return differing


def test_the_schema_knows_every_value_and_no_other() -> None:
    assert keys(VALUES, SCHEMA) - {"/podSecurityContext", "/securityContext"} == set()


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"replicas": 2}, "'replicas'"),
        ({"replicaCount": 0}, "/replicaCount"),
        ({"replicaCount": "2"}, "/replicaCount"),
        ({"image": {"repository": "a b"}}, "/image/repository"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"watchNamespaces": "team-a"}, "/watchNamespaces"),
        ({"watchNamespaces": ["team-*"]}, "/watchNamespaces/0"),
        ({"prometheus": {"url": "prometheus:9090"}}, "/prometheus/url"),
        ({"prometheus": {"url": "http://me:secret@prometheus"}}, "/prometheus/url"),
        ({"adminTokenSecrets": [{"name": "admin"}]}, "/adminTokenSecrets/0"),
        ({"crds": {"enabled": "yes"}}, "/crds/enabled"),
        ({"log": {"level": "info"}}, "/log/level"),
        ({"metrics": {"port": 80}}, "/metrics/port"),
        ({"metrics": {"podMonitor": {"interval": "15"}}}, "/metrics/podMonitor/interval"),
        ({"metrics": {"podMonitor": {"every": "15s"}}}, "/metrics/podMonitor"),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "/podDisruptionBudget/maxUnavailable"),
    ],
)
def test_a_wrong_value_is_refused_and_named(helm: Helm, values: dict[str, Any], path: str) -> None:
    with pytest.raises(Refused) as caught:
        helm.template(values)
    assert path in str(caught.value)


def test_every_value_is_explained_and_what_is_not_is_noticed() -> None:
    rows = {path.strip("`"): meaning for path, _, meaning in generate.values((CHART / "values.yaml").read_text())}
    assert len(rows) > 55
    assert rows["metrics.podMonitor.enabled"].startswith("Let the Prometheus Operator scrape the engines")
    assert rows["metrics.serviceMonitor.interval"] == "Time between two scrapes."
    with pytest.raises(ValueError, match=r"^a\.c: say what it means"):
        list(generate.values("a:\n  # Said.\n  b: 1\n  c: 2\n"))


def test_the_definition_is_the_committed_one_and_stays_when_the_release_goes(helm: Helm) -> None:
    text = helm.run("template", "x", str(CHART), "--show-only", f"templates/crds/{DEFINITION.name}")
    keep = "  annotations:\n    helm.sh/resource-policy: keep\n"
    assert text.count(keep) == 1
    rendered = text.replace(keep, "").partition("\n# Generated")[2]
    assert rendered.strip() == DEFINITION.read_text().partition("# Generated")[2].strip()


def test_the_definition_can_be_left_to_others_or_go_with_the_release(helm: Helm) -> None:
    assert helm.template({"crds": {"enabled": False}}).named("CustomResourceDefinition") == []
    gone = helm.template({"crds": {"keep": False}}).the("CustomResourceDefinition")
    assert gone == yaml.safe_load(DEFINITION.read_text())


def test_a_definition_that_helm_would_expand_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    broken = tmp_path / "crd.yaml"
    broken.write_text("# note\nmetadata:\n  name: '{{ x }}'\n")
    monkeypatch.setattr(generate, "DEFINITION", broken)
    with pytest.raises(ValueError, match="Helm would expand"):
        generate.chart_definition()


def test_the_chart_has_the_version_of_the_distribution() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (METADATA["version"], METADATA["appVersion"]) == (version, version)
    images = yaml.safe_load(METADATA["annotations"]["artifacthub.io/images"])
    assert [one["image"] for one in images] == [f"evenflow:{version}"]


def test_what_artifact_hub_shows_is_true(tmp_path: Any) -> None:
    notes = METADATA["annotations"]
    definition = yaml.safe_load(DEFINITION.read_text())
    (shown,) = yaml.safe_load(notes["artifacthub.io/crds"])
    assert shown["name"] == definition["metadata"]["name"]
    assert shown["kind"] == definition["spec"]["names"]["kind"]
    assert shown["version"] == definition["spec"]["versions"][0]["name"]
    for number, example in enumerate(yaml.safe_load(notes["artifacthub.io/crdsExamples"])):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(example))
        assert lint_command([file], "table") == 0


def test_the_pool_of_the_notes_is_sound(helm: Helm, tmp_path: Any) -> None:
    """Read out of a dry run: nothing is installed."""
    shown = helm.run("install", "evenflow", str(CHART), "--dry-run=client", "--namespace", "operators", values={})
    text = shown.partition("<<'POOL'\n")[2].partition("POOL")[0]
    file = tmp_path / "pool.yaml"
    file.write_text(text)
    assert yaml.safe_load(copy.copy(text))["kind"] == "LLMServingPool"
    assert lint_command([file], "table") == 0
