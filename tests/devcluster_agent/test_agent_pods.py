"""Pods as real processes: their settings, probes, restarts, results and logs."""

from pathlib import Path

import aiohttp
import pytest
from agent_kit import PODS, Json, World, engine, eventually, fetch, http, is_ready, server

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


async def test_a_pod_sees_its_settings_and_follows_its_annotation(world: World) -> None:
    await world.client.create(
        "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "cm"}, "data": {"greeting": "hello"}}
    )
    field = {"fieldPath": "metadata.annotations['evenflow.dev/worker-config']"}
    name = await world.create(
        server(
            env=[
                {"name": "ROOT", "value": "/etc/evenflow"},
                {"name": "SHARE", "value": "/share/from-init"},
                {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "greeting"}}},
                {"name": "TEXT", "value": "$(GREETING), $(NAME)"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            volumeMounts=[{"name": "config", "mountPath": "/etc/evenflow"}, {"name": "share", "mountPath": "/share"}],
            readinessProbe={"httpGet": {"port": "http", "path": "/config.json"}, "periodSeconds": 1},
            resources={"limits": {"nvidia.com/gpu": "1"}},
        ),
        annotations={"evenflow.dev/worker-config": "one"},
        volumes=[
            {"name": "config", "downwardAPI": {"items": [{"path": "config.json", "fieldRef": field}]}},
            {"name": "share", "emptyDir": {}},
        ],
        initContainers=[
            {
                "name": "first",
                "image": "none",
                "command": ["sh", "-c", 'echo made > "$1"', "sh", "/share/from-init"],
                "volumeMounts": [{"name": "share", "mountPath": "/share"}],
            }
        ],
    )
    pod = await world.until(name, is_ready)
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"].startswith("127.77.")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert await fetch(pod, "config.json") == "one"
    assert await fetch(pod, "env/TEXT") == "hello, $(NAME)"
    assert await fetch(pod, "env/NODE") == pod["spec"]["nodeName"]
    assert await fetch(pod, "env/KUBECONFIG") == ""
    assert Path(await fetch(pod, "env/SHARE")).read_text() == "made\n"

    body = {"metadata": {"annotations": {"evenflow.dev/worker-config": "two"}}}
    await world.client.patch(f"{PODS}/{name}", body)

    async def updated() -> bool:
        return await fetch(pod, "config.json") == "two"

    await eventually(updated)
    await world.remove(name)


