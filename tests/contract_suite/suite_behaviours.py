"""Names for what the suite proves. A test carries `@behaviour("name", "one sentence")`; the names make a table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

ATTRIBUTE = "kubernetes_behaviour"

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Behaviour:
    name: str
    sentence: str


def behaviour(name: str, sentence: str) -> Callable[[Test], Test]:
    """Say which behaviour of Kubernetes a test proves; names are unique in the suite (the table checks it)."""

    def mark(test: Test) -> Test:
        setattr(test, ATTRIBUTE, Behaviour(name, sentence))
        return test

    return mark
