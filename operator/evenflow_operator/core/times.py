"""Points in time as the API writes them (RFC 3339, UTC) and as the operator computes with them (seconds)."""

from datetime import UTC, datetime

CLOCK_SKEW_SECONDS = 60.0
"""How far ahead of this operator's clock the beginning of a wait is believed: another one's clock wrote it."""


def rfc3339(seconds: float) -> str:
    """The time in whole seconds, for example `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: object) -> float | None:
    """Seconds since the epoch; None when there is no time or it can't be read."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
