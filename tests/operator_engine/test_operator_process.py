"""Settings, logs, probes, and the operator as a process: start without a CRD, leadership, SIGTERM."""

import asyncio
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cluster_kit import eventually, running, stage

from evenflow_operator.assembly import Engine
from evenflow_operator.engine.lease import LeadershipLost, LeaseTimes
from evenflow_operator.logs import JsonFormatter, PlainFormatter
from evenflow_operator.main import Operator, main
from evenflow_operator.settings import Settings, SettingsError, parse_settings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_defaults_serve_the_whole_cluster_with_a_lease() -> None:
    assert parse_settings([], {}) == Settings()


def test_every_flag_has_a_variable_and_the_flag_wins() -> None:
    environment = {
        "EVENFLOW_NAMESPACE": "a,b",
        "EVENFLOW_LEADER_ELECTION": "false",
        "EVENFLOW_METRICS_PORT": "8080",
        "EVENFLOW_LOG_FORMAT": "json",
        "EVENFLOW_ADMIN_TOKEN_SECRET": "a/one, b/two",
        "EVENFLOW_ADMIN_WRITE": "open",
    }
    settings = parse_settings([], environment)
    assert settings.namespaces == ("a", "b")
    assert not settings.leader_election
    assert not settings.watch_nodes, "nodes are cluster-scoped"
    assert settings.metrics_port == 8080
    assert settings.log_format == "json"
    assert settings.admin_token_secrets == ("a/one", "b/two")
    assert settings.admin_write_open
    over = parse_settings(["--namespace", "c", "--namespace", "d", "--leader-election"], environment)
    assert over.namespaces == ("c", "d")
    assert over.leader_election


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--namespace", "team-*"], "--namespace"),
        (["--lease-duration", "5"], "--lease-duration"),
        (["--admin-token-secret", "admin"], "--admin-token-secret"),
        (["--prometheus-url", "prometheus:9090"], "--prometheus-url"),
        (["--prometheus-url", "http://me:secret@prometheus:9090"], "--prometheus-url"),
        (["--admin-write", "yes"], "--admin-write"),
        (["--lease-duration", "inf"], "--lease-duration"),
        (["--workers", "0"], "--workers"),
        (["--metrics-port", "70000"], "--metrics-port"),
        (["--watchdog-seconds", "0"], "--watchdog-seconds"),
        (["--watchdog-seconds", "nan"], "--watchdog-seconds"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(arguments: list[str], names: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(arguments, {})
    assert str(caught.value).startswith(names)
    assert "secret@" not in str(caught.value)


def test_a_variable_is_checked_as_its_flag_is() -> None:
    with pytest.raises(SettingsError, match="--log-format: 'xml'"):
        parse_settings([], {"EVENFLOW_LOG_FORMAT": "xml"})


def test_a_bad_kubeconfig_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kubeconfig", str(tmp_path / "absent")]) == 2
    assert "is not a file" in capsys.readouterr().err
    for number, text in enumerate(("", "[]", "a: [", "apiVersion: v1", "contexts: 5")):
        path = tmp_path / f"bad-{number}"
        path.write_text(text, encoding="utf-8")
        assert main(["--kubeconfig", str(path)]) == 2, text


def test_what_a_message_quotes_begins_no_line_of_its_own() -> None:
    quoted = "maintenance\n12:00:00 INFO    leading as somebody \x1b[2J"
    record = logging.LogRecord("evenflow", logging.INFO, __file__, 1, "drain: %s", (quoted,), None)
    line = PlainFormatter("%(levelname)-7s %(message)s").format(record)
    assert line == r"INFO    drain: maintenance\n12:00:00 INFO    leading as somebody \x1b[2J"


def test_a_json_line_holds_the_exception_on_the_same_line() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed: %s", ("a\nb",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    document = json.loads(line)
    assert (document["level"], document["message"]) == ("ERROR", "failed: a\nb")
    assert "boom" in document["exception"]


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_readiness_liveness_and_metrics_are_served(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        port = free_port()
        async with running(s.settings(metrics_port=port)):
            await s.apply_pool()
            await eventually(lambda: s.is_ready(), "ready")
            assert await get(f"http://127.0.0.1:{port}/readyz") == (200, "ready")
            status, text = await get(f"http://127.0.0.1:{port}/metrics")
            assert status == 200
            lines = text.splitlines()
            assert "evenflow_operator_leader 1.0" in lines
            assert "evenflow_operator_cached_pools 1.0" in lines
            assert any(line.startswith('evenflow_operator_decisions_total{reason="SlotEmpty"') for line in lines)
            assert any(line.startswith("evenflow_operator_reconcile_duration_seconds_bucket") for line in lines)
            assert await get(f"http://127.0.0.1:{port}/healthz") == (200, "alive")


async def test_a_sick_engine_fails_the_liveness_probe_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "sick", lambda self: "the loop has not ticked")
    async with stage(tmp_path) as s:
        port = free_port()
        async with running(s.settings(metrics_port=port)):
            await s.apply_pool()
            await eventually(lambda: s.is_ready(), "ready")
            assert await get(f"http://127.0.0.1:{port}/healthz") == (503, "the loop has not ticked")


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(Exception, match="--metrics-port"):
                await Operator(s.settings(metrics_port=taken.getsockname()[1])).run(asyncio.Event())


async def test_an_operator_of_an_empty_namespace_becomes_ready(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        await s.create_namespace("empty")
        async with running(s.settings(namespaces=("empty",), watch_nodes=False)) as operator:
            await eventually(lambda: operator._engine is not None and operator._unready() is None, "ready")


async def test_a_missing_crd_is_waited_for_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with stage(tmp_path) as s:
        crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/llmservingpools.serving.evenflow.dev"
        installed = await s.request("GET", crd)
        await s.request("DELETE", crd)
        port = free_port()
        async with running(s.settings(metrics_port=port)):
            await eventually(lambda: "evenflow crd | kubectl apply" in caplog.text, "the remedy is told")
            status, text = await get(f"http://127.0.0.1:{port}/readyz")
            assert status == 503
            assert "CRD" in text
            fresh = {key: installed[key] for key in ("apiVersion", "kind", "spec")}
            fresh["metadata"] = {"name": installed["metadata"]["name"]}
            await s.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=fresh)
            await s.apply_pool()
            await eventually(lambda: s.is_ready(), "it goes on by itself")


async def test_a_standby_takes_over_and_changes_nothing(tmp_path: Path) -> None:
    times = LeaseTimes(duration=1.5, renew_deadline=1.0, retry=0.1)
    async with stage(tmp_path) as s:
        settings = s.settings(leader_election=True, lease_times=times)
        async with running(settings):
            await s.apply_pool()
            await eventually(lambda: s.is_ready(), "ready")
            before = {pod["metadata"]["uid"] for pod in s.pods()}
            port = free_port()
            second = running(dataclasses.replace(settings, metrics_port=port))
            standby = await second.__aenter__()
            assert not standby._leading()
            await eventually(lambda: not standby._unready(), "the standby could take over")
            # The kubelet restarts what doesn't answer, and sends rollouts on when the new pod is ready.
            assert await get(f"http://127.0.0.1:{port}/healthz") == (200, "alive")
            assert await get(f"http://127.0.0.1:{port}/readyz") == (200, "ready")
            assert not standby._leading()
        try:
            await eventually(lambda: standby._leading() and not standby._unready(), "the standby leads")
            await s.patch_pool("llama", {"replicas": 3})
            await eventually(lambda: len(s.names()) == 3, "and acts")
            assert before < {pod["metadata"]["uid"] for pod in s.pods()}
        finally:
            await second.__aexit__(None, None, None)


async def test_a_stolen_lease_ends_the_operator(tmp_path: Path) -> None:
    times = LeaseTimes(duration=1.5, renew_deadline=1.0, retry=0.1)
    async with stage(tmp_path) as s:
        operator = Operator(s.settings(leader_election=True, lease_times=times))
        task = asyncio.create_task(operator.run(asyncio.Event()))
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        lease = {"spec": {"holderIdentity": "somebody"}}
        s.cluster.api.merge_patch("leases.coordination.k8s.io", "default", "evenflow-operator", lease)
        with pytest.raises(LeadershipLost, match="somebody"):
            await asyncio.wait_for(task, 5)
        held = s.cluster.api.get("leases.coordination.k8s.io", "default", "evenflow-operator") or {}
        assert held["spec"]["holderIdentity"] == "somebody", "a lease that isn't ours is not released"


async def _spawn(*arguments: str) -> asyncio.subprocess.Process:
    environment: dict[str, Any] = {key: value for key, value in os.environ.items() if not key.startswith("EVENFLOW_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys; from evenflow_cli.main import app; sys.argv[0] = 'evenflow'; app()",
        "operator",
        *arguments,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.cluster
async def test_as_a_process_it_stops_on_sigterm_and_hands_the_lease_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        process = await _spawn("--kubeconfig", s.kubeconfig, "--log-format", "json")
        try:
            await s.apply_pool()
            await eventually(lambda: s.is_ready(), "ready", limit=20)
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.wait_for(process.communicate(), 5)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        lease = s.cluster.api.get("leases.coordination.k8s.io", "default", "evenflow-operator")
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == ""
        for line in errors.decode().splitlines():
            assert json.loads(line)["message"], "every line of the log is JSON"
            assert s.cluster.token not in line


@pytest.mark.cluster
async def test_killed_without_warning_and_started_again_it_goes_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        await s.apply_pool(replicas=3)
        before: set[str] = set()
        for kill in (True, False):
            process = await _spawn("--kubeconfig", s.kubeconfig, "--no-leader-election")
            try:
                await eventually(lambda: s.is_ready(), "ready", limit=20)
                uids = {pod["metadata"]["uid"] for pod in s.pods()}
                assert before <= uids
                before = uids
            finally:
                process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
                await asyncio.wait_for(process.communicate(), 10)
        assert len(s.cluster.api.list("pods", "default")) == 3
