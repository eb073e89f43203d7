"""Which running request loses its memory first.

vLLM evicts the last of its running list and serves the list from the front, so the order of that list is the whole
decision. Sorting is stable: requests that tie keep their order of admission.
"""

from collections.abc import Callable
from typing import TypeVar

from evenflow_contract.worker_config import Victim

R = TypeVar("R")


def sort_running(
    running: list[R], victim: Victim, *, volume: Callable[[R], float], progress: Callable[[R], int]
) -> None:
    """Sort in place so that the victim comes last.

    LargestVolume: ascending predicted volume (token-iterations; must not be NaN). LeastProgress: descending number of
    output tokens, the order of the congestion paper's model.
    """
    if victim == "LargestVolume":
        running.sort(key=volume)
    else:
        running.sort(key=progress, reverse=True)
