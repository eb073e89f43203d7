"""Puts one string into a JSON document and leaves every other byte as it was."""

import json
import re
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]

# Runs in the server's event loop: megabytes of white space must not take a step of Python for each byte.
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = JSONDecoder()


def set_nested_string(body: bytes, outer: str, inner: str, value: str) -> bytes:
    """`body` with body[outer][inner] = value; `outer` is made if it is missing or null.

    The body comes back unchanged if it is no JSON object, or if `outer` is something else than an object: then the
    server's own validation has to answer. Of keys that occur twice the last counts, as it does for parsers.
    """
    try:
        text = body.decode("utf-8")
        start = _skip(text, 0)
        members = _members(text, start)
        found = members.get(outer)
        if found is None:
            edited = _insert(text, start, not members, outer, json.dumps({inner: value}))
        elif text[found[0]] == "{":
            within = _members(text, found[0])
            span = within.get(inner)
            if span is None:
                edited = _insert(text, found[0], not within, inner, json.dumps(value))
            else:
                edited = text[: span[0]] + json.dumps(value) + text[span[1] :]
        elif text[found[0] : found[1]] == "null":
            edited = text[: found[0]] + json.dumps({inner: value}) + text[found[1] :]
        else:
            return body
        return edited.encode("utf-8")
    except (ValueError, IndexError, RecursionError):
        return body


def _insert(text: str, brace: int, empty: bool, key: str, value: str) -> str:
    return text[: brace + 1] + json.dumps(key) + ": " + value + ("" if empty else ", ") + text[brace + 1 :]


def _members(text: str, brace: int) -> dict[str, tuple[int, int]]:
    """Where the values of the object at `brace` begin and end. Raises ValueError or IndexError if it is malformed."""
    if text[brace] != "{":
        raise ValueError("not an object")
    members: dict[str, tuple[int, int]] = {}
    at = _skip(text, brace + 1)
    if text[at] == "}":
        return members
    while True:
        if text[at] != '"':
            raise ValueError("a key must be a string")
        key, at = scanstring(text, at + 1, True)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError("a colon must follow the key")
        begin = _skip(text, at + 1)
        _, end = _DECODER.raw_decode(text, begin)
        members[key] = (begin, end)
        at = _skip(text, end)
        if text[at] == "}":
            return members
        if text[at] != ",":
            raise ValueError("a comma must follow the value")
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
