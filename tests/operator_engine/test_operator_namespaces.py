"""An operator of several namespaces: one that is gone, and its Role with it, costs the others nothing."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from cluster_kit import eventually, running, stage
from engine_kit import DictCluster, travel

from evenflow_devcluster.embedded.faults import Fault
from evenflow_operator.engine import scope
from evenflow_operator.engine.scope import Scope, ScopeChanged
from evenflow_operator.main import Operator
from evenflow_operator.ports import ApiError, Identity, Kind

REFUSED = ApiError(403, "Forbidden", "cannot list resource")
SILENT = ApiError(0, "Timeout", "no answer")


class Guarded(DictCluster):
    def __init__(self, answers: Mapping[str, ApiError]) -> None:
        super().__init__()
        self.answers = dict(answers)
        self.once: dict[str, ApiError] = {}

    async def list_identities(self, kind: Kind, namespace: str | None) -> list[Identity]:
        error = self.once.pop(namespace or "", None) or self.answers.get(namespace or "")
        if error is not None:
            raise error
        return []


async def test_what_may_not_be_read_is_left_out_unless_nothing_may() -> None:
    assert await Scope(Guarded({"a": REFUSED}), ("a", "b")).served() == ("b",)
    assert await Scope(Guarded({"a": SILENT}), ("a", "b")).served() == ("a", "b")
    assert await Scope(Guarded({"a": REFUSED, "b": REFUSED}), ("a", "b")).served() == ("a", "b")
    assert await Scope(Guarded({}), ()).served() == ()


@pytest.mark.parametrize("first", [{}, {"a": REFUSED}])
def test_a_change_that_lasts_starts_the_operator_anew(first: Mapping[str, ApiError]) -> None:
    async def work() -> None:
        cluster = Guarded(first)
        watched = Scope(cluster, ("a", "b"))
        await watched.served()
        holding = asyncio.create_task(watched.hold())
        await asyncio.sleep(1000)
        cluster.answers = {"a": SILENT, "b": SILENT}
        await asyncio.sleep(1000)
        cluster.answers = dict(first)
        cluster.once = {"b": REFUSED}
        await asyncio.sleep(1000)
        assert not cluster.once
        assert not holding.done()
        cluster.answers = {} if first else {"a": REFUSED}
        with pytest.raises(ScopeChanged, match="namespace a"):
            await holding

    travel(work)


async def test_the_others_are_served_and_one_that_comes_back_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope, "EVERY_SECONDS", 0.1)
    monkeypatch.setattr(scope, "AGAIN_SECONDS", 0.1)
    async with stage(tmp_path) as s:
        settings = s.settings(namespaces=("a", "b"))
        for name in settings.namespaces:
            await s.create_namespace(name)
            await s.apply_pool(namespace=name)
        s.cluster.faults.add(Fault(namespaces=("a",), user_agents=("kopf", "evenflow-operator"), status=403))
        task = asyncio.create_task(Operator(settings).run(asyncio.Event()))
        await eventually(lambda: s.is_ready(namespace="b"), "b is served")
        s.cluster.faults.clear()
        with pytest.raises(ScopeChanged, match="namespace a"):
            await asyncio.wait_for(task, 10)
        async with running(settings):
            await eventually(lambda: s.is_ready(namespace="a"), "a is served")
