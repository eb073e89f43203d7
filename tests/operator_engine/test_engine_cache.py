from dataclasses import replace

import pytest
from engine_kit import NAMESPACE, ManualClock, pod_view, pool_record, service_view

from evenflow_operator.engine.cache import TOMBSTONES, Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.ports import Identity, NodeRecord, PodRecord, ServiceRecord, SliceRecord

KEY = (NAMESPACE, "llama")


def make() -> tuple[Cache, list[tuple[str, str]], Expectations]:
    told: list[tuple[str, str]] = []
    expectations = Expectations(ManualClock())
    return Cache(expectations, told.append), told, expectations


def pod(slot: int = 0, pool: str = "llama", **more: object) -> PodRecord:
    return PodRecord(NAMESPACE, pool, pod_view(slot, **more))


def test_news_tell_the_pool_and_repeats_do_not() -> None:
    cache, told, _ = make()
    cache.put(pod())
    cache.put(pod())
    assert told == [KEY]
    assert [view.uid for view in cache.pods(KEY)] == ["pod-0"]


def test_a_change_of_the_version_alone_is_kept_but_not_told() -> None:
    cache, told, _ = make()
    cache.put(pod(resource_version="10"))
    cache.put(pod(resource_version="11"))
    assert cache.pods(KEY)[0].resource_version == "11"
    assert told == [KEY]


def test_older_news_never_win() -> None:
    cache, _, _ = make()
    cache.put(pod(resource_version="10", ready=True))
    cache.put(pod(resource_version="9", ready=False))
    assert cache.pods(KEY)[0].ready


def test_versions_are_compared_as_numbers() -> None:
    cache, _, _ = make()
    cache.put(pod(resource_version="9", ready=False))
    cache.put(pod(resource_version="10", ready=True))
    assert cache.pods(KEY)[0].ready


def test_a_late_answer_does_not_bring_a_deleted_pod_back() -> None:
    cache, _, _ = make()
    cache.put(pod(resource_version="10"))
    cache.drop("pods", "pod-0", "12")
    cache.put(pod(resource_version="11"))
    assert cache.pods(KEY) == ()


def test_a_pod_whose_label_came_back_counts_again() -> None:
    cache, _, _ = make()
    cache.put(pod(resource_version="10"))
    cache.drop("pods", "pod-0", "12")
    cache.put(pod(resource_version="13"))
    assert len(cache.pods(KEY)) == 1


def test_a_delete_may_come_before_anything_else_is_known() -> None:
    cache, told, _ = make()
    cache.drop("pods", "never-seen", "5")
    assert told == []
    cache.put(pod(uid="never-seen", resource_version="4"))
    assert cache.pods(KEY) == ()


def test_a_pool_made_again_is_not_removed_by_the_old_ones_delete() -> None:
    cache, _, _ = make()
    cache.put(pool_record(uid="old"))
    cache.put(pool_record(uid="new"))
    cache.drop("pools", "old", "9")
    record = cache.pool(KEY)
    assert record is not None
    assert record.uid == "new"


def test_a_pod_that_changes_its_pool_leaves_the_old_one() -> None:
    cache, told, _ = make()
    cache.put(pod(pool="llama", resource_version="1"))
    cache.put(pod(pool="qwen", resource_version="2"))
    assert cache.pods(KEY) == ()
    assert len(cache.pods((NAMESPACE, "qwen"))) == 1
    assert told == [KEY, KEY, (NAMESPACE, "qwen")]


def test_routable_is_the_union_of_all_slices() -> None:
    cache, _, _ = make()
    cache.put(SliceRecord(NAMESPACE, "a", "s1", "1", "llama", frozenset({"pod-0"})))
    cache.put(SliceRecord(NAMESPACE, "b", "s2", "1", "llama", frozenset({"pod-1"})))
    assert cache.routable(KEY) == {"pod-0", "pod-1"}
    cache.drop("endpointslices", "s1", "2")
    assert cache.routable(KEY) == {"pod-1"}


def test_a_foreign_service_is_shown_until_ours_takes_its_place() -> None:
    cache, _, _ = make()
    cache.set_foreign_service(KEY, "llama", service_view(owner_uid=None, pool=None))
    assert [view.owner_uid for view in cache.services(KEY)] == [None]
    cache.put(ServiceRecord(NAMESPACE, service_view(uid="ours")))
    assert [view.uid for view in cache.services(KEY)] == ["ours"]
    assert cache.foreign_services(KEY) == []


