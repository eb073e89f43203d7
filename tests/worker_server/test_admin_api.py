"""The admin API, with an engine that only answers."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from evenflow_contract.worker_config import WorkerConfig
from evenflow_contract.worker_state import ClassLengths, WorkerLengths, WorkerState
from evenflow_worker.control.admin import AdminAccess, admin_app, is_loopback
from evenflow_worker.control.settings import Settings

STATE = WorkerState(
    applied_generation=0,
    config_hash="abc",
    engine="vLLM 0.32.0",
    scheduler="stock",
    policy="FCFS",
    kv_capacity_tokens=4096,
    block_size=16,
    iterations=3,
    running=1,
    waiting=2,
    in_flight={"default": 3},
    reason="a name is missing",
)
LENGTHS = WorkerLengths({"chat": ClassLengths(9, {220: 3.5}, 1024.0, {0.5: 900.0})})


class Engine:
    def state(self) -> WorkerState:
        return STATE

    def lengths(self) -> WorkerLengths:
        return LENGTHS


@pytest.fixture
def settings():
    return Settings(lambda config: None)


Put = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
async def start_admin(settings):
    """Starts the admin API for an access rule and returns its address."""
    runners = []

    async def start(access: AdminAccess) -> str:
        registry = CollectorRegistry()
        Counter("evenflow_test", "help", registry=registry).inc(4)
        runner = web.AppRunner(admin_app(Engine(), settings, registry, access))
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def put(session, address, document, **options):
    async with session.put(f"{address}/evenflow/v1/config", json=document, **options) as response:
        return response.status, await response.json()


LOCAL = AdminAccess(host="127.0.0.1")


async def test_state_lengths_and_metrics(start_admin, session):
    address = await start_admin(LOCAL)
    async with session.get(f"{address}/evenflow/v1/state") as response:
        assert WorkerState.parse(await response.read()) == STATE
    async with session.get(f"{address}/evenflow/v1/lengths") as response:
        assert WorkerLengths.parse(await response.read()) == LENGTHS
    async with session.get(f"{address}/metrics") as response:
        assert response.content_type == "text/plain"
        assert "evenflow_test_total 4.0" in await response.text()


async def test_push_and_its_refusals(start_admin, session, settings, config_document):
    address = await start_admin(LOCAL)
    assert await put(session, address, config_document(17)) == (200, {"appliedGeneration": 17})
    assert await put(session, address, config_document(17)) == (200, {"appliedGeneration": 17})
    for document in (config_document(16), config_document(17, policy="FCFS")):
        status, answer = await put(session, address, document)
        assert status == 409
        assert answer["appliedGeneration"] == 17
        assert answer["configHash"] == WorkerConfig.parse(config_document(17)).content_hash()
    status, answer = await put(session, address, config_document(18, policy="LIFO"))
    assert status == 422
    assert answer["field"] == "policy"
    assert "SVF" in answer["remedy"]
    assert settings.config == WorkerConfig.parse(config_document(17))
    async with session.get(f"{address}/evenflow/v1/config") as response:
        assert WorkerConfig.parse(await response.read()) == settings.config


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff\xfe", b'{"version": NaN}', b'{"a":' * 5000])
async def test_what_is_not_a_document_is_422(start_admin, session, settings, body):
    address = await start_admin(LOCAL)
    async with session.put(f"{address}/evenflow/v1/config", data=body) as response:
        assert response.status == 422
    assert settings.refused_total == 1


async def test_a_body_that_is_too_large_is_413(start_admin, session, settings):
    address = await start_admin(LOCAL)
    async with session.put(f"{address}/evenflow/v1/config", data=b" " * 70_000) as response:
        assert response.status == 413
    assert settings.config.generation == 0


async def test_the_token_is_needed_and_read_anew(start_admin, session, settings, config_document, tmp_path: Path):
    file = tmp_path / "token"
    address = await start_admin(AdminAccess(host="127.0.0.1", token_file=file))
    document = config_document(1)
    bearer = {"Authorization": "Bearer secret-1"}
    assert (await put(session, address, document, headers=bearer))[0] == 401
    file.write_text("secret-1\n")
    for headers in (None, {"Authorization": "Bearer secret"}, {"Authorization": "Basic secret-1"}):
        assert (await put(session, address, document, headers=headers))[0] == 401
    assert (await put(session, address, document, headers={"Authorization": "Bearer "}))[0] == 401
    assert settings.config.generation == 0
    assert (await put(session, address, document, headers=bearer))[0] == 200
    file.write_text("secret-2")
    assert (await put(session, address, config_document(2), headers=bearer))[0] == 401
    assert (await put(session, address, config_document(2), headers={"Authorization": "bearer secret-2"}))[0] == 200
    file.write_text("")
    assert (await put(session, address, config_document(3), headers={"Authorization": "Bearer "}))[0] == 401


async def test_without_a_token_a_foreign_address_is_403(start_admin, session, settings, config_document):
    address = await start_admin(AdminAccess(host="10.1.2.3"))
    status, answer = await put(session, address, config_document(1))
    assert status == 403
    assert "EVENFLOW_ADMIN_TOKEN_FILE" in answer["error"]
    assert settings.config.generation == 0
    address = await start_admin(AdminAccess(host="10.1.2.3", write_open=True))
    assert (await put(session, address, config_document(1)))[0] == 200


def test_access_comes_from_the_environment():
    access = AdminAccess.from_environment(
        "10.0.0.1", {"EVENFLOW_ADMIN_TOKEN_FILE": "/var/token", "EVENFLOW_ADMIN_WRITE": "open"}
    )
    assert access == AdminAccess("10.0.0.1", Path("/var/token"), write_open=True)
    assert AdminAccess.from_environment("::1", {"EVENFLOW_ADMIN_WRITE": "yes"}) == AdminAccess("::1")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.77.0.4", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False),
    ],
)  # fmt: skip
def test_loopback(host, loopback):
    assert is_loopback(host) is loopback


async def test_a_token_that_is_no_text_is_refused_like_any_other(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret")
    access = AdminAccess("10.0.0.1", path)
    assert access.refusal("Bearer secret") is None
    refused = access.refusal("Bearer \udcff")
    assert refused is not None
    assert refused[0] == 401
