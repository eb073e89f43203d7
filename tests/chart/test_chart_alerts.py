"""Alerts and dashboard speak of series that exist, and fire when they should."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_tool import CHART, ROOT

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
METRIC = re.compile(r"\b(?:evenflow|vllm)[:_][a-z0-9_:]+")


def expressions() -> list[str]:
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*(rule["expr"] for rule in RULES), *shown]


def test_every_series_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"`((?:evenflow_|vllm:)[a-z0-9_:]+)`", text))
    known |= {f"{name}_bucket" for name in known} | {rule["record"] for rule in RULES if "record" in rule}
    used = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(used) > 10
    assert used - known == set()


def test_every_alert_says_what_it_means() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len(alerts) >= 9
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} <= alert["annotations"].keys()


POD = 'namespace="a", pod="p-0"'
POOL = 'namespace="a", pool="p"'
DRAIN = "evenflow_operator_autoscaling_queue_drain_seconds"
QUIET = "0x60"
LEADER = ("evenflow_operator_leader", "1x60")
CASES: list[tuple[str, dict[str, str], set[str]]] = [
    ("all is well", {}, set()),
    ("nobody leads", {"evenflow_operator_leader": "0x60"}, {"EvenflowNobodyLeads"}),
    ("the operator is gone", {"evenflow_operator_leader": "_x60"}, {"EvenflowNobodyLeads"}),
    (
        "evictions",
        {
            f"evenflow_evictions_total{{{POD}}}": "0+6x60",
            f"evenflow_completed_requests_total{{{POD}}}": "0+60x60",
            f"evenflow_admission_cap_volume_ratio{{{POD}}}": "1x60",
        },
        {"EvenflowEvictions"},
    ),
    (
        "few evictions, cap at its floor",
        {
            f"evenflow_evictions_total{{{POD}}}": "0+1x60",
            f"evenflow_completed_requests_total{{{POD}}}": "0+60x60",
            f"evenflow_admission_cap_volume_ratio{{{POD}}}": "0.5x60",
        },
        {"EvenflowCapAtFloor"},
    ),
    (
        "evictions of an engine that completes nothing are no ratio",
        {f"evenflow_evictions_total{{{POD}}}": "0+6x60", f"evenflow_completed_requests_total{{{POD}}}": "0x60"},
        set(),
    ),
    ("a fallback", {f'evenflow_scheduler_info{{{POD}, scheduler="stock"}}': "1x60"}, {"EvenflowStockScheduler"}),
    ("no fallback", {f'evenflow_scheduler_info{{{POD}, scheduler="evenflow"}}': "1x60"}, set()),
    ("a refused config", {f"evenflow_config_refused_total{{{POD}}}": "0x50 1x10"}, {"EvenflowConfigRefused"}),
    ("a failing hook", {f'evenflow_hook_errors_total{{{POD}, hook="schedule"}}': "0x50 3x10"}, {"EvenflowHookErrors"}),
    (
        "old samples",
        {"evenflow_operator_oldest_sample_age_seconds": "0+60x60"},
        {"EvenflowSamplesOld"},
    ),
    (
        "no sample at all isn't an old one",
        {"evenflow_operator_oldest_sample_age_seconds": " ".join(["NaN"] * 61)},
        set(),
    ),
    ("a queue without end", {f"{DRAIN}{{{POOL}}}": f"30x40{20 * ' Inf'}"}, {"EvenflowQueueNeverDrains"}),
    ("a queue without end for ten minutes", {f"{DRAIN}{{{POOL}}}": f"30x50{10 * ' Inf'}"}, set()),
    ("a long queue that drains", {f"{DRAIN}{{{POOL}}}": "9000x60"}, set()),
    (
        "failing passes",
        {'evenflow_operator_reconcile_failures_total{cause="api"}': "0+6x60"},
        {"EvenflowReconcileFailing"},
    ),
    (
        "watches that end",
        {'evenflow_operator_watch_restarts_total{pod="o"}': "0x40 0+1x20"},
        {"EvenflowWatchesRestart"},
    ),
]


@pytest.mark.parametrize(("series", "firing"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_alerts_fire_when_they_should(tmp_path: Path, series: dict[str, str], firing: set[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (package prometheus)")
    given = dict([LEADER]) | series
    fired: dict[str, Any] = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in given.items()],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "1h",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(fired))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
