import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_worker.scheduling import WaitingQueue

metrics = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 1.0, 2.0, math.inf]))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), metrics),
        st.tuples(st.just("rekey"), st.integers(0, 30), metrics),
        st.tuples(st.just("remove"), st.integers(0, 30), st.none()),
        st.tuples(st.just("pop"), st.none(), st.none()),
        st.tuples(st.just("rekey_all"), st.integers(0, 3), st.none()),
    ),
    max_size=200,
)


@given(operations)
def test_queue_behaves_like_a_sorted_list(steps):
    queue: WaitingQueue[str] = WaitingQueue()
    model: dict[str, tuple[float, float, int]] = {}
    for sequence, (name, number, metric) in enumerate(steps):
        item = f"r{number}"
        if name == "add" and item not in model:
            model[item] = (metric, 0.0, sequence)
            queue.add(item, model[item])
        elif name == "add":
            with pytest.raises(ValueError, match="already"):
                queue.add(item, (0.0, 0.0, 0))
        elif name == "rekey" and item in model:
            model[item] = (metric, 0.0, sequence)
            queue.rekey(item, model[item])
        elif name == "remove" and item in model:
            del model[item]
            queue.remove(item)
        elif name in ("remove", "rekey"):
            with pytest.raises(KeyError):
                queue.remove(item) if name == "remove" else queue.rekey(item, (0.0, 0.0, 0))
        elif name == "rekey_all":
            for item, key in model.items():
                model[item] = (key[0] if key[0] == math.inf else key[0] * number, key[1], key[2])
            queue.rekey_all(model.__getitem__)
        elif name == "pop" and model:
            expected = min(model, key=lambda item: model[item])
            assert queue.peek() == expected
            assert queue.pop() == expected
            del model[expected]
        elif name == "pop":
            with pytest.raises(IndexError):
                queue.pop()
        assert len(queue) == len(model)
        assert bool(queue) == bool(model)
    assert list(queue) == sorted(model, key=lambda item: model[item])
    assert all(queue.key(item) == key for item, key in model.items())


def test_equal_keys_keep_the_order_of_adding():
    queue: WaitingQueue[object] = WaitingQueue()
    items = [object() for _ in range(50)]  # not comparable: a comparison that reached them would raise
    for item in items:
        queue.add(item, (1.0, 0.0, 0))
    assert list(queue) == items
    assert [queue.pop() for _ in items] == items


def test_a_key_that_comes_back_is_not_mistaken_for_its_dead_entry():
    queue: WaitingQueue[str] = WaitingQueue()
    for item in ("a", "b"):
        queue.add(item, (1.0, 0.0, 0))
    queue.rekey("a", (5.0, 0.0, 0))
    queue.rekey("a", (1.0, 0.0, 0))
    assert [queue.pop(), queue.pop()] == ["b", "a"]
    assert not queue


def test_iteration_changes_nothing():
    queue: WaitingQueue[int] = WaitingQueue()
    for number in (3, 1, 2):
        queue.add(number, (float(number), 0.0, number))
    assert list(queue) == list(queue) == [1, 2, 3]
    assert queue.pop() == 1


def test_dead_entries_are_bounded():
    queue: WaitingQueue[int] = WaitingQueue()
    for number in range(100):
        queue.add(number, (float(number), 0.0, number))
    for turn in range(1, 5000):
        queue.rekey(turn % 100, (float(turn), 0.0, turn))
    assert len(queue._heap) <= 2 * 100 + 65
    for number in range(100):
        queue.remove(number)
    assert len(queue._heap) <= 65


def test_rekey_all_that_fails_leaves_the_queue_as_it_was():
    queue: WaitingQueue[int] = WaitingQueue()
    for number in range(5):
        queue.add(number, (float(-number), 0.0, number))

    def failing(item: int) -> tuple[float, float, int]:
        if item == 3:
            raise RuntimeError
        return (float(item), 0.0, item)

    with pytest.raises(RuntimeError):
        queue.rekey_all(failing)
    assert [queue.pop() for _ in range(5)] == [4, 3, 2, 1, 0]
