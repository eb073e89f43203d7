"""The protobuf bodies that kubectl's typed clients send."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.http.protobuf import read_protobuf


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")


def test_a_config_map() -> None:
    entry = field(1, "key") + field(2, "value")
    meta = field(1, "m") + field(3, "") + field(11, field(1, "a") + field(2, "b")) + field(8, b"")
    read = read_protobuf(
        body("v1", "ConfigMap", field(1, meta) + field(2, entry) + field(3, field(1, "b") + field(2, b"\x00")))
    )
    assert read == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", "labels": {"a": "b"}},
        "data": {"key": "value"},
        "binaryData": {"b": "AA=="},
    }


def test_an_eviction_keeps_an_explicit_zero_grace() -> None:
    options = field(1, 0) + field(2, field(1, "u")) + field(5, "All")
    read = read_protobuf(body("policy/v1", "Eviction", field(1, field(1, "p")) + field(2, options)))
    assert read["deleteOptions"] == {"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "dryRun": ["All"]}


def test_a_service_with_named_and_numbered_ports() -> None:
    number = field(3, 80) + field(4, field(1, 0) + field(2, 8080) + field(3, ""))
    named = field(3, 81) + field(4, field(1, 1) + field(2, 0) + field(3, "http"))
    read = read_protobuf(body("v1", "Service", field(2, field(1, number) + field(1, named))))
    assert read["spec"]["ports"] == [{"port": 80, "targetPort": 8080}, {"port": 81, "targetPort": "http"}]


def test_a_negative_number() -> None:
    assert read_protobuf(body("v1", "DeleteOptions", field(1, -1)))["gracePeriodSeconds"] == -1


def test_other_kinds_are_415_naming_them() -> None:
    with pytest.raises(StatusError, match="of Pod") as caught:
        read_protobuf(body("v1", "Pod", b""))
    assert caught.value.code == 415


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for sent in (data, b"k8s\x00" + data, body("v1", "Namespace", data)):
        with contextlib.suppress(StatusError):
            assert isinstance(read_protobuf(sent), dict)
