"""What is wrong with a pool, one line per field."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """`path` is JSON-path-like (`spec.trafficClasses[0].name`); `message` says what was found and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class SpecError(ValueError):
    """A pool that can't be acted on. Carries every fault, not only the first."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors: tuple[FieldError, ...] = tuple(errors)
        super().__init__("; ".join(str(error) for error in self.errors))
