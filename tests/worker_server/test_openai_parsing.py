"""What a request body means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_worker.simulated.openai import MAX_CHOICES, ApiError, parse_request


def completion(**body):
    return parse_request("completion", json.dumps({"prompt": "hello", **body}).encode())


def chat(**body):
    messages = [{"role": "user", "content": "12345678"}]
    return parse_request("chat", json.dumps({"messages": messages, **body}).encode())


@pytest.mark.parametrize(
    ("prompt", "lengths"),
    [
        ("x", (1,)),
        ("x" * 4, (1,)),
        ("x" * 4096, (1024,)),
        ("x" * 4097, (1025,)),
        ([5, 6, 7], (3,)),
        ([[5, 6, 7], [8]], (3, 1)),
        (["abcd", "abcde"], (1, 2)),
        (["abcd", [1, 2]], (1, 2)),
        (list(range(65_536)), (65_536,)),
    ],
)
def test_prompts(prompt, lengths):
    assert completion(prompt=prompt).prompts == lengths


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        (7, "prompt"),
        ({"a": 1}, "prompt"),
        ([1, "x"], "prompt[1]"),
        ([1, 2, -3], "prompt[2]"),
        ([1, 2.5], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([[1], []], "prompt[1]"),
        (["x", ""], "prompt[1]"),
        ([True], "prompt[0]"),
        (["x"] * (MAX_CHOICES + 1), "prompt"),
    ],
)
def test_bad_prompts_name_their_field(prompt, field):
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)
    assert caught.value.status == 400
    assert caught.value.param == field
    assert caught.value.document()["error"]["code"] == 400


def test_messages():
    assert chat().prompts == (4 + 2,)
    parts = [{"type": "text", "text": "1234"}, {"type": "text", "text": "5"}]
    messages = [{"role": "system", "content": parts}, {"role": "assistant", "content": None, "tool_calls": []}]
    assert chat(messages=messages).prompts == (4 + 2 + 4,)


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
    ],
)
def test_bad_messages_name_their_field(messages, field):
    with pytest.raises(ApiError) as caught:
        chat(messages=messages)
    assert caught.value.param == field


NULLABLE = (
    "model", "n", "max_tokens", "min_tokens", "ignore_eos", "stream", "stream_options", "stop", "vllm_xargs",
    "logprobs", "echo", "temperature", "user",
)  # fmt: skip


def test_null_is_absent():
    assert completion(**dict.fromkeys(NULLABLE)) == completion()
    assert chat(**dict.fromkeys((*NULLABLE, "max_completion_tokens"))) == chat()
    assert completion(stream_options={"include_usage": None}, vllm_xargs={"traffic_class": None}) == completion()


def test_options():
    request = chat(
        model="m",
        n=3,
        max_tokens=9,
        max_completion_tokens=50,
        min_tokens=4,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
        stop=["\n"],
        vllm_xargs={"traffic_class": "chat", "simulated_output_tokens": 12, "other": 1.5},
        something_new={"a": 1},
    )
    assert (request.model, request.n, request.max_tokens, request.min_tokens) == ("m", 3, 50, 4)
    assert request.ignore_eos
    assert request.stream
    assert request.include_usage
    assert (request.traffic_class, request.simulated_output_tokens) == ("chat", 12)
    assert completion(max_tokens=9, max_completion_tokens=50).max_tokens == 9


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 10**9}, "n"),
        ({"prompt": ["x"] * 600, "n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"vllm_xargs": []}, "vllm_xargs"),
        ({"vllm_xargs": {"simulated_output_tokens": 0}}, "vllm_xargs.simulated_output_tokens"),
        ({"vllm_xargs": {"traffic_class": 7}}, "vllm_xargs.traffic_class"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"echo": True}, "echo"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_bad_options_name_their_field(body, field):
    with pytest.raises(ApiError) as caught:
        completion(**body)
    assert caught.value.status == 400
    assert caught.value.param == field


def test_harmless_forms_of_what_is_not_supported():
    assert chat(logprobs=False, top_logprobs=0, echo=False) == chat()


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"x"', b"{", b"\xff", b'{"prompt": NaN}', b"[" * 100_000])
def test_what_is_no_object_is_400(body):
    with pytest.raises(ApiError) as caught:
        parse_request("completion", body)
    assert caught.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(("prompt", "messages", "max_completion_tokens", "min_tokens", *NULLABLE))


@given(st.dictionaries(FIELDS, JSON, max_size=6), st.sampled_from(("completion", "chat")))
def test_no_body_raises_anything_else(body, kind):
    request, problem = None, None
    try:
        request = parse_request(kind, json.dumps(body).encode())
    except ApiError as error:
        problem = error
    if request is None:
        assert problem.status == 400
        assert len(str(problem)) < 1000
    else:
        assert request.choices >= 1
        assert all(length >= 1 for length in request.prompts)
