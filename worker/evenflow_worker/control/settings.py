"""The applied worker config and the rule by which documents replace it (docs/design.md §6.2)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from evenflow_contract.errors import ContractError
from evenflow_contract.worker_config import WorkerConfig


class Source(Enum):
    """Where a document came from. FILE is the pod annotation, the only truth; PUSH is the admin API."""

    FILE = "file"
    PUSH = "push"


@dataclass(frozen=True, slots=True)
class Applied:
    """The document is in force now."""

    generation: int


@dataclass(frozen=True, slots=True)
class SameAlready:
    """The document was in force already; nothing was touched."""

    generation: int


@dataclass(frozen=True, slots=True)
class StaleGeneration:
    """The document is older than the applied one, or contradicts it under the same generation."""

    generation: int
    config_hash: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The document is malformed, or asks for what this engine cannot do; the last good one stays."""

    error: ContractError


Outcome = Applied | SameAlready | StaleGeneration | Refused


class Settings:
    """Holds the last good config; `sink` hands a new one to the engine and may refuse it with a ContractError.

    Not locked: file watch and admin API of one engine run in the same event loop. Readers in other threads may read
    `config` at any time, it is replaced in one assignment.
    """

    def __init__(self, sink: Callable[[WorkerConfig], None], initial: WorkerConfig | None = None) -> None:
        self._sink = sink
        self._config = initial or WorkerConfig()
        self._hash = self._config.content_hash()
        self._refused = 0

    @property
    def config(self) -> WorkerConfig:
        return self._config

    @property
    def config_hash(self) -> str:
        return self._hash

    @property
    def refused_total(self) -> int:
        """Documents refused so far."""
        return self._refused

    def apply(self, document: str | bytes | Mapping[str, Any], source: Source) -> Outcome:
        """Put a document in force if it is newer. Equal generations with other content are a conflict, which only the
        file wins: the annotation is the truth, a push is its messenger."""
        try:
            config = WorkerConfig.parse(document)
        except ContractError as error:
            return self._refuse(error)
        new_hash = config.content_hash()
        if new_hash == self._hash:
            return SameAlready(config.generation)
        current = self._config.generation
        if config.generation < current or (config.generation == current and source is Source.PUSH):
            return StaleGeneration(current, self._hash)
        try:
            self._sink(config)
        except ContractError as error:
            return self._refuse(error)
        self._config, self._hash = config, new_hash
        return Applied(config.generation)

    def _refuse(self, error: ContractError) -> Refused:
        self._refused += 1
        return Refused(error)
