"""The whole operator, in this process, against the embedded API server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster_kit import eventually, pools, running, stage

from evenflow_devcluster.embedded.faults import Fault


async def test_a_pool_becomes_pods_services_and_a_status(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool(replicas=3)
        await eventually(lambda: s.is_ready(), "the pool is ready")
        assert [name.rsplit("-", 1)[0] for name in s.names()] == ["llama-0", "llama-1", "llama-2"]
        assert s.services() == {"llama", "llama-chat"}
        pool = await s.pool()
        status = pool["status"]
        assert (status["replicas"], status["readyReplicas"], status["observedGeneration"]) == (3, 3, 1)
        assert status["selector"] == "evenflow.dev/pool=llama"
        assert "finalizers" not in pool["metadata"]
        assert "annotations" not in pool["metadata"], "kopf must leave no annotation on the resource"
        events = (await s.request("GET", "/api/v1/namespaces/default/events"))["items"]
        about_pool = [event for event in events if event["involvedObject"]["uid"] == pool["metadata"]["uid"]]
        assert {event["reason"] for event in about_pool} >= {"SlotEmpty", "ServiceMissing"}


async def test_the_same_name_made_again_at_once_gets_pods_of_its_own(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "the first pool is ready")
        before = set(s.names())
        await s.delete_pool("llama")
        uid = (await s.apply_pool())["metadata"]["uid"]

        def own_pods_only() -> bool:
            owners = [pod["metadata"]["ownerReferences"][0]["uid"] for pod in s.pods()]
            return owners == [uid, uid] and s.is_ready()

        await eventually(own_pods_only, "two pods of the new pool, none of the old")
        assert before.isdisjoint(s.names())
        await eventually(lambda: s.services() == {"llama", "llama-chat"}, "its Services")


async def test_deleting_a_pool_leaves_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        await s.delete_pool("llama")
        await eventually(lambda: not s.names() and not s.services(), "pods and Services are gone")


async def test_two_pools_and_the_same_name_in_two_namespaces(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.create_namespace("other")
        await s.apply_pool("llama", replicas=1)
        await s.apply_pool("llama-x", replicas=2)
        await s.apply_pool("llama", "other", replicas=2)
        for name, namespace in (("llama", "default"), ("llama-x", "default"), ("llama", "other")):
            await eventually(lambda n=name, ns=namespace: s.is_ready(n, ns), f"{namespace}/{name} is ready")
        assert len(s.names(pool="llama")) == 1
        assert len(s.names(pool="llama-x")) == 2
        assert len(s.names("other", pool="llama")) == 2
        await s.delete_pool("llama", "other")
        await eventually(lambda: not s.names("other"), "only the deleted pool's pods go")
        assert len(s.names()) == 3


async def test_an_operator_of_one_namespace_leaves_the_others_alone(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        await s.create_namespace("other")
        async with running(s.settings(namespaces=("other",), watch_nodes=False)):
            await s.apply_pool("llama", "default")
            await s.apply_pool("llama", "other")
            await eventually(lambda: s.is_ready("llama", "other"), "other/llama is ready")
        assert not s.names("default")


async def test_a_bad_pool_says_why_and_harms_nobody(tmp_path: Path) -> None:
    async with stage(tmp_path, lenient=True) as s, running(s.settings()):
        bad: list[Any] = [5, {"model": 5}, {"model": {"name": "m"}, "replicas": "many"}]
        for number, spec in enumerate(bad):
            body = {"apiVersion": "serving.evenflow.dev/v1alpha1", "kind": "LLMServingPool", "spec": spec}
            await s.request("POST", pools("default"), body={**body, "metadata": {"name": f"bad-{number}"}})
        await s.apply_pool("good")
        await eventually(lambda: s.is_ready("good"), "the good pool is ready")
        for number in range(len(bad)):
            name = f"bad-{number}"
            await eventually(
                lambda n=name: s.condition("SpecValid", n).get("status") == "False", f"{name} says that it is bad"
            )
        assert "replicas" in s.condition("SpecValid", "bad-2")["message"]
        assert {name.rsplit("-", 2)[0] for name in s.names()} == {"good"}


async def test_a_spec_that_turns_bad_keeps_its_pods(tmp_path: Path) -> None:
    async with stage(tmp_path, lenient=True) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        before = s.names()
        await s.patch_pool("llama", {"replicas": "many"})
        await eventually(lambda: s.condition("SpecValid").get("status") == "False", "the spec is bad")
        assert s.names() == before


async def test_scaling_up_and_down_by_the_spec(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool(rollout={"drainTimeoutSeconds": 1})
        await eventually(lambda: s.is_ready(), "ready")
        first = set(s.names())
        await s.patch_pool("llama", {"replicas": 4})
        await eventually(lambda: len(s.names()) == 4 and s.is_ready(), "four pods")
        assert first < set(s.names())
        await s.patch_pool("llama", {"replicas": 1})
        await eventually(lambda: len(s.names()) == 1, "one pod after drains", limit=20)


async def test_a_failed_pod_is_replaced_after_its_object_is_gone(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool(replicas=1)
        await eventually(lambda: s.is_ready(), "ready")
        name = s.names()[0]
        s.cluster.api.merge_patch("pods", "default", name, {"status": {"phase": "Failed"}}, subresource="status")
        await eventually(lambda: name not in s.names(), "the failed pod's object is deleted")


async def test_a_refused_create_is_one_warning_and_one_word_when_it_is_over(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        s.cluster.faults.add(Fault(verbs=("create",), resources=("pods",), status=403))
        await s.apply_pool(replicas=2)
        await eventually(lambda: s.condition("Degraded").get("reason") == "CreateRefused", "it is said")
        s.cluster.faults.clear()
        # What the pods are made from changes, so that no back-off is waited for.
        await s.patch_pool("llama", {"engine": {"maxNumSeqs": 64}})
        await eventually(lambda: s.is_ready(), "ready", limit=8)

        def told() -> list[tuple[str, str]]:
            events = s.cluster.api.list("events", "default")
            return [(event["type"], event["reason"]) for event in events if "CreateRefused" in str(event)]

        await eventually(lambda: len(told()) == 2, "the end is told")
        assert sorted(told()) == [("Normal", "AsExpected"), ("Warning", "CreateRefused")]


async def test_a_bad_pod_template_costs_no_slot_and_a_corrected_one_is_rolled_out(tmp_path: Path) -> None:
    bad = {
        "spec": {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]}
    }
    good = {"spec": {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]}}
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool(rollout={"drainTimeoutSeconds": 1})
        await eventually(lambda: s.is_ready(), "ready")
        before = s.names()
        await s.patch_pool("llama", {"podTemplate": bad})
        await eventually(lambda: s.condition("Degraded").get("reason") == "CreateRefused", "it is said")
        assert "tolerationSeconds" in s.condition("Degraded")["message"]
        assert s.condition("Progressing")["reason"] == "RolloutStuck"
        assert s.is_ready()
        assert s.names() == before
        await s.patch_pool("llama", {"podTemplate": None})
        await s.patch_pool("llama", {"podTemplate": good})
        await eventually(lambda: set(s.names()).isdisjoint(before) and s.is_ready(), "rolled out", limit=20)
        await eventually(lambda: s.condition("Degraded")["reason"] == "AsExpected", "and forgotten")


async def test_a_service_of_somebody_else_is_never_touched(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        foreign = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "llama-chat"},
            "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]},
        }
        await s.request("POST", "/api/v1/namespaces/default/services", body=foreign)
        await s.apply_pool()
        await eventually(lambda: s.condition("SpecValid").get("reason") == "NameConflict", "the conflict is reported")
        theirs = s.cluster.api.get("services", "default", "llama-chat")
        assert theirs is not None
        assert theirs["spec"]["selector"] == {"app": "theirs"}


async def test_changed_selector_and_ports_are_put_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        wanted = (s.cluster.api.get("services", "default", "llama") or {})["spec"]

        def restored() -> bool:
            return (s.cluster.api.get("services", "default", "llama") or {})["spec"] == wanted

        for change in (
            {"selector": {"evenflow.dev/serving": None, "extra": "x"}},
            {"ports": [{**wanted["ports"][0], "targetPort": 9000}]},
        ):
            s.cluster.api.merge_patch("services", "default", "llama", {"spec": change})
            await eventually(restored, f"as it was before {change}")


async def test_the_service_of_a_class_removed_by_mistake_serves_on_and_is_as_before_once_the_class_is_back(
    tmp_path: Path,
) -> None:
    classes = [{"name": "chat", "promptTokens": 1024, "outputTokens": 220}]
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool(trafficClasses=classes)
        await eventually(lambda: s.is_ready(), "ready")

        def service(name: str = "llama-chat") -> Mapping[str, Any]:
            return s.cluster.api.get("services", "default", name) or {}

        before = service()["spec"]
        await s.patch_pool("llama", {"trafficClasses": []})
        await eventually(
            lambda: service()["spec"] == {**before, "selector": service("llama")["spec"]["selector"]}, "wide"
        )
        assert "evenflow.dev/class-removed" in service()["metadata"]["annotations"]

        def told() -> list[str]:
            events = s.cluster.api.list("events", "default")
            return [event["type"] for event in events if "class chat is gone" in event["message"]]

        await eventually(lambda: told() == ["Warning"], "it is told")
        await s.patch_pool("llama", {"trafficClasses": classes})
        await eventually(lambda: service()["spec"] == before, "as before")
        assert "evenflow.dev/class-removed" not in (service()["metadata"].get("annotations") or {})


async def test_api_faults_end_in_the_same_state(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        await s.apply_pool(replicas=4)
        for status in (401, 409, 429, 500, 503):
            s.cluster.faults.add(
                Fault(
                    user_agents=("evenflow-operator",),
                    status=status,
                    probability=0.15,
                    count=6,
                    retry_after=0 if status == 429 else None,
                )
            )
        async with running(s.settings()):
            await eventually(lambda: s.is_ready() and len(s.names()) == 4, "four pods in spite of faults", limit=30)
        assert s.cluster.faults.acted > 0
        assert len(s.cluster.api.list("pods", "default")) == 4, "no duplicates"


async def test_watches_that_are_refused_dropped_and_outdated_come_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        s.cluster.faults.add(Fault(user_agents=("kopf",), status=401, count=2))
        s.cluster.faults.add(Fault(user_agents=("kopf",), status=500, count=2))
        s.cluster.faults.drop_watches()
        s.cluster.faults.forget_history()
        await s.patch_pool("llama", {"replicas": 3})
        await eventually(lambda: len(s.names()) == 3 and s.is_ready(), "the change is noticed", limit=20)


async def test_a_deletion_missed_by_the_watch_is_found_by_the_watchdog(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings(watchdog_seconds=0.3)) as operator:
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        engine = operator._engine
        assert engine is not None
        engine._watchdog._grace = 0.2
        # A watch that ends while history is forgotten is listed again: what was deleted in between is never told.
        s.cluster.faults.add(Fault(user_agents=("kopf",), verbs=("list", "watch"), latency=0.5))
        s.cluster.faults.drop_watches("pods")
        lost = s.pods()[0]["metadata"]
        options = {"gracePeriodSeconds": 0}
        await s.request("DELETE", f"/api/v1/namespaces/default/pods/{lost['name']}", body=options)
        s.cluster.faults.forget_history("pods")

        def refilled() -> bool:
            uids = {pod["metadata"]["uid"] for pod in s.pods()}
            return len(uids) == 2 and lost["uid"] not in uids

        await eventually(refilled, "the slot is filled again", limit=20)
