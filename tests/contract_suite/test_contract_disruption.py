"""PodDisruptionBudgets and evictions."""

from suite_behaviours import behaviour
from suite_client import DISCOVERY_PATIENCE, PATIENCE, Client, Object, url
from suite_objects import Gadgets, owner, pod, run_pod

BUDGETS = "poddisruptionbudgets.policy"


async def add_pods(api: Client, ns: str, count: int, owners: list[Object] | None = None) -> None:
    for index in range(count):
        metadata = {"ownerReferences": owners} if owners else {}
        await api.create("pods", ns, pod(f"p{index}", {"app": "x"}, nodeName="contract-nowhere", metadata=metadata))
        await run_pod(api, ns, f"p{index}", f"10.202.0.{index + 1}")


async def add_budget(api: Client, ns: str, **spec: object) -> None:
    body = {"metadata": {"name": "budget"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, **spec}}
    await api.create(BUDGETS, ns, body)


async def figures(
    api: Client, ns: str, expected: int, healthy: int, desired: int, allowed: int, patience: float = PATIENCE
) -> None:
    wanted = {
        "expectedPods": expected,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
    }

    def right(budget: Object) -> bool:
        status = budget.get("status", {})
        return status.get("observedGeneration") == 1 and {key: status.get(key) for key in wanted} == wanted

    await api.settled(BUDGETS, ns, "budget", right, patience)


def eviction(name: str, **options: object) -> Object:
    body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return {**body, "deleteOptions": options} if options else body


@behaviour(
    "budget-min-available", "A budget with minAvailable counts its healthy pods and allows what exceeds the minimum."
)
async def test_min_available(api: Client, ns: str) -> None:
    await add_budget(api, ns, minAvailable=2)
    await add_pods(api, ns, 3)
    await figures(api, ns, 3, 3, 2, 1)
    await run_pod(api, ns, "p0", "10.202.0.1", ready=False)
    await figures(api, ns, 3, 2, 2, 0)
    status = (await api.get(BUDGETS, ns, "budget"))["status"]
    condition = next(one for one in status["conditions"] if one["type"] == "DisruptionAllowed")
    assert (condition["status"], condition["reason"]) == ("False", "InsufficientPods")


@behaviour(
    "budget-max-unavailable-by-scale", "maxUnavailable is taken from the /scale of the pods' owner, custom or not."
)
async def test_max_unavailable(api: Client, ns: str, gadgets: Gadgets) -> None:
    parent = await api.create(gadgets.resource, ns, gadgets.make("parent", {"replicas": 4}))
    reference = owner(gadgets.api_version, "Gadget", parent, controller=True)
    await add_pods(api, ns, 3, [reference])
    await add_budget(api, ns, maxUnavailable=1)
    await figures(api, ns, 4, 3, 3, 0, DISCOVERY_PATIENCE)
    metadata = {"ownerReferences": [reference]}
    await api.create("pods", ns, pod("p3", {"app": "x"}, nodeName="contract-nowhere", metadata=metadata))
    await run_pod(api, ns, "p3", "10.202.0.9")
    await figures(api, ns, 4, 4, 3, 1)


@behaviour(
    "budget-without-replicas-fails",
    "Where the owner's spec.replicas is absent the budget fails to sync and allows nothing.",
)
async def test_no_replicas(api: Client, ns: str, gadgets: Gadgets) -> None:
    parent = await api.create(gadgets.resource, ns, gadgets.make("parent"))
    await add_pods(api, ns, 2, [owner(gadgets.api_version, "Gadget", parent, controller=True)])
    await add_budget(api, ns, maxUnavailable=1)

    def failed(budget: Object) -> bool:
        conditions = budget.get("status", {}).get("conditions") or []
        return any(one["reason"] == "SyncFailed" for one in conditions)

    budget = await api.settled(BUDGETS, ns, "budget", failed, DISCOVERY_PATIENCE)
    assert budget["status"]["disruptionsAllowed"] == 0
    await api.refused(429, "POST", url("pods", ns, "p0", "eviction"), eviction("p0"))


@behaviour("budget-percent", "A percentage of minAvailable is rounded up over the expected pods.")
async def test_percent(api: Client, ns: str, gadgets: Gadgets) -> None:
    parent = await api.create(gadgets.resource, ns, gadgets.make("parent", {"replicas": 3}))
    await add_pods(api, ns, 3, [owner(gadgets.api_version, "Gadget", parent, controller=True)])
    await add_budget(api, ns, minAvailable="50%")
    await figures(api, ns, 3, 3, 2, 1, DISCOVERY_PATIENCE)


