"""Container logs: bounded files of `<RFC 3339 time> <line>`, and reading them as `kubectl logs` asks."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

_MAX_LINE = 64 * 1024
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What a reader wants; None means no limit. `since` is a point in time."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: datetime | None = None


class LogFile:
    """Where one run of one container writes: two files of at most `max_bytes` each, the current and the one before."""

    def __init__(self, path: Path, now: Callable[[], datetime], *, max_bytes: int = 8 * 2**20) -> None:
        self.path = path
        self._now = now
        self._max_bytes = max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()
        self.closed = False

    def write(self, lines: list[bytes]) -> None:
        stamp = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z").encode()
        data = b"".join(stamp + b" " + line + b"\n" for line in lines)
        if self._size + len(data) > self._max_bytes and self._size:
            self._file.close()
            self.path.replace(_older(self.path))
            self._file = self.path.open("ab", buffering=0)
            self._size = 0
        self._file.write(data)
        self._size += len(data)

    def close(self) -> None:
        self.closed = True
        self._file.close()


async def pump(reader: asyncio.StreamReader, log: LogFile) -> None:
    """Copy a process's output to its log, line by line; over-long lines are cut into pieces."""
    pending = b""
    while data := await reader.read(_MAX_LINE):
        *lines, pending = (pending + data).split(b"\n")
        if len(pending) > _MAX_LINE:
            lines.append(pending)
            pending = b""
        if lines:
            log.write(lines)
    if pending:
        log.write([pending])


def drop_logs(path: Path) -> None:
    """Remove the log of one run: only two are kept for each container, so that a crash loop fills no disk."""
    for file in (path, _older(path)):
        file.unlink(missing_ok=True)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


async def read_log(path: Path, query: LogQuery, is_open: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log's lines as one reader wants them; with `follow`, until `is_open` says that the container has ended."""
    left = query.limit_bytes
    lines: deque[bytes] = deque(maxlen=query.tail_lines)
    older = _older(path)
    lines.extend(_more(older, 0, None)[0])
    fresh, position, inode = _more(path, 0, None)
    lines.extend(fresh)
    batch = [line for line in lines if _wanted(line, query)]
    while True:
        for line in batch:
            shown = line if query.timestamps else line.partition(b" ")[2]
            if left is not None:
                shown = shown[:left]
                left -= len(shown)
            if shown:
                yield shown
            if left == 0:
                return
        if not query.follow:
            return
        was_open = is_open()
        batch, position, inode = _more(path, position, inode)
        if not batch:
            if not was_open:
                return
            await asyncio.sleep(_POLL_SECONDS)


def _more(path: Path, position: int, inode: int | None) -> tuple[list[bytes], int, int | None]:
    """Lines written since; across a rotation, first the rest of the file that was moved away."""
    lines: list[bytes] = []
    try:
        with path.open("rb") as file:
            now = os.fstat(file.fileno()).st_ino
            if now == inode and os.fstat(file.fileno()).st_size < position:
                # Rotated twice since, and the new file was given the number of the first.
                position = 0
            if inode is not None and now != inode:
                older = _older(path)
                if older.exists() and older.stat().st_ino == inode:
                    with older.open("rb") as rest:
                        rest.seek(position)
                        lines.extend(rest.read().splitlines(keepends=True))
                position = 0
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return lines, position, inode
    complete = data.rfind(b"\n") + 1
    lines.extend(data[:complete].splitlines(keepends=True))
    return lines, position + complete, now


def _wanted(line: bytes, query: LogQuery) -> bool:
    if query.since is None:
        return True
    stamp = line.partition(b" ")[0].decode(errors="replace").replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(stamp) >= query.since
    except ValueError:
        return True


def since_seconds(now: datetime, seconds: int) -> datetime:
    return now - timedelta(seconds=seconds)
