"""Pools, traces and calls of `evenflow plan` for its tests."""

import json
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from evenflow_cli.main import app

ROOT = Path(__file__).parents[2]


def manifest(classes: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    spec.setdefault("engine", {"kvCacheTokens": 60_000})
    return {
        "apiVersion": "serving.evenflow.dev/v1alpha1",
        "kind": "LLMServingPool",
        "metadata": {"name": "planned"},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
            "replicas": 4,
            "trafficClasses": classes,
            **spec,
        },
    }


def tier(output: int, prompt: int = 512, **more: Any) -> dict[str, Any]:
    return {"name": f"t{output}", "promptTokens": prompt, "outputTokens": output, "outputSpreadPercent": 0, **more}


def wide(name: str = "chat", prompt: int = 1000, output: int = 200, **more: Any) -> dict[str, Any]:
    return {"name": name, "promptTokens": prompt, "outputTokens": output, **more}


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "pool.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def trace_of(folder: Path, rows: list[tuple[float, int, int, str]], name: str = "trace.csv") -> Path:
    path = folder / name
    lines = ["arrival_s,prompt_tokens,output_tokens,class", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def run_plan(pool: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["plan", "-f", str(pool), *options])


def planned(pool: Path, *options: str) -> dict[str, Any]:
    result = run_plan(pool, "-o", "json", *options)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def advice(document: dict[str, Any], topic: str) -> tuple[bool, str]:
    found = next(one for one in document["advice"] if one["topic"] == topic)
    return found["act"], found["text"]
