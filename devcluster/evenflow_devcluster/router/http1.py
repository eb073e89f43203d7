"""As much HTTP/1.1 as a proxy needs: heads, and where a body ends. Bodies themselves are passed on byte for byte."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

MAX_HEAD = 64 * 1024
_CHUNK = 256 * 1024
_MAX_CHUNK_LINE = 8 * 1024
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,12}")

# RFC 9110, 7.6.1: these belong to one connection, not to the message.
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"upgrade",
    )
)


class ProtocolError(Exception):
    """What came isn't HTTP/1.x as this proxy understands it."""


@dataclass(frozen=True, slots=True)
class Head:
    """Start line and headers; header names are lower case."""

    start: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def parse(cls, raw: bytes) -> "Head":
        start, *lines = raw.rstrip(b"\r\n").split(b"\r\n")
        headers = []
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise ProtocolError(f"malformed header line {line[:80]!r}")
            headers.append((name.lower(), value.strip()))
        return cls(start, tuple(headers))

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: bytes) -> set[bytes]:
        return {token.strip().lower() for value in self.values(name) for token in value.split(b",")}

    @property
    def method(self) -> bytes:
        return self.start.partition(b" ")[0]

    @property
    def status(self) -> int:
        try:
            return int(self.start.split(b" ", 2)[1])
        except (IndexError, ValueError):
            raise ProtocolError(f"malformed status line {self.start[:80]!r}") from None

    @property
    def is_http10(self) -> bool:
        return b"HTTP/1.0" in (self.start[:8], self.start[-8:])

    @property
    def keeps_alive(self) -> bool:
        """Whether its sender will use the connection again."""
        options = self.tokens(b"connection")
        return b"close" not in options and (not self.is_http10 or b"keep-alive" in options)

    def forwarded(self, *extra: tuple[bytes, bytes], drop: frozenset[bytes] = frozenset()) -> bytes:
        """The head as it goes on: without what concerned one connection only."""
        gone = _HOP_BY_HOP | drop | self.tokens(b"connection")
        kept = [(key, value) for key, value in self.headers if key not in gone]
        return b"\r\n".join([self.start, *(key + b": " + value for key, value in (*kept, *extra)), b"", b""])


@dataclass(frozen=True, slots=True)
class Framing:
    """How a body ends: after `length` bytes, after its last chunk, or with the connection when both are unset."""

    length: int | None = None
    chunked: bool = False

    @property
    def until_close(self) -> bool:
        return self.length is None and not self.chunked

    @classmethod
    def of(cls, head: Head) -> "Framing | None":
        """What the headers say; None when they say nothing. Raises ProtocolError when they contradict each other."""
        lengths = set(head.values(b"content-length"))
        encodings = head.tokens(b"transfer-encoding")
        if encodings:
            # Both at once, or an encoding we don't know: two readers might see two ends (request smuggling).
            if encodings != {b"chunked"} or lengths:
                raise ProtocolError("transfer-encoding must be chunked alone, without content-length")
            return cls(chunked=True)
        if not lengths:
            return None
        value = lengths.pop()
        if lengths or not value.isdigit():
            raise ProtocolError(f"content-length {value[:40]!r} isn't one whole number")
        return cls(length=int(value))


def request_framing(head: Head) -> Framing:
    return Framing.of(head) or Framing(length=0)


def response_framing(head: Head, method: bytes) -> Framing:
    if method == b"HEAD" or head.status in (204, 304) or head.status < 200:
        return Framing(length=0)
    return Framing.of(head) or Framing()


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None when the peer closed before the first byte. Raises ProtocolError or IncompleteReadError."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    except asyncio.LimitOverrunError:
        raise ProtocolError(f"head of more than {MAX_HEAD} bytes") from None
    if len(raw) > MAX_HEAD:
        raise ProtocolError(f"head of more than {MAX_HEAD} bytes")
    return Head.parse(raw)


async def body_pieces(reader: asyncio.StreamReader, framing: Framing) -> AsyncIterator[bytes]:
    """The body's bytes as they arrive, framing included. Raises IncompleteReadError when it ends too early."""
    if framing.length is not None:
        left = framing.length
        while left:
            data = await reader.read(min(left, _CHUNK))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            yield data
    elif framing.chunked:
        scanner = ChunkScanner()
        while not scanner.done:
            data = await reader.read(_CHUNK)
            if not data:
                raise asyncio.IncompleteReadError(b"", None)
            used = scanner.feed(data)
            if used < len(data):
                raise ProtocolError("bytes after the last chunk")
            yield data
    else:
        while data := await reader.read(_CHUNK):
            yield data


class ChunkScanner:
    """Finds the end of a chunked body in data cut anywhere, without taking it apart."""

    def __init__(self) -> None:
        self.done = False
        self._skip = 0
        self._line = b""
        self._trailer = False

    def feed(self, data: bytes) -> int:
        """Look at more data; returns how many of its bytes belong to the body."""
        position = 0
        size = len(data)
        while position < size and not self.done:
            if self._skip:
                step = min(self._skip, size - position)
                self._skip -= step
                position += step
                continue
            end = data.find(b"\n", position)
            stop = size if end < 0 else end + 1
            self._line += data[position:stop]
            position = stop
            if len(self._line) > _MAX_CHUNK_LINE:
                raise ProtocolError("chunk line too long")
            if end >= 0:
                line, self._line = self._line.strip(), b""
                self._on_line(line)
        return position

    def _on_line(self, line: bytes) -> None:
        if self._trailer:
            self.done = not line
            return
        size = line.partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(size):
            raise ProtocolError(f"malformed chunk size {line[:40]!r}")
        length = int(size, 16)
        if length:
            # The data and the line end after it.
            self._skip = length + 2
        else:
            self._trailer = True