@behaviour("budget-one-kind-only", "minAvailable and maxUnavailable together are 422.")
async def test_both(api: Client, ns: str) -> None:
    spec = {"selector": {}, "minAvailable": 1, "maxUnavailable": 1}
    await api.refused(422, "POST", url(BUDGETS, ns), {"metadata": {"name": "budget"}, "spec": spec})


@behaviour(
    "evict-within-budget",
    "An eviction that the budget allows deletes the pod gracefully and marks it DisruptionTarget.",
)
async def test_evict(api: Client, ns: str) -> None:
    await add_budget(api, ns, minAvailable=1)
    await add_pods(api, ns, 2)
    await figures(api, ns, 2, 2, 1, 1)
    answer = await api.send("POST", url("pods", ns, "p0", "eviction"), eviction("p0"))
    assert answer.status == 201
    assert answer.body["status"] == "Success"
    found = await api.get("pods", ns, "p0")
    assert found["metadata"]["deletionTimestamp"]
    conditions = {one["type"]: one for one in found["status"]["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"
    await figures(api, ns, 2, 1, 1, 0)


@behaviour(
    "evict-beyond-budget-429", "An eviction beyond the budget is 429 TooManyRequests naming the budget; the pod stays."
)
async def test_evict_refused(api: Client, ns: str) -> None:
    await add_budget(api, ns, minAvailable=2)
    await add_pods(api, ns, 2)
    await figures(api, ns, 2, 2, 2, 0)
    status = await api.refused(429, "POST", url("pods", ns, "p0", "eviction"), eviction("p0"))
    assert status["reason"] == "TooManyRequests"
    cause = status["details"]["causes"][0]
    assert cause["reason"] == "DisruptionBudget"
    assert "budget" in cause["message"]
    assert "deletionTimestamp" not in (await api.get("pods", ns, "p0"))["metadata"]


@behaviour("evict-without-budget", "Without a budget, and for a pod that isn't running, an eviction is a delete.")
async def test_evict_free(api: Client, ns: str) -> None:
    await add_pods(api, ns, 1)
    await api.ok("POST", url("pods", ns, "p0", "eviction"), eviction("p0", gracePeriodSeconds=0))
    assert not await api.exists("pods", ns, "p0")
    await add_budget(api, ns, minAvailable=5)
    await api.create("pods", ns, pod("pending", {"app": "x"}, schedulerName="nobody"))
    await api.ok("POST", url("pods", ns, "pending", "eviction"), eviction("pending"))
    assert not await api.exists("pods", ns, "pending")


@behaviour("evict-unhealthy-pod", "A pod that isn't ready may go while the budget's healthy pods suffice.")
async def test_evict_unhealthy(api: Client, ns: str) -> None:
    await add_budget(api, ns, minAvailable=2)
    await add_pods(api, ns, 3)
    await run_pod(api, ns, "p0", "10.202.0.1", ready=False)
    await figures(api, ns, 3, 2, 2, 0)
    await api.refused(429, "POST", url("pods", ns, "p1", "eviction"), eviction("p1"))
    await api.ok("POST", url("pods", ns, "p0", "eviction"), eviction("p0"))
    assert (await api.get("pods", ns, "p0"))["metadata"]["deletionTimestamp"]


@behaviour("evict-dry-run", "A dry-run eviction answers as the real one would and changes nothing.")
async def test_evict_dry_run(api: Client, ns: str) -> None:
    await add_budget(api, ns, minAvailable=1)
    await add_pods(api, ns, 2)
    await figures(api, ns, 2, 2, 1, 1)
    await api.ok("POST", url("pods", ns, "p0", "eviction"), eviction("p0"), dryRun="All")
    assert "deletionTimestamp" not in (await api.get("pods", ns, "p0"))["metadata"]
    await figures(api, ns, 2, 2, 1, 1)


@behaviour("evict-preconditions", "An eviction whose uid precondition fails is 409.")
async def test_evict_preconditions(api: Client, ns: str) -> None:
    await add_pods(api, ns, 1)
    wrong = {"uid": "00000000-0000-0000-0000-000000000001"}
    await api.refused(409, "POST", url("pods", ns, "p0", "eviction"), eviction("p0", preconditions=wrong))
    assert "deletionTimestamp" not in (await api.get("pods", ns, "p0"))["metadata"]
