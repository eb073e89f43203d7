"""Users who take our labels off objects: nothing loops, nothing is lost, a pod set aside is replaced."""

from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Stage, eventually, pools, running, stage

from evenflow_operator.adapters.kube import MERGE_PATCH
from evenflow_operator.core.slots import refill

POOL = "evenflow.dev/pool"


async def take_off(s: Stage, kind: str, name: str, label: str) -> None:
    body = {"metadata": {"labels": {label: None}}}
    await s.request("PATCH", f"/api/v1/namespaces/default/{kind}/{name}", body=body, content_type=MERGE_PATCH)


def labels_of(s: Stage, kind: str, name: str) -> dict[str, Any]:
    obj = s.cluster.api.get(kind, "default", name) or {}
    return dict((obj.get("metadata") or {}).get("labels") or {})


async def test_a_service_whose_label_was_taken_off_gets_it_back_and_the_status_comes_to_rest(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        await take_off(s, "services", "llama-chat", POOL)
        await eventually(lambda: labels_of(s, "services", "llama-chat").get(POOL) == "llama", "the label is back")
        await s.patch_pool("llama", {"replicas": 3})
        await eventually(lambda: len(s.names()) == 3 and s.is_ready(), "a third pod")
        records = (await s.pool())["status"]["decisions"]
        assert len([one for one in records if one["message"].startswith("create Service llama-chat")]) <= 2


async def test_what_a_pool_left_behind_belongs_to_the_next_one_of_its_name(tmp_path: Path) -> None:
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        before = s.names()
        await s.request("DELETE", f"{pools('default')}/llama", body={"propagationPolicy": "Orphan"})
        await s.apply_pool()
        uid = (await s.pool())["metadata"]["uid"]

        def owners() -> set[str]:
            found = [*s.pods(), *(s.cluster.api.get("services", "default", name) or {} for name in s.services())]
            return {owner["uid"] for one in found for owner in one["metadata"].get("ownerReferences", [{"uid": ""}])}

        await eventually(lambda: owners() == {uid} and s.is_ready(), "pods and Services have the new owner")
        assert s.names() == before
        assert s.services() == {"llama", "llama-chat"}
        assert s.condition("SpecValid")["status"] == "True"
        await s.delete_pool("llama")
        await eventually(lambda: not s.names() and not s.services(), "all go with it")


async def test_a_pod_set_aside_is_left_alone_and_its_slot_filled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refill, "FIRST_BACKOFF_SECONDS", 0.2)
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        aside = s.names()[0]
        await take_off(s, "pods", aside, POOL)
        await eventually(lambda: len(s.names(pool="llama")) == 2 and s.is_ready(), "the slot is filled anew", 30.0)
        assert aside in s.names()
        assert aside not in s.names(pool="llama")


async def test_a_pod_without_its_slot_label_is_left_alone_and_its_slot_filled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refill, "FIRST_BACKOFF_SECONDS", 0.2)
    async with stage(tmp_path) as s, running(s.settings()):
        await s.apply_pool()
        await eventually(lambda: s.is_ready(), "ready")
        aside = s.names()[0]
        await take_off(s, "pods", aside, "evenflow.dev/slot")
        await eventually(lambda: len(s.names(pool="llama")) == 3 and s.is_ready(), "the slot is filled anew", 30.0)
        assert aside in s.names()
