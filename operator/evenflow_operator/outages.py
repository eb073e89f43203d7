"""An outage of the API server in the log: one line when it begins and one when it is over.

kopf has a long line for each try of each of its watches, and a traceback for each watch that gives up.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from evenflow_operator.ports import ApiError

LOOK_SECONDS = 1.0
"""How often the API server is asked whether it is back."""
LONGEST_LINE = 300

_UNANSWERED = "unanswered"
_STARTING = "before all known HTTP paths have been installed"
_TRIED = re.compile(r"Request attempt #\S+ failed; .*? -> (?P<error>.*)", re.DOTALL)
_CAUSES = (
    (_STARTING, "it is starting"),
    ("ConnectionRefusedError", "connection refused"),
    ("ServerDisconnectedError", "connection closed"),
    ("ConnectionResetError", "connection reset"),
    ("Timeout", "no answer in time"),
    ("DNS", "its name can't be resolved"),
    ("gaierror", "its name can't be resolved"),
    ("Certificate", "its certificate isn't trusted"),
    ("ClientConnectorError", "no connection"),
    ("ClientOSError", "connection broken"),
    ("ClientConnectionError", "connection broken"),
)
"""Parts of an error's representation and what they mean; the first that is found counts."""

log = logging.getLogger(__name__)


class Outage(logging.Filter):
    """On the log's handler it makes one line of all that kopf says of an outage, and shortens what else kopf says.

    `filter` begins an outage, in any thread; only `look` ends it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.lasts = False

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, _UNANSWERED, False):
            return not self.lasts
        if record.name.partition(".")[0] != "kopf" or record.levelno < logging.WARNING:
            return True
        cause = _cause(record)
        if cause is None:
            _say(record, _short(record.getMessage()))
            return True
        with self._lock:
            begins, self.lasts = not self.lasts, True
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        _say(record, f"API server unreachable: {cause}; trying again")
        record.exc_info = record.exc_text = None
        return begins

    async def look(self, ask: Callable[[], Awaitable[object]]) -> None:
        """While an outage lasts, `ask` the API server until it answers; for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.lasts and await _answers(ask):
                with self._lock:
                    self.lasts = False
                log.info("API server is back")


def unless_outage(error: ApiError) -> Mapping[str, bool]:
    """`extra` of a record about this error: while an outage lasts, its line has said the same for all pools."""
    return {_UNANSWERED: error.status in (0, 503)}


async def _answers(ask: Callable[[], Awaitable[object]]) -> bool:
    try:
        await ask()
    except ApiError as error:
        return 0 < error.status < 500
    return True


def _cause(record: logging.LogRecord) -> str | None:
    """Why the API server could not be reached, if that is what the record is about."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        if not isinstance(error, aiohttp.ClientConnectionError | TimeoutError):
            return None
        text = f"{error!r} {error.__cause__!r}"
    else:
        tried = _TRIED.match(record.getMessage())
        if tried is None:
            return None
        text = tried["error"]
    return transport_cause(text)


def transport_cause(representation: str) -> str | None:
    """In a few words, why there was no answer; None if the error's representation says nothing that is known."""
    return next((meaning for part, meaning in _CAUSES if part in representation), None)


def _say(record: logging.LogRecord, message: str) -> None:
    record.msg, record.args = message, ()


def _short(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} …"