def test_nodes_that_are_silent_or_gone_are_lost() -> None:
    cache, told, _ = make()
    for slot, node in enumerate(("alive", "silent", "gone", "new")):
        cache.put(pod(slot, node=node))
    assert cache.lost_nodes(KEY) == frozenset(), "where nodes aren't watched, nothing is known of them"
    cache.put(NodeRecord("alive", "n1", lost=False))
    cache.put(NodeRecord("silent", "n2", lost=False))
    cache.put(NodeRecord("gone", "n3", lost=False))
    assert cache.lost_nodes(KEY) == frozenset(), "a node never seen may be newer than the watch of nodes"
    cache.drop("nodes", "n3")
    assert cache.lost_nodes(KEY) == {"gone"}
    told.clear()
    cache.put(NodeRecord("silent", "n2", lost=True))
    assert cache.lost_nodes(KEY) == {"gone", "silent"}
    assert told == [KEY], "a pool with a pod on the node must be looked at"


def test_a_node_that_comes_back_under_its_name_is_not_lost() -> None:
    cache, _, _ = make()
    cache.put(pod(0, node="gone"))
    cache.put(NodeRecord("gone", "n1", lost=False))
    cache.put(NodeRecord("alive", "n2", lost=False))
    cache.drop("nodes", "n1")
    cache.put(NodeRecord("gone", "n3", lost=False))
    assert cache.lost_nodes(KEY) == frozenset()


def test_when_every_node_is_silent_no_pod_is_given_up() -> None:
    """The control plane hears nobody; the engines may serve on, and there is nowhere to go."""
    cache, _, _ = make()
    for slot in range(2):
        cache.put(pod(slot, node=f"node-{slot}"))
        cache.put(NodeRecord(f"node-{slot}", f"n{slot}", lost=True))
    assert cache.lost_nodes(KEY) == frozenset()


def test_a_list_puts_right_what_the_watch_missed_but_not_what_came_since() -> None:
    cache, _, _ = make()
    cache.put(pod(0))
    cache.put(pod(1))
    mark = cache.mark()
    cache.put(pod(2))
    corrections = cache.reconcile_list("pods", [pod(1), pod(3)], mark)
    assert {view.uid for view in cache.pods(KEY)} == {"pod-1", "pod-2", "pod-3"}
    assert corrections == 2


def test_a_list_of_one_pool_leaves_the_others_alone() -> None:
    cache, _, _ = make()
    cache.put(pod(0))
    cache.put(pod(5, pool="qwen"))
    cache.replace_pods(KEY, [], cache.mark())
    assert cache.pods(KEY) == ()
    assert len(cache.pods((NAMESPACE, "qwen"))) == 1


@pytest.mark.parametrize(
    ("listed", "lags"),
    [
        ([Identity(NAMESPACE, "llama-0-aaaaaa", "pod-0", "10")], False),
        ([Identity(NAMESPACE, "llama-0-aaaaaa", "pod-0", "9")], False),
        ([Identity(NAMESPACE, "llama-0-aaaaaa", "pod-0", "11")], True),
        ([], True),
        ([Identity(NAMESPACE, "a", "pod-0", "10"), Identity(NAMESPACE, "b", "unknown", "3")], True),
        ([Identity(NAMESPACE, "a", "pod-0", "10"), Identity(NAMESPACE, "b", "dropped", "3")], False),
    ],
)
def test_lagging_behind_a_list(listed: list[Identity], lags: bool) -> None:
    cache, _, _ = make()
    cache.put(pod(0, resource_version="10"))
    cache.drop("pods", "dropped", "4")
    assert cache.lags("pods", listed, cache.mark()) is lags


def test_a_seen_pod_settles_its_create() -> None:
    cache, _, expectations = make()
    expectations.create(KEY, 0, "llama-0-aaaaaa")
    cache.put(pod(0))
    assert expectations.unsettled(KEY) == frozenset()
    expectations.delete(KEY, 0, "llama-0-aaaaaa", "pod-0")
    cache.drop("pods", "pod-0", "99")
    assert expectations.unsettled(KEY) == frozenset()


def test_the_memory_of_deleted_objects_is_bounded() -> None:
    cache, _, _ = make()
    for number in range(TOMBSTONES + 10):
        cache.drop("pods", f"p{number}", "1")
    assert len(cache._tombstones) == TOMBSTONES


def test_equal_objects_in_two_namespaces_are_two() -> None:
    cache, _, _ = make()
    cache.put(pod(0))
    cache.put(replace(pod(0), namespace="elsewhere", view=pod_view(0, uid="other")))
    assert len(cache.pods(KEY)) == len(cache.pods(("elsewhere", "llama"))) == 1
