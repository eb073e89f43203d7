"""Volumes, statuses, probe verdicts, tolerations, logs: the parts of the node agent that need no cluster."""

import asyncio
import base64
import random
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evenflow_devcluster.agent.addresses import choose_address
from evenflow_devcluster.agent.container import ContainerRunner
from evenflow_devcluster.agent.expansion import ConfigError
from evenflow_devcluster.agent.images import missing_images
from evenflow_devcluster.agent.logs import LogFile, LogQuery, read_log
from evenflow_devcluster.agent.node import UNREACHABLE, toleration_seconds
from evenflow_devcluster.agent.pod_status import ContainerState, Running, Terminated, Waiting, build_status, phase_of
from evenflow_devcluster.agent.probes import ProbeTiming, Verdict, check_handlers, still_starting
from evenflow_devcluster.agent.server import log_query
from evenflow_devcluster.agent.settings import AgentSettings
from evenflow_devcluster.agent.volumes import contents, publish

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


# volumes


def test_a_published_folder_is_switched_in_one_step(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    publish(folder, {"config.json": b"one", "sub/x": b"x"})
    opened = (folder / "config.json").resolve()
    publish(folder, {"config.json": b"two"})
    assert (folder / "config.json").read_bytes() == b"two"
    assert (folder / "config.json").is_symlink()
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("..")) == ["config.json"]
    assert not opened.exists(), "the folder of the old contents goes away"
    assert len(list(folder.glob("..*"))) == 2, "only ..data and the folder it points to stay"


def test_volume_contents() -> None:
    documents: dict[tuple[str, str], Any] = {
        ("configMap", "cm"): {"data": {"a": "1", "b": "2"}, "binaryData": {"c": base64.b64encode(b"\0").decode()}},
        ("secret", "s"): {"data": {"t": base64.b64encode(b"secret").decode()}},
    }

    def of(**volume: Any) -> dict[str, bytes] | None:
        return contents(
            {"name": "v", **volume},
            field=lambda path: f"<{path}>",
            objects=lambda kind, name: documents.get((kind, name)),
        )

    assert of(emptyDir={}) is None
    assert of(configMap={"name": "cm"}) == {"a": b"1", "b": b"2", "c": b"\0"}
    assert of(configMap={"name": "cm", "items": [{"key": "a", "path": "d/a"}]}) == {"d/a": b"1"}
    assert of(secret={"secretName": "s"}) == {"t": b"secret"}
    assert of(secret={"secretName": "gone", "optional": True}) == {}
    items = [{"path": "f", "fieldRef": {"fieldPath": "metadata.name"}}]
    assert of(downwardAPI={"items": items}) == {"f": b"<metadata.name>"}
    for bad, words in [
        ({"hostPath": {"path": "/"}}, "hostPath"),
        ({"secret": {"secretName": "gone"}}, "'gone' doesn't exist"),
        ({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}, "no key 'z'"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "../a"}]}}, r"'\.\./a'"),
        ({"downwardAPI": {"items": [{"path": "f", "resourceFieldRef": {}}]}}, "fieldRef"),
    ]:
        with pytest.raises(ConfigError, match=words):
            of(**bad)


# status

WAITING = ContainerState("c", "img", Waiting("ContainerCreating"))
RUNNING = replace(WAITING, state=Running(NOW), started=True, ready=True)
DONE = WAITING.with_state(Terminated(0, "Completed", NOW, NOW))
CRASHED = WAITING.with_state(Terminated(1, "Error", NOW, NOW))
BACKING_OFF = replace(WAITING, state=Waiting("CrashLoopBackOff"), previous=Terminated(1, "Error", NOW, NOW))


@pytest.mark.parametrize(
    ("init", "main", "policy", "phase"),
    [
        ([], [WAITING], "Always", "Pending"),
        ([], [RUNNING], "Always", "Running"),
        ([], [RUNNING, WAITING], "Always", "Running"),
        ([], [BACKING_OFF], "Always", "Running"),
        ([], [CRASHED], "Always", "Running"),
        ([], [CRASHED], "OnFailure", "Running"),
        ([], [CRASHED], "Never", "Failed"),
        ([], [DONE], "Always", "Running"),
        ([], [DONE], "OnFailure", "Succeeded"),
        ([], [DONE, CRASHED], "Never", "Failed"),
        ([], [DONE, RUNNING], "Never", "Running"),
        ([RUNNING], [WAITING], "Always", "Pending"),
        ([DONE], [WAITING], "Always", "Pending"),
        ([DONE], [RUNNING], "Always", "Running"),
        ([CRASHED], [WAITING], "Never", "Failed"),
        ([CRASHED], [WAITING], "OnFailure", "Pending"),
    ],
)
def test_phase(init: list[ContainerState], main: list[ContainerState], policy: str, phase: str) -> None:
    assert phase_of(init, main, policy) == phase


