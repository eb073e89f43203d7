"""An API server that is gone: one line when it goes, one when it is back, nothing of kopf's in between."""

import asyncio
import logging
import sys
from pathlib import Path

import aiohttp
import kopf._cogs.clients.errors as kopf_errors
import pytest
from cluster_kit import eventually, running, stage
from engine_kit import travel

from evenflow_operator.outages import REFUSED_AGAIN_SECONDS, Outage, unless_outage
from evenflow_operator.ports import ApiError

REMEDY = "docs/kubernetes.md §8 lists what the operator needs"


class Counting(Outage):
    def __init__(self) -> None:
        super().__init__()
        self.held = 0

    def filter(self, record: logging.LogRecord) -> bool:
        passes = super().filter(record)
        self.held += not passes
        return passes


async def refused() -> aiohttp.ClientError:
    """What aiohttp says of a port where nobody listens."""
    try:
        async with aiohttp.ClientSession() as session:
            await session.get("http://127.0.0.1:9/api/v1/pods")
    except aiohttp.ClientError as error:
        return error
    raise AssertionError("somebody listens on the discard port")


def line(text: str, name: str = "kopf._cogs.clients.watching", error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, None) if error is not None else None
    return logging.LogRecord(name, logging.ERROR, "f", 1, text, (), info)


def said(outage: Outage, record: logging.LogRecord) -> tuple[str, str] | None:
    return (record.levelname, record.getMessage()) if outage.filter(record) else None


async def test_many_tries_of_many_watches_are_one_short_line() -> None:
    outage, error = Outage(), await refused()
    told = []
    for _ in range(5):
        for number in range(1, 7):
            tried = f"Request attempt #{number}/6 failed; will retry: GET https://127.0.0.1:9/a -> {error!r}"
            told.append(said(outage, line(tried)))
        told.append(said(outage, line("Watcher for pods has failed: …", "kopf._core.reactor", error)))
    assert told[0] == ("WARNING", "API server unreachable: connection refused; trying again")
    assert set(told[1:]) == {None}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TimeoutError(), "no answer in time"),
        (aiohttp.ConnectionTimeoutError("to host"), "no answer in time"),
        (aiohttp.ServerDisconnectedError(), "connection closed"),
        (aiohttp.ClientConnectionError("?"), "connection broken"),
    ],
)
def test_the_cause_is_said_in_a_few_words(error: Exception, cause: str) -> None:
    told = said(Outage(), line(f"Request attempt #6/6 failed; escalating: GET https://h/a -> {error!r}"))
    assert told == ("WARNING", f"API server unreachable: {cause}; trying again")


def test_what_is_no_outage_stays_and_is_short() -> None:
    outage = Outage()
    denied = "Request attempt #1/6 failed; will retry: GET https://h/a -> APIConflictError('no', {" + 900 * "x" + "})"
    told = said(outage, line(denied))
    assert told is not None
    assert told[1].startswith(denied[:100])
    assert len(told[1]) < 350
    try:
        raise ValueError("a bug")
    except ValueError:
        record = logging.LogRecord("kopf.x", logging.ERROR, "f", 1, "Watcher has failed", (), sys.exc_info())
    assert said(outage, record) == ("ERROR", "Watcher has failed")
    assert record.exc_info is not None
    ours = line("Request attempt #1 failed; -> ServerDisconnectedError()", "evenflow_operator.x")
    assert said(outage, ours) is not None
    assert not outage.lasts


def test_a_missing_permission_is_one_short_line_with_the_remedy() -> None:
    message = 'pods is forbidden: User "system:serviceaccount:a:b" cannot list resource "pods" in API group ""'
    error = kopf_errors.APIForbiddenError({"message": message, "code": 403}, status=403, headers={})  # type: ignore[typeddict-item]
    outage, told = Outage(), []
    for number in range(1, 7):
        tried = f"Request attempt #{number}/6 failed; will retry: GET https://h/api/v1/pods -> {error!r}"
        told.append(said(outage, line(tried)))
    gives_up = line(f"Watcher for pods has failed: {error}", "kopf._core.reactor", error)
    told.append(said(outage, gives_up))
    told.append(said(outage, line("Task exception was never retrieved", "asyncio", error)))
    assert told[0] == ("ERROR", f"a permission is missing: {message}; {REMEDY}")
    assert set(told[1:]) == {None}
    assert gives_up.exc_info is None
    assert (
        said(outage, line("another", error=kopf_errors.APIForbiddenError("nodes", status=403, headers={}))) is not None
    )
    later = line(f"Watcher for pods has failed: {error}", error=error)
    later.created += REFUSED_AGAIN_SECONDS
    assert said(outage, later) == told[0]


def test_an_api_server_that_starts_is_not_back_yet() -> None:
    outage = Outage()
    starting = "APIServerError('the request has been made before all known HTTP paths have been installed, …', {})"
    told = said(outage, line(f"Request attempt #5/6 failed; will retry: GET https://h/a -> {starting}"))
    assert told == ("WARNING", "API server unreachable: it is starting; trying again")


@pytest.mark.parametrize(("status", "tells"), [(0, False), (503, False), (403, True)])
def test_a_pools_requests_that_nobody_answers_are_told_unless_the_outage_was(status: int, tells: bool) -> None:
    outage = Outage()
    record = line("pool default/llama: no answer; trying again", "evenflow_operator.engine.reconcile")
    vars(record).update(unless_outage(ApiError(status, "Reason", "message")))
    assert said(outage, record) is not None
    outage.lasts = True
    assert (said(outage, record) is not None) is tells


def test_the_end_is_said_once_and_a_new_outage_is_another_line(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[ApiError | None] = [ApiError(0, "Timeout", ""), ApiError(503, "", ""), ApiError(403, "Forbidden", "")]
    asked = []

    async def ask() -> None:
        asked.append(True)
        if answers and (error := answers.pop(0)) is not None:
            raise error

    async def work() -> None:
        outage = Outage()
        gone = "Request attempt #1/6 failed; will retry: GET https://h/a -> ServerDisconnectedError()"
        assert said(outage, line(gone))
        task = asyncio.create_task(outage.look(ask))
        await asyncio.sleep(60)
        assert not outage.lasts
        assert said(outage, line(gone))
        assert not said(outage, line(gone))
        await asyncio.sleep(60)
        task.cancel()

    caplog.set_level("INFO")
    travel(work)
    assert [record.message for record in caplog.records] == ["API server is back"] * 2
    assert len(asked) == 4, "only during an outage"


async def test_kopf_against_an_api_server_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outage = Counting()
    caplog.handler.addFilter(outage)
    try:
        async with stage(tmp_path) as s, running(s.settings()):
            await s.apply_pool()
            await eventually(lambda: s.is_ready(), "ready")
            await s.cluster.stop()
            await eventually(lambda: outage.held >= 5, "several tries")
            told = [record.getMessage() for record in caplog.records if record.name.startswith("kopf")]
            pools = [record for record in caplog.records if getattr(record, "unanswered", False)]
    finally:
        caplog.handler.removeFilter(outage)
    assert [text for text in told if "unreachable" in text] == [
        "API server unreachable: connection refused; trying again"
    ]
    assert not [text for text in told if "Request attempt" in text]
    assert len(pools) <= 1, "only what failed before the watches noticed"
