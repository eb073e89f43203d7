import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
from engine_kit import ManualClock, pool_record

from evenflow_operator.adapters.events import BURST, COUNT_UP_SECONDS, QUEUE, REPEAT_SECONDS, KubeEvents
from evenflow_operator.adapters.kube import KubeClient
from evenflow_operator.adapters.tokens import CACHE_SECONDS, SecretTokens
from evenflow_operator.ports import ApiError, TokenUnavailable


class Client(KubeClient):
    """Answers from a function, remembers what was asked."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, Any]] = []
        self.answer = answer

    async def request(self, method: str, path: str, **options: Any) -> Any:
        self.asked.append((method, path, options.get("body")))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or {}


async def written(events: KubeEvents) -> None:
    task = asyncio.create_task(events.run())
    await events.flush(5)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def make(answer: Any = None) -> tuple[KubeEvents, Client, ManualClock]:
    client, clock = Client(answer), ManualClock()
    return KubeEvents(client, clock, "evenflow-operator", "me"), client, clock


async def test_an_event_is_about_the_pool() -> None:
    events, client, _ = make()
    events.post(pool_record(), warning=True, reason="CreateRefused", message="exceeded quota")
    await written(events)
    ((method, path, body),) = client.asked
    assert (method, path) == ("POST", "/api/v1/namespaces/serving/events")
    assert (body["type"], body["reason"], body["message"], body["count"]) == (
        "Warning",
        "CreateRefused",
        "exceeded quota",
        1,
    )
    assert body["involvedObject"]["uid"] == "pool-1"


async def test_repeats_are_counted_and_written_now_and_then() -> None:
    events, client, clock = make()
    for _ in range(100):
        events.post(pool_record(), warning=False, reason="CapRaised", message="cap 1 -> 2")
    await written(events)
    assert len(client.asked) == 1
    clock.at += COUNT_UP_SECONDS
    events.post(pool_record(), warning=False, reason="CapRaised", message="cap 1 -> 2")
    await written(events)
    method, _, body = client.asked[-1]
    assert (method, body["count"]) == ("PATCH", 101)


async def test_another_message_or_an_old_repeat_is_a_new_event() -> None:
    events, client, clock = make()
    events.post(pool_record(), warning=False, reason="CapRaised", message="cap 1 -> 2")
    events.post(pool_record(), warning=False, reason="CapRaised", message="cap 2 -> 3")
    clock.at += REPEAT_SECONDS
    events.post(pool_record(), warning=False, reason="CapRaised", message="cap 1 -> 2")
    await written(events)
    assert [method for method, _, _ in client.asked] == ["POST", "POST", "POST"]


async def test_a_flood_of_different_events_about_one_pool_is_cut() -> None:
    events, client, _ = make()
    for number in range(int(BURST) + 30):
        events.post(pool_record(), warning=False, reason="CapRaised", message=f"cap {number}")
    events.post(pool_record("other", uid="pool-2"), warning=False, reason="CapRaised", message="cap")
    await written(events)
    assert len(client.asked) == BURST + 1, "one pool's flood must not silence another"
    assert events.dropped == 30


async def test_a_full_queue_drops_instead_of_blocking() -> None:
    events, _, _ = make()
    for number in range(QUEUE + 5):
        events.post(pool_record(), warning=False, reason="CapRaised", message=f"cap {number}")
    assert events.dropped == 5


async def test_an_event_that_cannot_be_written_is_dropped() -> None:
    events, client, _ = make(ApiError(403, "Forbidden", "no"))
    events.post(pool_record(), warning=False, reason="CapRaised", message="cap")
    await written(events)
    assert (len(client.asked), events.dropped) == (1, 1)


SECRET: Mapping[str, Any] = {"data": {"token": "c2VzYW1l"}}


async def test_a_token_is_read_from_an_allowed_secret_and_kept_for_a_while() -> None:
    client, clock = Client(SECRET), ManualClock()
    tokens = SecretTokens(client, clock, ["serving/admin"])
    assert await tokens.admin_token("serving", "admin", "token") == "sesame"
    assert await tokens.admin_token("serving", "admin", "token") == "sesame"
    assert len(client.asked) == 1
    clock.at += CACHE_SECONDS
    await tokens.admin_token("serving", "admin", "token")
    assert len(client.asked) == 2


async def test_a_secret_that_is_not_allowed_is_never_asked_for() -> None:
    client = Client(SECRET)
    tokens = SecretTokens(client, ManualClock(), ["serving/admin"])
    for namespace, secret in (("other", "admin"), ("serving", "other")):
        with pytest.raises(TokenUnavailable, match="admin-token-secret"):
            await tokens.admin_token(namespace, secret, "token")
    assert client.asked == []


@pytest.mark.parametrize("data", [{}, {"token": "not base64!"}, {"token": ""}, {"token": "/w=="}, {"token": 5}, None])
async def test_a_secret_without_a_usable_token_says_so_without_showing_it(data: Any) -> None:
    tokens = SecretTokens(Client({"data": data}), ManualClock(), ["serving/admin"])
    with pytest.raises(TokenUnavailable) as caught:
        await tokens.admin_token("serving", "admin", "token")
    assert "key 'token'" in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_secret_that_cannot_be_read_says_why() -> None:
    tokens = SecretTokens(Client(ApiError(403, "Forbidden", "no")), ManualClock(), ["serving/admin"])
    with pytest.raises(TokenUnavailable, match="403 Forbidden"):
        await tokens.admin_token("serving", "admin", "token")
