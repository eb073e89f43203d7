from dataclasses import replace

from engine_kit import ManualClock, pod_view

from evenflow_operator.engine.expectations import Expectations

KEY = ("serving", "llama")


def make() -> tuple[Expectations, ManualClock]:
    clock = ManualClock()
    return Expectations(clock, timeout=30.0), clock


def test_a_create_is_open_until_the_pod_shows_by_name() -> None:
    expectations, _ = make()
    expectations.create(KEY, 3, "llama-3-x")
    assert expectations.unsettled(KEY) == {3}
    expectations.seen(KEY, pod_view(3, name="llama-3-other"))
    assert expectations.unsettled(KEY) == {3}, "another pod of the slot is not the one we made"
    expectations.seen(KEY, pod_view(3, name="llama-3-x"))
    assert expectations.unsettled(KEY) == frozenset()


def test_a_delete_is_met_by_the_same_uid_terminating_or_gone() -> None:
    expectations, _ = make()
    pod = pod_view(1)
    expectations.delete(KEY, 1, pod.name, pod.uid)
    expectations.seen(KEY, replace(pod, uid="the-next-one", deleting=True))
    assert expectations.unsettled(KEY) == {1}, "a pod of the same name with another uid proves nothing"
    expectations.seen(KEY, replace(pod, deleting=True))
    assert expectations.unsettled(KEY) == frozenset()
    expectations.delete(KEY, 1, pod.name, pod.uid)
    expectations.gone(KEY, pod.name, pod.uid)
    assert expectations.unsettled(KEY) == frozenset()


def test_a_patch_is_met_by_a_later_version_of_the_same_pod() -> None:
    expectations, _ = make()
    pod = pod_view(0, resource_version="10")
    expectations.patch(KEY, 0, pod.name, pod.uid, "10")
    expectations.seen(KEY, pod)
    assert expectations.unsettled(KEY) == {0}, "the old version is no news"
    expectations.seen(KEY, replace(pod, resource_version="11"))
    assert expectations.unsettled(KEY) == frozenset()


def test_overdue_means_look_not_assume() -> None:
    expectations, clock = make()
    expectations.create(KEY, 0, "llama-0-x")
    clock.at += 29
    assert not expectations.overdue(KEY)
    assert expectations.next_deadline(KEY) == 1.0
    clock.at += 1
    assert expectations.overdue(KEY)
    assert expectations.unsettled(KEY) == {0}, "it stays open until a LIST has been seen"
    expectations.reset(KEY)
    assert expectations.unsettled(KEY) == frozenset()
    assert expectations.next_deadline(KEY) is None


def test_an_uncertain_write_is_verified_soon() -> None:
    expectations, clock = make()
    expectations.create(KEY, 0, "llama-0-x")
    expectations.uncertain(KEY, "create", "llama-0-x")
    clock.at += 1.0
    assert expectations.overdue(KEY)


def test_pools_do_not_share_expectations() -> None:
    expectations, _ = make()
    expectations.create(KEY, 0, "llama-0-x")
    assert expectations.unsettled(("other", "llama")) == frozenset()
    expectations.reset(("other", "llama"))
    assert expectations.unsettled(KEY) == {0}


def test_a_write_that_was_refused_is_forgotten() -> None:
    expectations, _ = make()
    expectations.create(KEY, 0, "llama-0-x")
    expectations.settled(KEY, "create", "llama-0-x")
    assert expectations.unsettled(KEY) == frozenset()
