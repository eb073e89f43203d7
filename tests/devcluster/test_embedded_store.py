"""History, watches and subscribers of the store."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow_devcluster.embedded.controller_api import StoreEvent
from evenflow_devcluster.embedded.errors import StatusError
from evenflow_devcluster.embedded.store.memory import Store
from evenflow_devcluster.embedded.store.watch import WatchEvent, open_watch
from evenflow_devcluster.embedded.syntax.selectors import both, parse_label_selector

Writes = list[tuple[str, str]]
writes = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["on", "off", "delete"])), max_size=30)


def put(store: Store, name: str, value: str) -> None:
    key = ("ns", name)
    if value != "delete":
        store.put("pods", key, {"metadata": {"name": name, "namespace": "ns", "labels": {"v": value}}})
    elif store.get("pods", key) is not None:
        store.remove("pods", key)


def state(store: Store) -> dict[str, Any]:
    return {record.object["metadata"]["name"]: record.object for record in store.records("pods")}


def replayed(start: dict[str, Any], events: list[WatchEvent]) -> dict[str, Any]:
    seen = dict(start)
    for event in events:
        name = event.record.object["metadata"]["name"]
        if event.type == "ADDED":
            assert name not in seen
        else:
            assert name in seen
        if event.type == "DELETED":
            del seen[name]
        else:
            seen[name] = event.record.object
    return seen


@given(writes, st.integers(0, 30), st.sampled_from(["", "v=on"]))
def test_a_watch_from_any_version_leads_to_the_present(done: Writes, cut: int, selector: str) -> None:
    store = Store()
    for name, value in done[:cut]:
        put(store, name, value)
    predicate = both(parse_label_selector(selector), None)

    def selected(objects: dict[str, Any]) -> dict[str, Any]:
        return {name: obj for name, obj in objects.items() if predicate is None or predicate(obj)}

    before, version = selected(state(store)), store.version
    live = open_watch(store, "pods", namespace="ns", predicate=predicate, since=version, capacity=100)
    for name, value in done[cut:]:
        put(store, name, value)
    after = selected(state(store))
    assert replayed(before, live.watcher.take()) == after
    late = open_watch(store, "pods", namespace="ns", predicate=predicate, since=version, capacity=100)
    assert replayed(before, late.initial) == after
    fresh = open_watch(store, "pods", namespace=None, predicate=predicate, since=None, capacity=100)
    assert replayed({}, fresh.initial) == after


@given(writes)
def test_every_past_state_can_be_told_again(done: Writes) -> None:
    store = Store()
    past = {}
    for name, value in done:
        put(store, name, value)
        past[store.version] = state(store)
    for version, objects in past.items():
        told = {key[1]: record.object for key, record in store.state_at("pods", version).items()}
        assert told == objects


def test_a_bounded_history_answers_410_beyond_its_end() -> None:
    store = Store(history=3)
    versions = []
    for number in range(6):
        put(store, f"p{number}", "on")
        versions.append(store.version)
    assert len(store.since("pods", versions[2])) == 3
    with pytest.raises(StatusError) as caught:
        store.since("pods", versions[1])
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


def test_a_slow_watcher_is_cut_off() -> None:
    store = Store()
    opened = open_watch(store, "pods", namespace=None, predicate=None, since=None, capacity=2)
    for number in range(4):
        put(store, f"p{number}", "on")
    assert opened.watcher.ended
    assert [event.record.object["metadata"]["name"] for event in opened.watcher.take()] == ["p0", "p1"]


def test_subscribers_see_all_writes_in_order_even_their_own() -> None:
    store = Store()
    first: list[str] = []
    second: list[str] = []

    def writer(event: StoreEvent) -> None:
        first.append(event.object["metadata"]["name"])
        if event.object["metadata"]["name"] == "a":
            put(store, "b", "on")
            put(store, "c", "on")

    store.subscribe(writer)
    unsubscribe = store.subscribe(lambda event: second.append(event.object["metadata"]["name"]))
    put(store, "a", "on")
    assert first == second == ["a", "b", "c"]
    unsubscribe()
    put(store, "d", "on")
    assert (first[-1], second[-1]) == ("d", "c")


def test_a_failing_subscriber_breaks_neither_the_write_nor_the_others() -> None:
    store = Store()
    seen = []

    def broken(_: StoreEvent) -> None:
        raise RuntimeError("boom")

    store.subscribe(broken)
    store.subscribe(lambda event: seen.append(event.type))
    put(store, "a", "on")
    put(store, "a", "delete")
    assert seen == ["ADDED", "DELETED"]


def test_stored_objects_are_not_shared_with_the_deletion_event() -> None:
    store = Store()
    put(store, "a", "on")
    before = state(store)["a"]["metadata"]["resourceVersion"]
    opened = open_watch(store, "pods", namespace=None, predicate=None, since=store.version, capacity=9)
    put(store, "a", "delete")
    event = opened.watcher.take()[0]
    assert event.record.object["metadata"]["resourceVersion"] == str(store.version)
    assert before != str(store.version)
