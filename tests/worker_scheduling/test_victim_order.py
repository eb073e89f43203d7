from dataclasses import dataclass
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from evenflow_worker.scheduling import eviction_possible, sort_running


@dataclass
class Running:
    name: str
    volume: float
    progress: int


def order(running: list[Running], victim: str) -> list[str]:
    sort_running(running, victim, volume=attrgetter("volume"), progress=attrgetter("progress"))
    return [one.name for one in running]


def test_the_victim_comes_last_and_ties_keep_their_order():
    running = [Running("a", 9.0, 3), Running("b", 2.0, 7), Running("c", 9.0, 3), Running("d", 5.0, 0)]
    assert order(list(running), "LargestVolume") == ["b", "d", "a", "c"]
    assert order(list(running), "LeastProgress") == ["b", "a", "c", "d"]


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=30), st.integers(1, 32), st.integers(1, 500)
)
def test_evictions_only_happen_where_they_are_possible(sequences, block, budget):
    """Whatever the budget is spent on: blocks needed never exceed the bound."""
    needed, left = 0, budget
    for computed, pending in sequences:
        new = min(pending, left)
        left -= new
        needed += -(-(computed + new) // block) - -(-computed // block)
    bound = len(sequences) + budget // block
    shape = {"running": len(sequences), "token_budget": budget, "block_size": block}
    assert needed <= bound
    assert not eviction_possible(free_blocks=bound, **shape)
    assert needed == 0 or eviction_possible(free_blocks=needed - 1, **shape)
