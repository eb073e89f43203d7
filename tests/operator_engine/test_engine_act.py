import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from engine_kit import NAMESPACE, DictCluster, ManualClock, pod_view, pool_record, service_view, travel

from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.assembly import STUCK_AFTER_SECONDS
from evenflow_operator.core.plan import CreatePod, Decision, DeletePod, DeleteService, PatchPod, PushConfig, PutService
from evenflow_operator.core.snapshot import PodView
from evenflow_operator.engine.act import Actor, pod_patch, service_patch
from evenflow_operator.engine.cache import Cache
from evenflow_operator.engine.expectations import Expectations
from evenflow_operator.engine.push import Pusher
from evenflow_operator.ports import ApiError, NodeRecord, PodRecord, PoolRecord, ServiceRecord

KEY = (NAMESPACE, "llama")
WHY = Decision("CreatePod", "SlotEmpty", "create", {}, 0)


class Pushes(Pusher):
    """Remembers what would be pushed."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, WorkerConfig]] = []

    def submit(self, record: PoolRecord, uid: str, ip: str, config: WorkerConfig) -> None:
        self.sent.append((uid, config))


class Setup:
    def __init__(self) -> None:
        self.cluster = DictCluster()
        self.expectations = Expectations(ManualClock())
        self.cache = Cache(self.expectations, lambda key: None)
        self.pushes = Pushes()
        self.actor = Actor(self.cluster, self.cache, self.expectations, self.pushes)
        self.record = pool_record()
        self.cache.put(self.record)
        self.cluster.pools[KEY] = self.record

    def pod(self, slot: int, **more: Any) -> Any:
        view = pod_view(slot, **more)
        self.cluster.pods[view.name] = view
        self.cache.put(PodRecord(NAMESPACE, "llama", view))
        return view


def create(slot: int) -> CreatePod:
    manifest: Mapping[str, Any] = {
        "metadata": {
            "name": f"llama-{slot}-new",
            "labels": {"evenflow.dev/pool": "llama", "evenflow.dev/slot": str(slot)},
            "ownerReferences": [{"uid": "pool-1", "controller": True}],
        },
        "spec": {},
    }
    return CreatePod(slot, manifest, replace(WHY, slot=slot))


def patch(slot: int = 0, **more: Any) -> PatchPod:
    fields: dict[str, Any] = {
        "slot": slot,
        "name": f"llama-{slot}-aaaaaa",
        "uid": f"pod-{slot}",
        "resource_version": "10",
        "labels": {"evenflow.dev/serving": "true"},
        "annotations": {},
    }
    return PatchPod(**{**fields, **more})


def service_manifest(name: str = "llama") -> Mapping[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"evenflow.dev/pool": "llama"},
            "ownerReferences": [{"uid": "pool-1", "controller": True}],
        },
        "spec": {"selector": {"a": "b"}, "ports": [{"name": "http", "port": 8000}]},
    }


async def test_creates_grow_in_batches_and_stop_at_the_first_error() -> None:
    setup = Setup()
    tried: list[str] = []

    def quota(verb: str, name: str) -> ApiError | None:
        tried.append(name)
        return ApiError(403, "Forbidden", "exceeded quota") if len(tried) > 2 else None

    setup.cluster.fail_before = quota
    outcome = await setup.actor.act(setup.record, [create(slot) for slot in range(20)])
    assert len(tried) == 3, "1, then 2: the quota costs requests of one batch, not of every slot"
    assert len(outcome.done) == 2
    assert [failure.refused for failure in outcome.failures] == [True]
    assert setup.expectations.unsettled(KEY) == frozenset(), "what was refused is not expected"


def test_slow_writes_of_a_large_pool_are_several_passes_not_one_that_looks_stuck() -> None:
    async def work() -> None:
        setup = Setup()
        patched: list[str] = []
        answer = setup.cluster.patch_pod

        async def slowly(namespace: str, name: str, *arguments: Any, **options: Any) -> PodView:
            await asyncio.sleep(10)
            patched.append(name)
            return await answer(namespace, name, *arguments, **options)

        setup.cluster.patch_pod = slowly  # type: ignore[method-assign]
        for slot in range(1000):
            setup.pod(slot)
        commands = [patch(slot) for slot in range(1000)]
        began = asyncio.get_running_loop().time()
        outcome = await setup.actor.act(setup.record, commands)
        assert asyncio.get_running_loop().time() - began < STUCK_AFTER_SECONDS / 2
        assert outcome.stale
        assert {command.name for command in outcome.done if isinstance(command, PatchPod)} == set(patched)
        assert len(outcome.done) + len(outcome.failures) == 1000
        assert len(patched) > 100

    travel(work)


async def test_a_namespace_that_goes_is_no_trouble_of_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    words = "unable to create new content in namespace team because it is being terminated"
    setup.cluster.fail_before = lambda verb, name: ApiError(403, "Forbidden", f'pods "{name}" is forbidden: {words}')
    outcome = await setup.actor.act(setup.record, [create(0), PutService(service_manifest("llama"))])
    assert outcome.stale
    assert not any(failure.refused for failure in outcome.failures)
    assert caplog.records == []
    assert setup.expectations.unsettled(KEY) == frozenset()


async def test_a_create_shows_in_the_cache_at_once() -> None:
    setup = Setup()
    await setup.actor.act(setup.record, [create(0)])
    assert [pod.name for pod in setup.cache.pods(KEY)] == ["llama-0-new"]
    assert setup.expectations.unsettled(KEY) == frozenset()


async def test_who_no_longer_leads_writes_nothing_of_a_plan_begun_before() -> None:
    setup = Setup()
    setup.pod(0)
    setup.cache.put(ServiceRecord(NAMESPACE, service_view()))
    actor = Actor(setup.cluster, setup.cache, setup.expectations, setup.pushes, lambda: False)
    kinds = [create(1), patch(0), DeletePod(0, "llama-0-aaaaaa", "pod-0", None, WHY), PutService(service_manifest("x"))]
    outcome = await actor.act(setup.record, [*kinds, DeleteService("llama", "service-llama")])
    assert outcome.stale
    assert setup.cluster.writes == []
    assert setup.expectations.unsettled(KEY) == frozenset()


async def test_a_create_without_an_answer_is_expected_and_not_repeated() -> None:
    setup = Setup()
    setup.cluster.fail_after = lambda verb, name: ApiError(0, "Timeout", "")
    outcome = await setup.actor.act(setup.record, [create(0)])
    assert not outcome.failures[0].refused
    assert setup.expectations.unsettled(KEY) == {0}


async def test_an_existing_pod_of_ours_under_the_name_is_taken_as_created() -> None:
    setup = Setup()
    setup.cluster.pods["llama-0-new"] = pod_view(0, name="llama-0-new", uid="made-before")
    outcome = await setup.actor.act(setup.record, [create(0)])
    assert not outcome.failures
    assert [pod.uid for pod in setup.cache.pods(KEY)] == ["made-before"]


async def test_an_existing_pod_of_somebody_else_is_refused_and_reported() -> None:
    setup = Setup()
    setup.cluster.pods["llama-0-new"] = pod_view(0, name="llama-0-new", owner_uid="someone")
    outcome = await setup.actor.act(setup.record, [create(0)])
    assert [(failure.refused, failure.stale) for failure in outcome.failures] == [(True, False)]
    assert "belongs to somebody else" in outcome.failures[0].problem


async def test_a_slot_that_was_filled_meanwhile_gets_no_second_pod() -> None:
    setup = Setup()
    setup.pod(0)
    outcome = await setup.actor.act(setup.record, [create(0)])
    assert outcome.stale
    assert setup.cluster.writes == []


async def test_a_pod_on_a_lost_node_does_not_fill_its_slot() -> None:
    setup = Setup()
    setup.pod(0, node="n1")
    setup.cache.put(NodeRecord("n1", "n1", lost=True))
    setup.cache.put(NodeRecord("n2", "n2", lost=False))
    outcome = await setup.actor.act(setup.record, [create(0)])
    assert not outcome.failures


async def test_nothing_is_done_for_a_pool_that_was_deleted_or_made_again() -> None:
    setup = Setup()
    setup.pod(0)
    setup.cache.put(pool_record(uid="pool-2"))
    commands = [create(1), patch(), DeletePod(0, "llama-0-aaaaaa", "pod-0", None, WHY), PutService(service_manifest())]
    outcome = await setup.actor.act(setup.record, commands)
    assert len(outcome.failures) == 4
    assert outcome.stale
    assert setup.cluster.writes == []


@pytest.mark.parametrize("change", [{"resource_version": "11"}, {"uid": "another"}])
async def test_a_pod_that_changed_since_is_not_patched(change: dict[str, str]) -> None:
    setup = Setup()
    setup.pod(0, **change)
    tried: list[str] = []
    setup.cluster.fail_before = lambda verb, name: tried.append(name)  # type: ignore[func-returns-value]
    outcome = await setup.actor.act(setup.record, [patch()])
    assert outcome.stale
    assert tried == [], "the API server isn't even asked"


async def test_a_conflict_of_the_api_server_is_stale_not_an_error() -> None:
    setup = Setup()
    setup.pod(0)
    setup.cluster.pods["llama-0-aaaaaa"] = pod_view(0, resource_version="12")
    outcome = await setup.actor.act(setup.record, [patch()])
    assert outcome.stale
    assert setup.pushes.sent == []
    assert setup.expectations.unsettled(KEY) == frozenset()


async def test_a_config_is_pushed_after_its_patch_succeeded_and_only_then() -> None:
    setup = Setup()
    config = WorkerConfig(generation=4)
    setup.pod(0)
    setup.pod(1)

    def refuse(verb: str, name: str) -> ApiError | None:
        return ApiError(500, "InternalError", "") if name.startswith("llama-1") else None

    setup.cluster.fail_before = refuse
    outcome = await setup.actor.act(setup.record, [patch(0, config=config), patch(1, config=config)])
    assert setup.pushes.sent == [("pod-0", config)]
    assert len(outcome.failures) == 1
    assert setup.expectations.unsettled(KEY) == {1}, "a 500 leaves open whether it happened"


async def test_a_push_command_is_handed_on() -> None:
    setup = Setup()
    await setup.actor.act(setup.record, [PushConfig("p", "pod-0", "127.77.0.1", WorkerConfig(generation=2))])
    assert [uid for uid, _ in setup.pushes.sent] == ["pod-0"]


async def test_a_delete_of_a_pod_that_is_gone_is_done() -> None:
    setup = Setup()
    setup.pod(0)
    setup.cluster.pods.clear()
    outcome = await setup.actor.act(setup.record, [DeletePod(0, "llama-0-aaaaaa", "pod-0", None, WHY)])
    assert not outcome.failures
    assert setup.cache.pods(KEY) == ()


@pytest.mark.parametrize("back", [False, True])
async def test_a_pod_whose_node_came_back_meanwhile_is_not_deleted_for_it(back: bool) -> None:
    setup = Setup()
    setup.pod(0, node="n1")
    setup.cache.put(NodeRecord("n1", "n1", lost=not back))
    setup.cache.put(NodeRecord("n2", "n2", lost=False))
    why = replace(WHY, type="ReplacePod", reason="NodeLost")
    outcome = await setup.actor.act(setup.record, [DeletePod(0, "llama-0-aaaaaa", "pod-0", "10", why)])
    assert outcome.stale == back
    assert setup.cluster.writes == ([] if back else [("delete", "llama-0-aaaaaa")])


async def test_a_pod_is_deleted_once() -> None:
    setup = Setup()
    setup.pod(0)
    delete = DeletePod(0, "llama-0-aaaaaa", "pod-0", None, WHY)
    await setup.actor.act(setup.record, [delete])
    outcome = await setup.actor.act(setup.record, [delete])
    assert setup.cluster.writes == [("delete", "llama-0-aaaaaa")]
    assert outcome.stale


async def test_nothing_is_adopted_for_a_pool_that_is_being_deleted() -> None:
    setup = Setup()
    setup.pod(0, owner_uid=None)
    setup.cluster.pools[KEY] = replace(setup.record, deleting=True)
    outcome = await setup.actor.act(setup.record, [patch(adopt=True)])
    assert outcome.stale
    assert setup.cluster.writes == []


def test_a_patch_names_the_very_pod_and_removes_labels() -> None:
    command = patch(labels={"evenflow.dev/serving": None}, config=WorkerConfig(generation=9), adopt=True)
    metadata = pod_patch(pool_record(), command)["metadata"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("pod-0", "10")
    assert metadata["labels"] == {"evenflow.dev/serving": None}
    assert WorkerConfig.parse(metadata["annotations"]["evenflow.dev/worker-config"]).generation == 9
    owner = metadata["ownerReferences"][0]
    assert (owner["uid"], owner["controller"]) == ("pool-1", True)


async def test_a_service_of_somebody_else_is_shown_to_the_next_decision() -> None:
    setup = Setup()
    setup.cluster.services["llama"] = service_view(owner_uid=None, pool=None)
    outcome = await setup.actor.act(setup.record, [PutService(service_manifest())])
    assert outcome.stale
    assert [view.owner_uid for view in setup.cache.services(KEY)] == [None]


async def test_a_service_that_was_left_behind_gets_its_owner_unless_the_pool_is_being_deleted() -> None:
    setup = Setup()
    left = service_view(owner_uid=None, orphan=True)
    setup.cluster.services["llama"] = left
    setup.cache.put(ServiceRecord(NAMESPACE, left))
    manifest = {**service_manifest(), "metadata": {"name": "llama", "ownerReferences": [{"uid": "pool-1"}]}}
    command = PutService(manifest, left.uid, left.resource_version)
    assert service_patch(command, left)["metadata"]["ownerReferences"] == [{"uid": "pool-1"}]
    assert "ownerReferences" not in service_patch(command, replace(left, orphan=False))["metadata"]
    setup.cluster.pools[KEY] = replace(pool_record(), deleting=True)
    outcome = await setup.actor.act(setup.record, [command])
    assert outcome.stale
    assert setup.cluster.services["llama"] == left


async def test_own_services_are_created_corrected_and_deleted() -> None:
    setup = Setup()
    await setup.actor.act(setup.record, [PutService(service_manifest())])
    (view,) = setup.cache.services(KEY)
    drifted = replace(view, selector={"a": "wrong", "extra": "x"}, resource_version="500")
    setup.cluster.services["llama"] = drifted
    setup.cache.put(ServiceRecord(NAMESPACE, drifted))
    command = PutService(service_manifest(), drifted.uid, "500")
    assert service_patch(command, drifted)["spec"]["selector"] == {"extra": None, "a": "b"}
    assert service_patch(command, drifted)["metadata"]["annotations"] == {"evenflow.dev/class-removed": None}
    outcome = await setup.actor.act(setup.record, [command])
    assert not outcome.failures
    assert setup.cluster.services["llama"].selector == {"a": "b"}
    await setup.actor.act(setup.record, [DeleteService("llama", drifted.uid)])
    assert setup.cache.services(KEY) == ()
