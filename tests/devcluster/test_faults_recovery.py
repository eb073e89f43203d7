"""Fault injection on the embedded server, and that list-then-watch loops on kubernetes.aio live through it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from embedded_fixture import PODS, WAIT, Http, embedded, pod
from kubernetes.aio import client, config, watch

from evenflow_devcluster.embedded.faults import Fault

SECRETS = "/api/v1/namespaces/default/secrets"


def secret(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Http]:
    async with embedded(tmp_path, seed=7) as opened:
        yield opened


class Follower:
    """A client's cache of the secrets of one namespace: list, watch from there, list again after an error."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._changed = asyncio.Event()
        self.names: set[str] = set()
        self.lists = 0
        self.errors: list[int] = []

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except client.ApiException as error:
                self.errors.append(error.status)
            except (aiohttp.ClientError, TimeoutError):
                self.errors.append(0)
            self._changed.set()
            await asyncio.sleep(0.01)

    async def _follow(self) -> None:
        listed = await self._core.list_namespaced_secret("default", _request_timeout=WAIT)
        self.lists += 1
        self.names = {item.metadata.name for item in listed.items}
        self._changed.set()
        async with watch.Watch() as stream:
            async for event in stream.stream(
                self._core.list_namespaced_secret, "default", resource_version=listed.metadata.resource_version
            ):
                name = event["object"].metadata.name
                if event["type"] == "DELETED":
                    self.names.discard(name)
                else:
                    self.names.add(name)
                self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def library(http: Http) -> AsyncIterator[Any]:
    settings = client.Configuration()
    settings.retries = None
    await config.load_kube_config(config_file=str(http.cluster.kubeconfig), client_configuration=settings)
    async with client.ApiClient(settings) as opened:
        yield client.CoreV1Api(opened)


@asynccontextmanager
async def following(http: Http) -> AsyncIterator[Follower]:
    async with library(http) as core:
        follower = Follower(core)
        task = asyncio.create_task(follower.run())
        try:
            await follower.until(lambda: follower.lists > 0)
            yield follower
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_dropped_watch_is_resumed_without_loss(http: Http) -> None:
    async with following(http) as follower:
        for round_ in range(5):
            await http.good("POST", SECRETS, secret(f"before-{round_}"))
            http.cluster.faults.drop_watches("secrets")
            await http.good("POST", SECRETS, secret(f"after-{round_}"))
            await follower.until(lambda name=f"after-{round_}": name in follower.names)  # type: ignore[misc]
        assert follower.names == {f"{when}-{round_}" for when in ("before", "after") for round_ in range(5)}


async def test_dropping_one_resource_keeps_the_watches_of_others(http: Http) -> None:
    async with http.watch(SECRETS) as secrets, http.watch(PODS) as pods:
        http.cluster.faults.drop_watches("pods")
        assert (await pods.next())[0] == "END"
        await http.good("POST", SECRETS, secret("one"))
        assert await secrets.names(1) == [("ADDED", "one")]


async def test_a_stalled_watch_says_nothing_until_it_flows_again(http: Http) -> None:
    async with following(http) as follower:
        http.cluster.faults.stall_watches()
        for name in ("one", "two"):
            await http.good("POST", SECRETS, secret(name))
        assert len((await http.good("GET", SECRETS))["items"]) == 2
        assert follower.names == set()
        http.cluster.faults.resume_watches()
        await follower.until(lambda: follower.names == {"one", "two"})
        assert follower.lists == 1


async def test_a_watch_opened_while_stalled_stays_silent(http: Http) -> None:
    await http.good("POST", SECRETS, secret("one"))
    http.cluster.faults.stall_watches()
    async with http.watch(SECRETS) as events:
        assert events.status == 200
        reading = asyncio.create_task(events.next())
        await http.good("GET", SECRETS)
        assert not reading.done()
        http.cluster.faults.resume_watches()
        assert (await reading)[0] == "ADDED"


async def test_forgotten_history_makes_followers_list_again(http: Http) -> None:
    async with following(http) as follower:
        await http.good("POST", SECRETS, secret("one"))
        await follower.until(lambda: follower.names == {"one"})
        # All in one turn of the event loop, so that no watch comes back before the history is gone.
        http.cluster.faults.drop_watches("secrets")
        http.cluster.api.delete("secrets", "default", "one")
        http.cluster.api.create("secrets", "default", secret("two"))
        http.cluster.faults.forget_history("secrets")
        await follower.until(lambda: follower.names == {"two"})
        assert follower.lists >= 2
        assert 410 in follower.errors


async def test_a_page_from_forgotten_history_is_410(http: Http) -> None:
    for name in ("one", "two"):
        await http.good("POST", SECRETS, secret(name))
    first = await http.good("GET", f"{SECRETS}?limit=1")
    await http.good("POST", SECRETS, secret("three"))
    http.cluster.faults.forget_history()
    token = first["metadata"]["continue"]
    status, answer = await http.send("GET", SECRETS, params={"limit": "1", "continue": token})
    assert (status, answer["reason"]) == (410, "Expired")


@pytest.mark.parametrize("code", [401, 403, 409, 429, 500, 503, 504])
async def test_an_error_is_answered_as_often_as_asked_and_does_nothing(http: Http, code: int) -> None:
    http.cluster.faults.add(Fault(verbs=("create",), resources=("secrets",), status=code, count=2, retry_after=3))
    async with library(http) as core:
        for _ in range(2):
            with pytest.raises(client.ApiException) as refused:
                await core.create_namespaced_secret("default", secret("one"))
            assert refused.value.status == code
            assert refused.value.headers["Retry-After"] == "3"
        assert (await core.list_namespaced_secret("default")).items == []
        await core.create_namespaced_secret("default", secret("one"))
    assert http.cluster.faults.acted == 2


