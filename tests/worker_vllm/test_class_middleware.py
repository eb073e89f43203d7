"""The header's class reaches the body, and nothing else of the body changes."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_contract.worker_config import WorkerConfig
from evenflow_worker.vllm import TrafficClassMiddleware
from evenflow_worker.vllm.json_edit import set_nested_string

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def edit(body: bytes) -> bytes:
    return set_nested_string(body, "vllm_xargs", "traffic_class", "chat")


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4), st.sampled_from((None, 1, "\t")), st.booleans())
def test_only_the_class_changes(document: dict[str, Any], indent: Any, ascii_only: bool) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    edited = edit(body)
    if isinstance(document.get("vllm_xargs", {}) or {}, dict):
        try:
            body.decode()
        except UnicodeDecodeError:
            assert edited == body
            return
        wanted = {**document, "vllm_xargs": {**(document.get("vllm_xargs") or {}), "traffic_class": "chat"}}
        assert json.loads(edited) == wanted
    else:
        assert edited == body


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"a" : 1.50,  "b":"\\u00e9"}', b'{"vllm_xargs": {"traffic_class": "chat"}, "a" : 1.50,  "b":"\\u00e9"}'),
        (b"{ }", b'{"vllm_xargs": {"traffic_class": "chat"} }'),
        (b'{"vllm_xargs":null,"a":1}', b'{"vllm_xargs":{"traffic_class": "chat"},"a":1}'),
        (b'{"vllm_xargs": { "x":1 }}', b'{"vllm_xargs": {"traffic_class": "chat",  "x":1 }}'),
        (b'{"vllm_xargs":{"traffic_class":"code","x":1}}', b'{"vllm_xargs":{"traffic_class":"chat","x":1}}'),
        (
            b'{"vllm_xargs":1,"vllm_xargs":{}}',
            b'{"vllm_xargs":1,"vllm_xargs":{"traffic_class": "chat"}}',
        ),
        (b'{"a": NaN}', b'{"vllm_xargs": {"traffic_class": "chat"}, "a": NaN}'),
    ],
)
def test_bytes(body: bytes, wanted: bytes) -> None:
    assert edit(body) == wanted


@pytest.mark.parametrize("body", [b'{"a":1,%s"b":2}', b'%s{"a":1}', b'{%s"a":1}', b'{"a"%s:1}', b'{"a":1%s', b"%s"])
def test_white_space_costs_no_step_for_each_byte(body: bytes) -> None:
    steps = 0

    def count(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        edit(body % (b" " * 10_000))
    finally:
        sys.settrace(before)
    assert 0 < steps < 1000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"a"',
        b'{"a":1,}',
        b'{"a" 1}',
        b"\xff",
        b'"x"',
        b'{"vllm_xargs":"no"}',
        b'{"vllm_xargs":[1]}',
    ],
)
def test_what_cannot_be_edited_stays(body: bytes) -> None:
    assert edit(body) == body


def test_a_body_nested_too_deep_stays() -> None:
    body = b'{"a":' + b"[" * 200_000
    assert edit(body) == body


class Peer:
    """Calls an ASGI application once and notes what reached it and what it answered."""

    def __init__(self, config: Path) -> None:
        self.body = b""
        self.scope: dict[str, Any] = {}
        self.after: dict[str, Any] = {}
        self.sent: list[dict[str, Any]] = []
        self.middleware = TrafficClassMiddleware(self._app, config_path=config)

    async def _app(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        self.scope = scope
        while True:
            message = await receive()
            if message["type"] != "http.request":
                self.after = message
                break
            self.body += message["body"]
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def post(
        self, *parts: bytes, header: bytes | None = b"chat", path: str = "/v1/completions", hang_up: bool = False
    ) -> None:
        size = str(sum(map(len, parts))).encode()
        headers = [(b"content-length", size)] + ([(b"X-Traffic-Class", header)] if header is not None else [])
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": part, "more_body": hang_up or index < len(parts) - 1}
            for index, part in enumerate(parts)
        ]
        messages.append({"type": "http.disconnect"})

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(dict(message))

        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        async with asyncio.timeout(5):
            await self.middleware(scope, receive, send)  # type: ignore[arg-type]

    @property
    def length(self) -> bytes:
        return dict(self.scope["headers"])[b"content-length"]  # type: ignore[no-any-return]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(WorkerConfig(generation=3, classes=("chat",)).to_json())
    return path


async def test_the_header_goes_into_a_body_that_came_in_parts(config: Path) -> None:
    peer = Peer(config)
    await peer.post(b'{"prompt":', b'"x"}')
    assert json.loads(peer.body) == {"prompt": "x", "vllm_xargs": {"traffic_class": "chat"}}
    assert int(peer.length) == len(peer.body)
    assert (b"connection", b"close") not in peer.sent[0]["headers"]


@pytest.mark.parametrize("header", [None, b"Not A Class", b"\xff", b"x" * 40])
async def test_without_a_possible_class_every_byte_stays(config: Path, header: bytes | None) -> None:
    peer = Peer(config)
    await peer.post(b'{"prompt": "x"}', header=header)
    assert peer.body == b'{"prompt": "x"}'
    assert int(peer.length) == len(peer.body)


async def test_other_paths_are_left_alone(config: Path) -> None:
    peer = Peer(config)
    await peer.post(b'{"input": "x"}', path="/v1/embeddings")
    assert peer.body == b'{"input": "x"}'


async def test_a_client_that_leaves_while_sending_is_reported(config: Path) -> None:
    peer = Peer(config)
    await peer.post(b'{"prompt":', hang_up=True)
    assert peer.after["type"] == "http.disconnect"


async def test_a_class_that_is_not_ours_is_asked_to_reconnect(config: Path) -> None:
    peer = Peer(config)
    await peer.post(b"{}", header=b"code")
    assert (b"connection", b"close") in peer.sent[0]["headers"]
    assert json.loads(peer.body)["vllm_xargs"] == {"traffic_class": "code"}


async def test_while_draining_everybody_is_asked_to_reconnect(config: Path) -> None:
    config.write_text(WorkerConfig(generation=4, classes=("chat",), draining=True).to_json())
    peer = Peer(config)
    await peer.post(b"{}", header=None)
    assert (b"connection", b"close") in peer.sent[0]["headers"]


async def test_without_a_config_nobody_is_sent_away(tmp_path: Path) -> None:
    peer = Peer(tmp_path / "missing.json")
    await peer.post(b"{}", header=b"code")
    assert (b"connection", b"close") not in peer.sent[0]["headers"]
