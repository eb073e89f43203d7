"""Who is behind which Service, who is next, and where a body ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.router.balancer import Balancer
from evenflow_devcluster.router.endpoints import Endpoint, Frontend, build_table
from evenflow_devcluster.router.http1 import (
    ChunkScanner,
    Framing,
    Head,
    ProtocolError,
    request_framing,
    response_framing,
)

A, B, C = (Endpoint(f"127.77.0.{number}", 8000) for number in (1, 2, 3))


def service(name: str, address: str, **port: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"clusterIP": address, "ports": [{"port": 8000, "name": "http", **port}]},
    }


def endpoint_slice(name: str, owner: str, *endpoints: dict[str, Any], port: str = "http") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": owner}},
        "addressType": "IPv4",
        "ports": [{"name": port, "port": 8000}],
        "endpoints": list(endpoints),
    }


def test_the_table_joins_slices_and_leaves_out_what_is_not_ready() -> None:
    services = [service("a", "127.78.0.1"), service("headless", "None"), service("udp", "127.78.0.9", protocol="UDP")]
    slices = [
        endpoint_slice("a-1", "a", {"addresses": [B.address], "conditions": {"ready": True}}),
        endpoint_slice(
            "a-2", "a", {"addresses": [A.address]}, {"addresses": [C.address], "conditions": {"ready": False}}
        ),
        endpoint_slice("a-3", "a", {"addresses": [C.address]}, port="metrics"),
        endpoint_slice("b-1", "b", {"addresses": [C.address]}),
    ]
    assert build_table(services, slices) == {Frontend("127.78.0.1", 8000, "ns/a"): (A, B)}


def test_a_service_without_slices_has_no_endpoints() -> None:
    assert build_table([service("a", "127.78.0.1")], []) == {Frontend("127.78.0.1", 8000, "ns/a"): ()}


def test_the_least_busy_endpoint_is_next_and_ties_go_to_the_first() -> None:
    balancer = Balancer()
    with balancer.holding(A), balancer.holding(A), balancer.holding(B):
        assert balancer.choose([A, B, C]) == C
        assert balancer.choose([A, B, C], avoid={C}) == B
        assert balancer.choose([A], avoid={A}) is None
        with balancer.holding(C):
            assert [balancer.choose([A, B, C]) for _ in range(3)] == [B, B, B]
            assert balancer.choose([C, B, A]) == C
    assert balancer.outstanding(A) == balancer.outstanding(B) == 0
    assert balancer.choose([]) is None


@given(st.lists(st.sampled_from("+-"), max_size=200))
def test_counts_stay_level_over_all_endpoints(steps: list[str]) -> None:
    balancer = Balancer()
    held: list[Any] = []
    for step in steps:
        if step == "+":
            chosen = balancer.choose([A, B, C])
            assert chosen is not None
            holder = balancer.holding(chosen)
            holder.__enter__()
            held.append(holder)
            counts = [balancer.outstanding(endpoint) for endpoint in (A, B, C)]
            assert sum(counts) == len(held)
            assert balancer.outstanding(chosen) == min(counts) or balancer.outstanding(chosen) - 1 == min(counts)
        elif held:
            held.pop(0).__exit__(None, None, None)


def head(*lines: str) -> Head:
    return Head.parse("\r\n".join(lines).encode())


def test_what_belongs_to_a_connection_is_not_forwarded() -> None:
    request = head("POST / HTTP/1.1", "Host: x", "Connection: keep-alive, X-Secret", "X-Secret: 1", "TE: gzip", "A: b")
    assert (
        request.forwarded((b"connection", b"close"))
        == b"POST / HTTP/1.1\r\nhost: x\r\na: b\r\nconnection: close\r\n\r\n"
    )
    assert request.keeps_alive
    assert not head("GET / HTTP/1.1", "Connection: Close").keeps_alive
    assert not head("GET / HTTP/1.0").keeps_alive
    assert head("GET / HTTP/1.0", "Connection: keep-alive").keeps_alive


def test_framing() -> None:
    assert request_framing(head("GET / HTTP/1.1")) == Framing(length=0)
    assert request_framing(head("POST / HTTP/1.1", "Content-Length: 5")) == Framing(length=5)
    chunked = head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked")
    assert response_framing(chunked, b"GET") == Framing(chunked=True)
    assert response_framing(chunked, b"HEAD") == Framing(length=0)
    assert response_framing(head("HTTP/1.1 204 No Content"), b"GET") == Framing(length=0)
    assert response_framing(head("HTTP/1.1 200 OK"), b"GET").until_close


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: -5",),
        ("Transfer-Encoding: gzip, chunked",),
    ],
)
def test_a_body_with_two_possible_ends_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(ProtocolError):
        request_framing(head("POST / HTTP/1.1", *lines))


@pytest.mark.parametrize("line", ["no colon", " Leading: x", "Trailing : x"])
def test_malformed_header_lines_are_refused(line: str) -> None:
    with pytest.raises(ProtocolError):
        head("GET / HTTP/1.1", line)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_the_end_of_a_chunked_body_is_found_wherever_it_is_cut(chunks: list[bytes], data: st.DataObject) -> None:
    body = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nTrailer: x\r\n\r\n"
    stream = body + b"HTTP/1.1 next"
    scanner = ChunkScanner()
    position = 0
    while position < len(stream) and not scanner.done:
        step = data.draw(st.integers(1, len(stream) - position))
        position += scanner.feed(stream[position : position + step])
    assert scanner.done
    assert position == len(body)


@pytest.mark.parametrize("size", [b"-5", b"0x5", b"1_0", b"", b"zz"])
def test_a_malformed_chunk_size_is_refused(size: bytes) -> None:
    with pytest.raises(ProtocolError):
        ChunkScanner().feed(size + b"\r\n")