@pytest.mark.parametrize("code", [401, 429, 500, 503])
async def test_followers_survive_errors_on_list_and_watch(http: Http, code: int) -> None:
    async with following(http) as follower:
        for verb in ("list", "watch"):
            http.cluster.faults.add(Fault(verbs=(verb,), resources=("secrets",), status=code, count=2))
        http.cluster.faults.drop_watches("secrets")
        await http.good("POST", SECRETS, secret("one"))
        await follower.until(lambda: "one" in follower.names)
    assert code in follower.errors


async def test_faults_hit_only_what_they_name(http: Http) -> None:
    await http.good("POST", PODS, pod("one"))
    await http.good("POST", PODS, pod("two"))
    http.cluster.faults.add(Fault(verbs=("patch",), resources=("pods/status",), names=("one",), status=409))

    async def patched(path: str, patch: dict[str, Any]) -> int:
        headers = {"Content-Type": "application/merge-patch+json"}
        return (await http.send("PATCH", f"{PODS}/{path}", patch, headers=headers))[0]

    assert await patched("one/status", {"status": {"phase": "Running"}}) == 409
    assert await patched("two/status", {"status": {"phase": "Running"}}) == 200
    assert await patched("one", {"metadata": {"labels": {"a": "b"}}}) == 200
    await http.good("GET", f"{PODS}/one")
    http.cluster.faults.add(Fault(namespaces=("elsewhere",), status=500))
    await http.good("GET", PODS)
    http.cluster.faults.add(Fault(user_agents=("evenflow-operator",), status=503))
    await http.good("GET", PODS)
    status, _ = await http.send("GET", PODS, headers={"User-Agent": "evenflow-operator/0.1"})
    assert status == 503


async def test_latency_delays_a_request_and_a_client_that_gives_up_changes_nothing(http: Http) -> None:
    http.cluster.faults.add(Fault(verbs=("create",), resources=("secrets",), latency=600, count=1))
    with pytest.raises(TimeoutError):
        await http.send("POST", SECRETS, secret("one"), timeout=aiohttp.ClientTimeout(total=0.2))
    assert (await http.good("GET", SECRETS))["items"] == []
    await http.good("POST", SECRETS, secret("two"))
    http.cluster.faults.clear()
    http.cluster.faults.add(Fault(verbs=("create",), resources=("secrets",), latency=0.01))
    await http.good("POST", SECRETS, secret("three"))
    assert http.cluster.faults.acted == 2


async def test_a_probability_repeats_with_its_seed(tmp_path: Path) -> None:
    async def outcomes() -> list[int]:
        async with embedded(tmp_path, seed=11) as http:
            http.cluster.faults.add(Fault(verbs=("get",), status=500, probability=0.5))
            return [(await http.send("GET", f"{SECRETS}/none"))[0] for _ in range(30)]

    first = await outcomes()
    assert set(first) == {404, 500}
    assert first == await outcomes()


async def test_faults_over_http(http: Http) -> None:
    await http.good("POST", SECRETS, secret("one"))
    rule = {"verbs": ["get"], "resources": ["secrets"], "status": 429, "retryAfterSeconds": 1, "count": 1}
    async with http.watch(SECRETS) as events:
        assert await events.names(1) == [("ADDED", "one")]
        answer = await http.good("PUT", "/_faults", {"rules": [rule], "dropWatches": ["secrets"]})
        assert answer == {"acted": 0, "stallWatches": False}
        assert (await events.next())[0] == "END"
    status, refused = await http.send("GET", f"{SECRETS}/one")
    assert (status, refused["details"]["retryAfterSeconds"]) == (429, 1)
    await http.good("GET", f"{SECRETS}/one")
    assert (await http.good("GET", "/_faults"))["acted"] == 1
    version = (await http.good("GET", SECRETS))["metadata"]["resourceVersion"]
    await http.good("POST", SECRETS, secret("two"))
    await http.good("PUT", "/_faults", {"forgetHistory": ["*"], "stallWatches": True})
    assert (await http.good("GET", "/_faults"))["stallWatches"] is True
    await http.good("DELETE", "/_faults")
    async with http.watch(SECRETS, resourceVersion=version) as events:
        kind, status_object = await events.next()
        assert (kind, status_object["code"]) == ("ERROR", 410)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"rulez": []}, "rulez"),
        ({"rules": [{"verb": "get"}]}, "verb"),
        ({"rules": [{"status": 418}]}, "status"),
        ({"rules": [{"probability": 2}]}, "probability"),
        ({"rules": [{"latencySeconds": -1}]}, "latency"),
        ({"rules": ["all"]}, "rule"),
    ],
)
async def test_a_bad_fault_document_is_refused_whole(http: Http, document: dict[str, Any], says: str) -> None:
    await http.good("PUT", "/_faults", {"rules": [{"verbs": ["create"], "status": 500}]})
    status, answer = await http.send("PUT", "/_faults", document)
    assert status == 400
    assert says in answer["message"]
    assert (await http.send("POST", SECRETS, secret("one")))[0] == 500


async def test_faults_need_the_token(http: Http) -> None:
    status, _ = await http.send("PUT", "/_faults", {}, headers={"Authorization": "Bearer wrong"})
    assert status == 401