async def test_readiness_follows_the_probe_and_reaches_the_router(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    name = await world.create(
        server(
            env=[{"name": "ROOT", "value": str(tmp_path)}],
            readinessProbe={"httpGet": {"port": "http", "path": "/ready"}, "periodSeconds": 1, "failureThreshold": 1},
        )
    )
    service = await world.client.create(
        "/api/v1/namespaces/default/services",
        {"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 8000}]}},
    )
    url = f"http://{service['spec']['clusterIP']}:8000/env/HOSTNAME"
    await world.event(name, "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
    pod = await world.get(name)
    assert not is_ready(pod)
    assert pod["status"]["phase"] == "Running"
    flag.touch()
    await world.until(name, is_ready)
    async with http() as session, session.get(url) as answer:
        assert (answer.status, await answer.text()) == (200, name)
    flag.unlink()
    await world.until(name, lambda pod: not is_ready(pod))
    await world.remove(name)


async def test_a_crash_is_counted_and_the_container_restarts_in_place(world: World) -> None:
    name = await world.create(server())
    pod = await world.until(name, is_ready)
    with pytest.raises(aiohttp.ClientError):
        await fetch(pod, "crash")
    again = await world.until(name, lambda pod: engine(pod).get("restartCount") == 1 and is_ready(pod))
    assert engine(again)["lastState"]["terminated"]["exitCode"] == 3
    assert again["status"]["podIP"] == pod["status"]["podIP"]
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    await world.remove(name)


async def test_a_program_that_always_fails_backs_off(world: World) -> None:
    name = await world.create({"command": ["sh", "-c", "echo oh no; exit 7"]})
    pod = await world.until(
        name, lambda pod: engine(pod).get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    assert engine(pod)["lastState"]["terminated"] | {"startedAt": "", "finishedAt": ""} == {
        "exitCode": 7,
        "reason": "Error",
        "startedAt": "",
        "finishedAt": "",
    }
    assert pod["status"]["phase"] == "Running"
    await world.event(name, "BackOff", "restarting failed container engine")
    await world.remove(name)


async def test_failed_liveness_restarts_the_container(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "alive"
    flag.touch()
    probe = {"httpGet": {"port": 8000, "path": "/alive"}, "periodSeconds": 1, "failureThreshold": 1}
    name = await world.create(
        server(
            env=[{"name": "ROOT", "value": str(tmp_path)}],
            startupProbe={**probe, "failureThreshold": 30},
            livenessProbe=probe,
        ),
        terminationGracePeriodSeconds=1,
    )
    await world.until(name, is_ready)
    flag.unlink()
    await world.until(name, lambda pod: engine(pod).get("restartCount", 0) >= 1)
    await world.event(name, "Killing", "failed liveness probe")
    await world.remove(name)


async def test_jobs_end_as_their_policy_says(world: World) -> None:
    good = await world.create({"command": ["true"]}, restartPolicy="Never")
    bad = await world.create({"command": ["false"]}, restartPolicy="Never")
    await world.until(good, lambda pod: pod["status"].get("phase") == "Succeeded")
    pod = await world.until(bad, lambda pod: pod["status"].get("phase") == "Failed")
    assert engine(pod)["state"]["terminated"]["exitCode"] == 1
    for name in (good, bad):
        await world.remove(name)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"args": ["--x"]}, "doesn't run images"),
        ({"command": ["no-such-program"]}, "executable file not found"),
        ({"command": ["true"], "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
         "env[X].secretKeyRef"),
        ({"command": ["true"], "livenessProbe": {"grpc": {"port": 1}}}, "livenessProbe"),
    ],
)  # fmt: skip
async def test_what_cannot_run_says_why(world: World, container: Json, words: str) -> None:
    name = await world.create(container)
    await world.event(name, "Failed", words)
    assert not is_ready(await world.get(name))
    await world.remove(name)


async def test_a_pod_that_needs_real_images_waits_for_them_and_starts_nothing(world: World, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    init = {"name": "worker", "image": "evenflow/worker:1", "command": ["touch", str(copied)]}
    name = await world.create(
        {"image": "vllm/vllm-openai:v0.32.0", "command": ["vllm", "serve"]}, initContainers=[init]
    )
    pod = await world.until(
        name, lambda pod: engine(pod).get("state", {}).get("waiting", {}).get("reason") == "ImagePullBackOff"
    )
    assert "'vllm/vllm-openai:v0.32.0' can't be pulled" in engine(pod)["state"]["waiting"]["message"]
    assert "local programs only" in engine(pod)["state"]["waiting"]["message"]
    assert pod["status"]["initContainerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"
    assert (pod["status"]["phase"], engine(pod)["restartCount"]) == ("Pending", 0)
    assert not copied.exists()
    await world.event(name, "Failed", "image 'evenflow/worker:1' can't be pulled")
    await world.client.delete(f"{PODS}/{name}")
    await world.gone(name)


async def test_a_normal_start_gives_no_warning(world: World) -> None:
    probe = {"httpGet": {"port": 8000, "path": "/pid"}, "periodSeconds": 1, "failureThreshold": 60}
    name = await world.create(server(startupProbe=probe))
    await world.until(name, is_ready)
    await world.remove(name)
    # The end is the last event, and events are posted in order: what would have warned of the start is there by now.
    marker = await world.create({"command": ["no-such-program"]})
    await world.event(marker, "Failed", "executable file not found")
    items, _ = await world.client.list("/api/v1/namespaces/default/events")
    assert [
        item["message"] for item in items if item["involvedObject"]["name"] == name and item["type"] != "Normal"
    ] == []
    await world.remove(marker)


async def test_logs_and_the_log_before_them(world: World) -> None:
    name = await world.create(
        {"command": ["sh", "-c", "echo run on $HOSTNAME; sleep 0.2; exit 1"]}, terminationGracePeriodSeconds=0
    )
    await world.until(name, lambda pod: engine(pod).get("restartCount", 0) >= 1)
    pod = await world.get(name)
    node = await world.client.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"https://127.0.0.1:{port}/containerLogs/default/{name}/engine"
    async with http() as session:
        async with session.get(url, params={"previous": "true"}, ssl=False) as answer:
            assert await answer.text() == f"run on {name}\n"
        async with session.get(url, params={"follow": "true"}, ssl=False) as answer:
            assert (await answer.text()).endswith(f"run on {name}\n")
        async with session.get(url, params={"tailLines": "x"}, ssl=False) as answer:
            assert answer.status == 400
        async with session.get(url.replace("engine", "other"), ssl=False) as answer:
            assert answer.status == 404
    await world.remove(name)


@pytest.mark.parametrize(("asks", "own"), [(True, None), (True, "/mine"), (False, None)])
async def test_a_pod_that_asks_for_its_accounts_token_finds_a_kubeconfig(
    world: World, asks: bool, own: str | None
) -> None:
    path = own or (str(world.cluster.kubeconfig) if asks else "")
    container: Json = {"command": ["sh", "-c", 'test "$KUBECONFIG" = "$1"', "sh", path]}
    if own is not None:
        container["env"] = [{"name": "KUBECONFIG", "value": own}]
    name = await world.create(container, restartPolicy="Never", automountServiceAccountToken=asks)
    pod = await world.until(name, lambda pod: pod.get("status", {}).get("phase") in ("Succeeded", "Failed"))
    assert pod["status"]["phase"] == "Succeeded"
    await world.remove(name)
