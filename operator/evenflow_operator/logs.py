"""Logging of the operator's process: one line per record, plain or JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

from evenflow_operator.settings import LogFormat

_NOISY = {
    "kopf": logging.WARNING,
    # It says that signals are ignored in a thread, as they should be.
    "kopf._core.reactor.running": logging.ERROR,
    "aiohttp": logging.WARNING,
    "asyncio": logging.WARNING,
    "urllib3": logging.WARNING,
}


_CONTROL = {code: repr(chr(code))[1:-1] for code in (*range(32), 127)}


class PlainFormatter(logging.Formatter):
    """A message quotes annotations and answers of others: whatever stands in them, it stays on its line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_CONTROL)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(log_format: LogFormat, level: str, *filters: logging.Filter) -> None:
    """Replace the root logger's handlers; libraries speak up from WARNING on, unless the level is DEBUG."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    for one in filters:
        handler.addFilter(one)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, floor in _NOISY.items():
        logging.getLogger(name).setLevel(logging.NOTSET if level == "DEBUG" else floor)
