"""Readers of traces: what people's files look like, and what is refused."""

import gzip
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow_model.traces import (
    TraceError,
    TraceRequest,
    merge_traces,
    read_lengths,
    read_trace,
    scale_rate,
    take_slice,
    without_known_prefixes,
)

SHIPPED = Path(__file__).parents[2] / "examples" / "traces"
PLAIN = (TraceRequest(0.0, 20, 7), TraceRequest(2.5, 10, 5))
HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def write(path: Path, data: str | bytes) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", HEADER + "0,20,7\n2.5,10,5\n"),
        ("t.csv.gz", HEADER + "0,20,7\n2.5,10,5\n"),
        ("gzip-without-its-name.csv", gzip.compress((HEADER + "0,20,7\n2.5,10,5\n").encode())),
        ("bom.csv", "\ufeff" + HEADER + "0,20,7\n2.5,10,5\n"),
        ("utf16.csv", (HEADER + "0,20,7\n2.5,10,5\n").encode("utf-16")),
        ("crlf.csv", (HEADER + "0,20,7\n2.5,10,5\n").replace("\n", "\r\n")),
        ("no-last-newline.csv", HEADER + "0,20,7\n2.5,10,5"),
        ("blank-lines.csv", "\n" + HEADER + "\n0,20,7\n,,\n2.5,10,5\n\n"),
        ("other-order.csv", "output_tokens,arrival_s,x,prompt_tokens\n7,0,a,20\n5,2.5,b,10\n"),
        ("quoted.csv", '"arrival_s","prompt_tokens","output_tokens"\n"0","20","7"\n"2.5"," 10 ","5"\n'),
        ("spaces.csv", "arrival_s , prompt_tokens, output_tokens\n0, 20, 7\n2.5, 10, 5\n"),
        ("semicolons.csv", HEADER.replace(",", ";") + "0;20;7\n2.5;10;5\n"),
        ("tabs.tsv", HEADER.replace(",", "\t") + "0\t20\t7\n2.5\t10\t5\n"),
        ("unsorted.csv", HEADER + "2.5,10,5\n0,20,7\n"),
        ("pandas-floats.csv", HEADER + "0.0,20.0,7.0\n2.5,10.0,5.0\n"),
        ("milliseconds.csv", "arrival_ms,prompt_tokens,output_tokens\n0,20,7\n2500,10,5\n"),
        ("camel.csv", "arrivalTimeMs,promptTokens,outputTokens\n0,20,7\n2500,10,5\n"),
        (
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,20,7\n2023-11-16 18:15:49.1805900,10,5\n",
        ),
        (
            "zones.csv",
            "timestamp,input_tokens,output_tokens\n2024-05-01T10:00:00+02:00,20,7\n2024-05-01T08:00:02.5Z,10,5\n",
        ),
        ("epoch-s.csv", "timestamp,prompt_len,output_len\n1700000000,20,7\n1700000002.5,10,5\n"),
        ("epoch-ms.csv", "timestamp,prompt_len,output_len\n1700000000000,20,7\n1700000002500,10,5\n"),
        ("vidur.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,20,7\n2.5,10,5\n"),
        ("burstgpt.csv", "Timestamp,Model,Request tokens,Response tokens,Total tokens\n0,a,20,7,27\n2.5,b,10,5,15\n"),
        (
            "t.jsonl",
            '{"arrival_s":0,"prompt_tokens":20,"output_tokens":7}\n\n'
            '{"output_tokens":5,"prompt_tokens":10,"arrival_s":2.5}\n',
        ),
        (
            "mooncake.jsonl.gz",
            '{"timestamp":0,"input_length":20,"output_length":7,"hash_ids":[]}\n'
            '{"timestamp":2500,"input_length":10,"output_length":5,"hash_ids":[]}\n',
        ),
    ],
)  # fmt: skip
def test_files_as_people_have_them(tmp_path: Path, name: str, data: str | bytes) -> None:
    requests = read_trace(write(tmp_path / name, data)).requests
    assert [(r.prompt_tokens, r.output_tokens, r.traffic_class) for r in requests] == [
        (r.prompt_tokens, r.output_tokens, r.traffic_class) for r in PLAIN
    ]
    assert [r.arrival_s for r in requests] == pytest.approx([0.0, 2.5], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "arrival_s,prompt_tokens\n", "t.csv:1: column 'output_tokens' is missing"),
        ("t.csv", "", "t.csv:1: column 'arrival_s' is missing"),
        ("t.csv", HEADER + "0,1,1\n1,2\n", "t.csv:3: 2 fields, the header has 3"),
        ("t.csv", HEADER + "0,1,1\n\n1,2,3,4\n", "t.csv:4: 4 fields, the header has 3"),
        ("t.csv", HEADER + "nan,1,1\n", "t.csv:2: arrival_s is 'nan'"),
        ("t.csv", HEADER + "-1,1,1\n", "t.csv:2: arrival_s is '-1'"),
        ("t.csv", HEADER + "0,0,1\n", "t.csv:2: prompt_tokens is '0'"),
        ("t.csv", HEADER + "0,1,1.5\n", "t.csv:2: output_tokens is '1.5'"),
        ("t.csv", HEADER + "0,1,-3\n", "t.csv:2: output_tokens is '-3'"),
        ("t.csv", HEADER + "0,1,\n", "t.csv:2: output_tokens is ''"),
        ("t.csv", HEADER + "0,1,99999999999\n", "t.csv:2: output_tokens is '99999999999'"),
        ("t.csv", 'x,' + HEADER + '"a\nb",0,1,1\ny,0,1,z\n', "t.csv:4: output_tokens is 'z'"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\n0,1,1\n5,1,1\n", "declare the time unit"),
        ("t.csv", "timestamps,prompt_tokens,output_tokens\n0,1,1\n5,1,1\n", "declare the time unit"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\n1700000000,1,1\n5,1,1\n", "declare the time unit"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\nyesterday,1,1\n", "no number and no ISO time"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\n2024-01-01,1,1\nnever,1,1\n", "timestamp is 'never'"),
        ("t.csv", "arrival_s,input_tokens,prompt_len,output_tokens\n0,1,1,1\n", "'input_tokens' or 'prompt_len'"),
        ("t.jsonl", '{"arrival_s":0,"prompt_tokens":1,"output_tokens":1}\n[1]\n', "t.jsonl:2: found '[1]'"),
        ("t.jsonl", '{"arrival_s":0,"prompt_tokens":1,"output_tokens":1}\n{"a":\n', "t.jsonl:2: not a JSON object"),
        ("t.jsonl", '{"arrival_s":0,"prompt_tokens":1,"output_tokens":1}\n{}\n', "t.jsonl:2: arrival_s is None"),
        ("t.jsonl", '{"arrival_s":0,"prompt_tokens":true,"output_tokens":1}\n', "t.jsonl:1: prompt_tokens is True"),
        ("t.csv", "hash_ids," + HEADER + "1 2 3,0,512,1\n", "has 3 ids for a prompt of 512 tokens"),
        ("t.csv", "hash_ids," + HEADER + "1 1,0,1024,1\n", "has an id twice"),
        ("t.csv", "hash_ids," + HEADER + "1 x,0,1024,1\n", "must be a list of whole numbers"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path / name, text))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "data", [gzip.compress(b"a,b\n" * 1000)[:-20], b"\x1f\x8bnonsense", b"\xff\xfe\x00", b"a\xff,b\n"]
)
def test_what_cannot_be_read_is_said_to_be_so(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(TraceError, match=r"t\.csv"):
        read_trace(tmp_path / "t.csv")


def test_what_was_concluded_is_said(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:49,10,0\n2023-11-16 18:15:46,20,7\n"
    trace = read_trace(write(tmp_path / "t.csv", text))
    assert trace.requests == (TraceRequest(0.0, 20, 7), TraceRequest(3.0, 10, 1))
    notes = "; ".join(trace.notes)
    for words in ("'ContextTokens'", "'GeneratedTokens'", "UTC", "requests without output: 1", "t.csv:2", "sorted"):
        assert words in notes
    assert read_trace(write(tmp_path / "p.csv", HEADER + "0,1,1\n")).notes == ()


def test_units_and_columns_can_be_declared(tmp_path: Path) -> None:
    text = "when,in,out,kind\n0,20,7,chat\n2500,10,5,\n"
    columns = {"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out", "class": "kind"}
    trace = read_trace(write(tmp_path / "t.csv", text), columns=columns, time_unit="ms")
    assert trace.requests == (TraceRequest(0.0, 20, 7, "chat"), TraceRequest(2.5, 10, 5))
    assert trace.has_classes
    with pytest.raises(TraceError, match="'nope' is missing"):
        read_trace(tmp_path / "t.csv", columns={"class": "nope"})
    with pytest.raises(TraceError, match="'prompt' is no field"):
        read_trace(tmp_path / "t.csv", columns={"prompt": "in"})


def test_lengths_without_arrivals(tmp_path: Path) -> None:
    text = 'prompt_tokens,out_a,prompt\n3,5,x\n4,,"two\nlines"\n6,0,y\n'
    lengths = read_lengths(write(tmp_path / "t.csv", text), columns={"output_tokens": "out_a"})
    assert lengths.rows == ((3, 5), (6, 1))
    assert lengths.notes == (
        "1 rows without an output length are left out",
        "1 rows without output count as 1 output token",
    )


def test_the_shipped_traces() -> None:
    conversation = read_trace(SHIPPED / "mooncake_conversation.csv.gz")
    assert len(conversation.requests) == 12_031
    assert conversation.has_hashes
    assert conversation.requests[1].hash_ids[0] == 0
    assert all(len(r.hash_ids) == -(-r.prompt_tokens // 512) for r in conversation.requests)
    assert [len(read_trace(SHIPPED / f"azure2023_{name}.csv.gz").requests) for name in ("conv", "code")] == [
        19_366,
        8_819,
    ]


rows = st.lists(
    st.tuples(st.floats(0, 1e6), st.integers(1, 10**7), st.integers(1, 10**7), st.sampled_from(["chat", "a b", "x,y"])),
    max_size=30,
)


@settings(max_examples=60)
@given(rows, st.permutations(["arrival_s", "prompt_tokens", "output_tokens", "class"]), st.booleans(), st.booleans())
def test_what_is_written_is_read(tmp_path_factory, values, header, as_json, crlf) -> None:
    names = ("arrival_s", "prompt_tokens", "output_tokens", "class")
    records = [dict(zip(names, value, strict=True)) for value in values]
    end = "\r\n" if crlf else "\n"
    if as_json:
        lines = [json.dumps({name: record[name] for name in header}) for record in records]
        lines = lines or [json.dumps(dict.fromkeys(header, 1) | {"class": "c"})]
        records = records or [{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "class": "c"}]
    else:
        lines = [",".join(header)]
        lines += [
            ",".join(f'"{record[name]}"' if name == "class" else repr(record[name]) for name in header)
            for record in records
        ]
    path = tmp_path_factory.mktemp("traces") / ("t.jsonl" if as_json else "t.csv")
    path.write_bytes(end.join(lines).encode())
    expected = sorted(
        (TraceRequest(float(r["arrival_s"]), r["prompt_tokens"], r["output_tokens"], r["class"]) for r in records),
        key=lambda request: request.arrival_s,
    )
    assert read_trace(path).requests == tuple(expected)


@settings(max_examples=150)
@given(st.binary(max_size=200))
def test_garbage_is_refused_not_crashed_on(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "t.csv"
    for content in (data, HEADER.encode() + data, b'{"arrival_s": 0,' + data):
        path.write_bytes(content)
        try:
            read_trace(path)
        except TraceError:
            continue


def test_cutting_and_merging() -> None:
    first = (TraceRequest(0.0, 10, 5, "a"), TraceRequest(4.0, 90, 20, "a"))
    second = (TraceRequest(0.0, 1, 1, "b"), TraceRequest(1.0, 2, 2, "b"))
    assert [r.traffic_class for r in merge_traces(first, second)] == ["a", "b", "b", "a"]
    assert take_slice(first, seconds=4.0) == first[:1]
    assert take_slice(first, max_total_tokens=110) == first
    assert take_slice(first, max_total_tokens=109) == first[:1]
    assert [r.arrival_s for r in scale_rate(first, 2.0)] == [0.0, 2.0]
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="factor"):
            scale_rate([], factor)
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(merge_traces(first, second)))


def test_an_ideal_cache_leaves_what_nobody_had_before() -> None:
    requests = [
        TraceRequest(0.0, 1600, 5, hash_ids=(1, 2, 3, 4)),
        TraceRequest(1.0, 1536, 5, hash_ids=(1, 2, 3)),
        TraceRequest(2.0, 1100, 5, hash_ids=(1, 9, 4)),
        TraceRequest(3.0, 2048, 5, hash_ids=(7, 2, 3, 4)),
        TraceRequest(4.0, 2048, 5, hash_ids=(7, 2, 3, 4)),
    ]
    assert [one.prompt_tokens for one in without_known_prefixes(requests)] == [1600, 1, 588, 2048, 1]
