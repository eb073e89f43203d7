"""Who makes a request, and how strictly its body is read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Validation = Literal["Strict", "Warn", "Ignore"]


def ignore(_: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who writes, and how strictly. `warn` is told what the answer's Warning headers should say."""

    manager: str
    dry_run: bool = False
    validation: Validation = "Warn"
    force: bool = False
    warn: Callable[[str], None] = ignore
