"""An outage of the API server in the log: one line when it begins and one when it is over; a missing permission: one.

kopf has a long line for each try of each of its watches, and a traceback for each watch that gives up.
"""

import asyncio
import logging
import math
import re
import threading
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from evenflow_operator.ports import ApiError

LOOK_SECONDS = 1.0
"""How often the API server is asked whether it is back."""
LONGEST_LINE = 300
REFUSED_AGAIN_SECONDS = 600.0
"""After so long a permission that is still missing is told again."""
MAX_REFUSALS = 100

_UNANSWERED = "unanswered"
_STARTING = "before all known HTTP paths have been installed"
_TRIED = re.compile(r"Request attempt #\S+ failed; .*? -> (?P<error>.*)", re.DOTALL)
_FORBIDDEN = re.compile(r"APIForbiddenError\((?P<quote>['\"])(?P<said>.*?)(?P=quote),", re.DOTALL)
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
        self._refusals: dict[str, float] = {}
        """When each was told last."""
        self.lasts = False

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, _UNANSWERED, False):
            return not self.lasts
        package = record.name.partition(".")[0]
        if package not in ("kopf", "asyncio") or record.levelno < logging.WARNING:
            return True
        # asyncio tells what became of kopf's tasks.
        refusal = _refusal(record)
        if refusal is not None:
            _say(record, f"a permission is missing: {refusal}; docs/kubernetes.md §8 lists what the operator needs")
            record.exc_info = record.exc_text = None
            return self._is_news(refusal, record.created)
        if package != "kopf":
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

    def _is_news(self, refusal: str, now: float) -> bool:
        with self._lock:
            if now - self._refusals.get(refusal, -math.inf) < REFUSED_AGAIN_SECONDS:
                return False
            if len(self._refusals) >= MAX_REFUSALS:
                self._refusals.clear()
            self._refusals[refusal] = now
            return True

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


def _refusal(record: logging.LogRecord) -> str | None:
    """What the API server forbade, in its own words, if that is what the record is about."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        return str(error.args[0]) if getattr(error, "status", None) == 403 and error.args else None
    tried = _TRIED.match(record.getMessage())
    forbidden = None if tried is None else _FORBIDDEN.match(tried["error"])
    return None if forbidden is None else forbidden["said"]


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
