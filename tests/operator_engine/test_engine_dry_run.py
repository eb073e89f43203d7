"""What an answer to a dry run means, and what a pass does with it."""

from typing import Any

import pytest
from engine_kit import NAMESPACE, DictCluster, pool_record
from test_engine_reconcile import EMPTY, Bench, planned

from evenflow_operator.core.plan import DryRunPod, PutService
from evenflow_operator.engine.dry_run import ask
from evenflow_operator.ports import ApiError

QUESTION = DryRunPod("0a1b2c3d4e", 3, {"metadata": {"name": "llama-0-x", "namespace": NAMESPACE}})
QUOTA = 'pods "llama-0-x" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'
UNKNOWN = 'pods "llama-0-x" is forbidden: status unknown for quota: few, resources: pods'
LIMITS = 'pods "llama-0-x" is forbidden: failed quota: few: must specify limits.cpu for: engine'
GOING = 'pods "llama-0-x" is forbidden: unable to create new content in namespace a because it is being terminated'
OLD_HOOK = 'admission webhook "hook.example.com" does not support dry run'
DOWN_HOOK = 'Internal error occurred: failed calling webhook "hook.example.com": connection refused'
YES, NO, OPEN = "yes", "no", "open"


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (None, YES),
        (ApiError(422, "Invalid", "spec.tolerations[0]: Forbidden"), NO),
        (ApiError(403, "Forbidden", "violates PodSecurity"), NO),
        (ApiError(403, "Forbidden", 'cannot create resource "pods"'), NO),
        (ApiError(400, "BadRequest", 'unknown field "spec.bogus"'), NO),
        (ApiError(413, "RequestEntityTooLarge", ""), NO),
        (ApiError(403, "Forbidden", LIMITS), NO),
        (ApiError(403, "Forbidden", QUOTA), YES),
        (ApiError(400, "BadRequest", OLD_HOOK), YES),
        (ApiError(409, "AlreadyExists", ""), YES),
        (ApiError(409, "Conflict", ""), YES),
        (ApiError(403, "Forbidden", UNKNOWN), OPEN),
        (ApiError(403, "Forbidden", GOING), OPEN),
        (ApiError(404, "NotFound", "namespaces"), OPEN),
        (ApiError(401, "Unauthorized", ""), OPEN),
        (ApiError(408, "Timeout", ""), OPEN),
        (ApiError(429, "TooManyRequests", "", retry_after=7.0), OPEN),
        (ApiError(500, "InternalError", DOWN_HOOK), OPEN),
        (ApiError(503, "ServiceUnavailable", ""), OPEN),
        (ApiError(0, "Timeout", "no answer within 15 s"), OPEN),
    ],
)
async def test_only_a_clear_no_is_a_refusal(error: ApiError | None, meaning: str) -> None:
    cluster = DictCluster()
    cluster.fail_before = lambda verb, name: error
    answer = await ask(cluster, pool_record(), QUESTION)
    assert answer.command is QUESTION
    assert (NO if answer.refused else OPEN if answer.problem else YES) == meaning
    assert answer.retry_after == (7.0 if error is not None and error.status == 429 else 0.0)
    if meaning != YES:
        assert answer.problem.startswith("create pod llama-0-x, tried as a dry run: ")


@pytest.mark.parametrize(
    "error", [None, ApiError(422, "Invalid", "spec: no"), ApiError(503, "ServiceUnavailable", "later")]
)
async def test_the_answer_is_known_to_the_next_decision_and_fails_no_pass(error: ApiError | None) -> None:
    bench = Bench()
    bench.plan = planned(QUESTION, requeue_after=0.2)
    bench.cluster.fail_before = lambda verb, name: error
    await bench.once()
    assert bench.queue.dates == [0.2]
    assert bench.heard.events == [], "Degraded tells a refusal, in the next pass"
    bench.plan = lambda snapshot: EMPTY
    await bench.once()
    known = bench.seen[1].memory.dry_run
    assert known is not None
    assert (known.revision, known.generation) == ("0a1b2c3d4e", 3)
    assert known.problem == (f"create pod llama-0-x, tried as a dry run: {error}" if error else "")
    assert known.refused == (error is not None and error.status == 422)
    assert bench.cluster.pods == {}


async def test_what_may_take_long_and_changes_nothing_comes_last() -> None:
    bench = Bench()
    done: list[tuple[str, str]] = []

    def noted(verb: str, name: str) -> Any:
        done.append((verb, name))

    bench.cluster.fail_before = noted
    service = {"metadata": {"name": "llama", "ownerReferences": []}, "spec": {"selector": {}, "ports": []}}
    bench.plan = planned(QUESTION, PutService(service))
    await bench.once()
    assert done == [("create", "llama"), ("dry-run", "llama-0-x")]
