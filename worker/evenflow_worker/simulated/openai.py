"""OpenAI requests in, OpenAI answers out: what vLLM's server accepts, as far as an engine without a model can answer.

Text is not tokenised: four characters count as one token, and a generated token is four characters.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evenflow_contract.environment import TRAFFIC_CLASS_ARG
from evenflow_contract.errors import ContractError
from evenflow_contract.reading import ObjectReader, parse_json, shown

MAX_BODY_BYTES = 8 * 2**20
MAX_CHOICES = 1024
"""Prompts × n of one request."""
CHARACTERS_PER_TOKEN = 4
MESSAGE_OVERHEAD_TOKENS = 4
TOKEN_TEXT = " tok"
SIMULATED_OUTPUT_ARG = "simulated_output_tokens"
"""Key in `vllm_xargs`: where the output stops by itself. The engine's scheduler doesn't see it."""

_MAX_TOKENS = 10_000_000
_MAX_STRING = 4096

Kind = Literal["completion", "chat"]


class ApiError(Exception):
    """An answer other than 200, in OpenAI's shape."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def document(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One checked request. `prompts` holds the length of each prompt in tokens; None is "not given"."""

    kind: Kind
    model: str | None
    prompts: tuple[int, ...]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    simulated_output_tokens: int | None = None
    traffic_class: str | None = None

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n


def parse_request(kind: Kind, body: bytes) -> ApiRequest:
    """Read a request body; fields that are null count as absent, unknown ones are ignored, as in vLLM.

    Raises ApiError (400) naming the field, what was found and the remedy.
    """
    try:
        return _parse(kind, ObjectReader(parse_json(body, max_bytes=MAX_BODY_BYTES)))
    except ContractError as error:
        raise ApiError(400, str(error), param=error.field) from error


def _parse(kind: Kind, reader: ObjectReader) -> ApiRequest:
    _refuse_unsupported(reader)
    extra = reader.take("vllm_xargs", {})
    arguments = ObjectReader(extra, "vllm_xargs")
    options = ObjectReader(reader.take("stream_options", {}), "stream_options")
    request = ApiRequest(
        kind=kind,
        model=reader.string("model", None, max_length=_MAX_STRING),
        prompts=_prompts(reader.take("prompt")) if kind == "completion" else (_messages(reader.take("messages")),),
        n=reader.integer("n", 1, low=1, high=MAX_CHOICES),
        max_tokens=_max_tokens(kind, reader),
        min_tokens=reader.integer("min_tokens", 0, high=_MAX_TOKENS),
        ignore_eos=reader.boolean("ignore_eos", False),
        stream=reader.boolean("stream", False),
        include_usage=options.boolean("include_usage", False),
        simulated_output_tokens=arguments.integer(SIMULATED_OUTPUT_ARG, None, low=1, high=_MAX_TOKENS),
        traffic_class=arguments.string(TRAFFIC_CLASS_ARG, None, max_length=_MAX_STRING),
    )
    if request.choices > MAX_CHOICES:
        raise ContractError("n", f"{request.choices} choices", f"at most {MAX_CHOICES} prompts × n in one request")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise ContractError("min_tokens", str(request.min_tokens), f"must not exceed max_tokens ({request.max_tokens})")
    return request


def _max_tokens(kind: Kind, reader: ObjectReader) -> int | None:
    plain: int | None = reader.integer("max_tokens", None, low=1, high=_MAX_TOKENS)
    if kind == "completion":
        return plain
    newer: int | None = reader.integer("max_completion_tokens", None, low=1, high=_MAX_TOKENS)
    return plain if newer is None else newer


def _refuse_unsupported(reader: ObjectReader) -> None:
    """What would need a model or its text: refused by name rather than answered wrongly."""
    for field in ("echo", "logprobs", "top_logprobs", "prompt_logprobs", "prompt_embeds", "use_beam_search"):
        value = reader.take(field, None)
        if value is not None and value is not False and not (field == "top_logprobs" and value == 0):
            raise ContractError(field, shown(value), "not supported by the simulated engine: leave it out")


