"""Watches the worker config file, which the downward API mounts from the pod's annotation."""

import asyncio
import logging
import os
from pathlib import Path

from evenflow_contract.reading import MAX_DOCUMENT_BYTES
from evenflow_worker.control.settings import Applied, Outcome, Refused, Settings, Source

log = logging.getLogger(__name__)

_Signature = tuple[int, int, int, int]


class ConfigFile:
    """Polls `path` and applies what it holds.

    A missing or empty file (an annotation that isn't there yet) says nothing: at start that means generation 0, later
    the last good config stays.
    """

    def __init__(self, path: Path, settings: Settings, *, poll_seconds: float = 0.25) -> None:
        self._path = path
        self._settings = settings
        self._poll_seconds = poll_seconds
        self._seen: _Signature | None = None
        self._unreadable: str | None = None

    def poll(self) -> Outcome | None:
        """Apply the file if it changed since the last call; None if there is nothing new.

        The kubelet swaps a symlink above the file, so the target's inode is watched along with its time and size.
        """
        try:
            signature = self._signature()
            if signature == self._seen:
                return None
            with self._path.open("rb") as file:
                content = file.read(MAX_DOCUMENT_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            self._seen = None
            return None
        except OSError as error:
            self._warn_once(str(error))
            return None
        self._seen = signature
        self._unreadable = None
        if not content.strip():
            return None
        return self._report(self._settings.apply(content, Source.FILE))

    async def watch(self) -> None:
        """Poll for ever; cancel to stop."""
        while True:
            try:
                self.poll()
            except Exception:
                log.exception("config file %s: the watch goes on", self._path)
            await asyncio.sleep(self._poll_seconds)

    def _signature(self) -> _Signature:
        status = os.stat(self._path)
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def _report(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Applied):
            log.info("config generation %d applied from %s", outcome.generation, self._path)
        elif isinstance(outcome, Refused):
            log.error("config file %s refused, the last good one stays: %s", self._path, outcome.error)
        return outcome

    def _warn_once(self, problem: str) -> None:
        if problem != self._unreadable:
            self._unreadable = problem
            log.warning("config file %s cannot be read, the last good config stays: %s", self._path, problem)