def status_of(main: list[ContainerState], before: list[dict[str, Any]], now: datetime, **pod: Any) -> dict[str, Any]:
    document = {"metadata": {"uid": "u"}, "spec": {}, **pod}
    return build_status(
        pod=document,
        before=before,
        init=[],
        main=main,
        phase=phase_of([], main, "Always"),
        pod_ip="127.77.1.1",
        host_ip="127.0.0.1",
        started_at=NOW,
        now=now,
    )


def conditions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["type"]: item for item in status["conditions"]}


def test_conditions_keep_their_time_until_they_turn() -> None:
    first = status_of([replace(RUNNING, ready=False)], [], NOW)
    assert conditions(first)["Ready"]["status"] == "False"
    assert "[c]" in conditions(first)["Ready"]["message"]
    later = NOW + timedelta(seconds=60)
    second = status_of([RUNNING], first["conditions"], later)
    assert conditions(second)["Ready"]["status"] == "True"
    assert conditions(second)["Ready"]["lastTransitionTime"] == "2026-01-02T03:05:05Z"
    assert conditions(second)["Initialized"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert status_of([RUNNING], second["conditions"], later + timedelta(seconds=9)) == second


def test_readiness_gates_hold_ready_back() -> None:
    gates = {"readinessGates": [{"conditionType": "evenflow.dev/assigned"}]}
    closed = conditions(status_of([RUNNING], [], NOW, spec=gates))
    assert (closed["ContainersReady"]["status"], closed["Ready"]["status"]) == ("True", "False")
    given = {"conditions": [{"type": "evenflow.dev/assigned", "status": "True"}]}
    assert conditions(status_of([RUNNING], [], NOW, spec=gates, status=given))["Ready"]["status"] == "True"


def test_restarts_and_the_last_state_are_told() -> None:
    status = status_of([replace(BACKING_OFF, restarts=3)], [], NOW)
    [container] = status["containerStatuses"]
    assert container["restartCount"] == 3
    assert container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container["lastState"]["terminated"]["exitCode"] == 1


def test_crash_back_off_doubles_up_to_its_limit(tmp_path: Path) -> None:
    settings = AgentSettings(tmp_path, crash_backoff=1, crash_backoff_limit=5)
    assert [settings.crash_delay(crashes) for crashes in range(1, 7)] == [0, 1, 2, 4, 5, 5]


# probes


def test_a_verdict_turns_after_enough_equal_answers() -> None:
    timing = ProbeTiming(successes=2, failures=3)
    verdict = Verdict(passing=False)
    seen = []
    for answer in (True, True, False, False, True, False, False, False):
        verdict = verdict.after(answer, timing)
        seen.append(verdict.passing)
    assert seen == [False, True, True, True, True, True, True, False]


def test_probe_defaults_are_those_of_kubernetes() -> None:
    assert ProbeTiming.of({}) == ProbeTiming(0, 10, 1, 1, 3)


@pytest.mark.parametrize(
    "container",
    [
        {"name": "c", "livenessProbe": {"grpc": {"port": 1}}},
        {"name": "c", "lifecycle": {"postStart": {"exec": {}}}},
        {"name": "c", "lifecycle": {"preStop": {"what": {}}}},
    ],
)
def test_probes_and_hooks_that_cannot_be_asked_are_refused(container: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"containers\[c\]"):
        check_handlers(container)


def test_tolerations() -> None:
    def seconds(*tolerations: dict[str, Any]) -> float | None:
        return toleration_seconds({"spec": {"tolerations": list(tolerations)}}, UNREACHABLE)

    assert seconds() == 300
    assert seconds({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}) == 5
    assert seconds({"operator": "Exists"}) is None
    assert seconds({"key": "other", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}) == 300


# addresses


def test_an_address_whose_port_is_in_use_is_not_chosen() -> None:
    taken: set[str] = set()
    first = choose_address("127.77", [0], taken, random.Random(1))
    with socket.socket() as listener:
        listener.bind((first, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert choose_address("127.77", [port], taken, random.Random(1)) != first
    assert choose_address("127.77", [port], {first}, random.Random(1)) != first


# logs


async def lines_of(path: Path, query: LogQuery, is_open: bool = False) -> list[bytes]:
    return [line async for line in read_log(path, query, lambda: is_open)]


async def test_logs_are_read_as_kubectl_asks(tmp_path: Path) -> None:
    moments = iter(NOW + timedelta(seconds=number) for number in range(100))
    log = LogFile(tmp_path / "0.log", lambda: next(moments), max_bytes=200)
    for number in range(10):
        log.write([f"line {number}".encode()])
    path = log.path
    assert path.with_name("0.log.1").exists(), "the log was rotated"
    assert len(path.read_bytes()) <= 200
    everything = await lines_of(path, LogQuery())
    assert everything[-1] == b"line 9\n"
    assert everything == [f"line {number}\n".encode() for number in range(10 - len(everything), 10)]
    assert await lines_of(path, LogQuery(tail_lines=2)) == [b"line 8\n", b"line 9\n"]
    assert await lines_of(path, LogQuery(tail_lines=0)) == []
    assert await lines_of(path, LogQuery(since=NOW + timedelta(seconds=9))) == [b"line 9\n"]
    assert b"".join(await lines_of(path, LogQuery(limit_bytes=9, tail_lines=2))) == b"line 8\nli"
    [stamped] = await lines_of(path, LogQuery(tail_lines=1, timestamps=True))
    assert stamped == b"2026-01-02T03:04:14.000000Z line 9\n"


async def test_following_a_log_survives_its_rotation(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "0.log", lambda: NOW, max_bytes=120)
    log.write([b"first"])
    seen: list[bytes] = []

    async def follow() -> None:
        async for line in read_log(log.path, LogQuery(follow=True), lambda: not log.closed):
            seen.append(line)  # noqa: PERF401 (an extend would show the lines only at the end)

    task = asyncio.create_task(follow())
    while not seen:
        await asyncio.sleep(0)
    for number in range(4):
        log.write([f"line {number}".encode()])
    log.close()
    assert log.path.with_name("0.log.1").exists(), "the log was rotated"
    await asyncio.wait_for(task, 5)
    assert seen == [b"first\n", *(f"line {number}\n".encode() for number in range(4))]


def test_log_options() -> None:
    query = log_query({"follow": "true", "tailLines": "5", "sinceSeconds": "60"}, NOW)
    assert query == LogQuery(follow=True, tail_lines=5, since=NOW - timedelta(seconds=60))
    for bad in ({"tailLines": "-1"}, {"limitBytes": "x"}, {"sinceTime": "yesterday"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            log_query(bad, NOW)


# images


@pytest.mark.parametrize(
    ("image", "command", "init", "runs"),
    [
        ("none", ["no-such-program"], False, True),
        ("evenflow/engine:0.1.0", ["python", "-m", "x"], False, True),
        ("local/mine:1", ["no-such-program"], True, True),
        ("example.com/tool:1", ["sh"], False, True),
        ("example.com/tool:1", ["$(TOOL)"], False, True),
        ("example.com/tool:1", ["/shared/tool"], False, True),
        ("example.com/tool:1", ["sh"], True, False),
        ("example.com/tool:1", ["no-such-program"], False, False),
        ("example.com/tool:1", None, False, False),
        ("evenflow/engine-of-others:1", ["no-such-program"], False, False),
    ],
)
def test_which_pods_need_real_images(image: str, command: list[str] | None, init: bool, runs: bool) -> None:
    container = {"name": "c", "image": image, "command": command, "volumeMounts": [{"mountPath": "/shared"}]}
    first = {"name": "first", "image": "none", "command": ["true"]}
    missing = missing_images({"containers": [container], "initContainers": [first] if init else []}, python="python")
    assert set(missing) == (set() if runs else {"c", "first"} if init else {"c"})


# a start


def test_a_startup_probe_warns_once_starting_takes_longer_than_a_period() -> None:
    assert still_starting({"periodSeconds": 1}, 9.9)
    assert not still_starting({"periodSeconds": 1}, 10.0)
    assert still_starting({"periodSeconds": 30}, 29.9)
    events: list[str] = []
    clock = [NOW]
    around = SimpleNamespace(
        now=lambda: clock[0],
        event=lambda reason, message, *, warning: events.append(f"{reason} {message}"),
        changed=lambda: None,
    )
    container = {"name": "c", "startupProbe": {"periodSeconds": 1, "failureThreshold": 60}}
    runner = ContainerRunner(container, cast(Any, around), restart_policy="Always")
    runner.status = runner.status.with_state(Running(NOW))
    for seconds in (0, 9, 10):
        clock[0] = NOW + timedelta(seconds=seconds)
        assert runner._on_startup(Verdict(False, False, 1), f"after {seconds}")
    assert events == ["Unhealthy Startup probe failed: after 10"]