def _prompts(value: object) -> tuple[int, ...]:
    """Lengths of a completion's prompts: text, token ids, or a list of either."""
    if isinstance(value, str):
        return (_text_tokens(value, "prompt"),)
    if not isinstance(value, list) or not value:
        raise ContractError("prompt", shown(value), "must be text, token ids, or a non-empty list of either")
    if type(value[0]) is int:
        return (_token_ids(value, "prompt"),)
    if len(value) > MAX_CHOICES:
        raise ContractError("prompt", f"{len(value)} prompts", f"send at most {MAX_CHOICES} in one request")
    return tuple(_one_prompt(item, f"prompt[{index}]") for index, item in enumerate(value))


def _one_prompt(value: object, path: str) -> int:
    if isinstance(value, str):
        return _text_tokens(value, path)
    if isinstance(value, list) and value:
        return _token_ids(value, path)
    raise ContractError(path, shown(value), "must be text or a non-empty list of token ids")


def _text_tokens(text: str, path: str) -> int:
    if not text:
        raise ContractError(path, "empty", "a prompt needs at least one token")
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _token_ids(values: list[Any], path: str) -> int:
    # Sets and minima are built in C: prompts have up to a hundred thousand ids.
    if set(map(type, values)) != {int} or min(values) < 0:
        wrong = next(i for i, item in enumerate(values) if type(item) is not int or item < 0)
        raise ContractError(f"{path}[{wrong}]", shown(values[wrong]), "token ids are integers from 0 up")
    return len(values)


def _messages(value: object) -> int:
    if not isinstance(value, list) or not value:
        raise ContractError("messages", shown(value), "must be a non-empty list of messages")
    total = 0
    for index, item in enumerate(value):
        path = f"messages[{index}]"
        message = ObjectReader(item, path)
        message.string("role", max_length=64)
        total += MESSAGE_OVERHEAD_TOKENS + -(-_content_characters(message.take("content", ""), path) // 4)
    return total


def _content_characters(content: object, path: str) -> int:
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        raise ContractError(f"{path}.content", shown(content), "must be text or a list of text parts")
    total = 0
    for index, item in enumerate(content):
        part = ObjectReader(item, f"{path}.content[{index}]")
        part.choice("type", ("text",))
        total += len(part.string("text", max_length=MAX_BODY_BYTES))
    return total


@dataclass(frozen=True, slots=True)
class Answer:
    """Builds the documents of one answer. `created` is wall time in seconds since the epoch."""

    kind: Kind
    response_id: str
    model: str
    created: int

    def whole(self, choices: Sequence[tuple[int, str]], usage: Mapping[str, int]) -> dict[str, Any]:
        """A non-streamed answer; a choice is its tokens and its finish reason."""
        built: list[dict[str, Any]] = []
        for index, (tokens, reason) in enumerate(choices):
            choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason, "stop_reason": None}
            text = TOKEN_TEXT * tokens
            if self.kind == "chat":
                choice["message"] = {"role": "assistant", "content": text, "tool_calls": []}
            else:
                choice["text"] = text
            built.append(choice)
        return {**self._head(streamed=False), "choices": built, "usage": dict(usage)}

    def role(self, index: int) -> dict[str, Any]:
        """The first chunk of a streamed chat choice."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return {**self._head(streamed=True), "choices": [choice]}

    def chunk(self, index: int, tokens: int, reason: str | None) -> dict[str, Any]:
        """`tokens` more tokens of a choice; `reason` with the last."""
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        text = TOKEN_TEXT * tokens
        if self.kind == "chat":
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        return {**self._head(streamed=True), "choices": [choice]}

    def tail(self) -> dict[str, Any]:
        """A chunk without choices, for usage or timings."""
        return {**self._head(streamed=True), "choices": []}

    def _head(self, *, streamed: bool) -> dict[str, Any]:
        if self.kind == "completion":
            name = "text_completion"
        else:
            name = "chat.completion.chunk" if streamed else "chat.completion"
        return {"id": self.response_id, "object": name, "created": self.created, "model": self.model}


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def event(document: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
