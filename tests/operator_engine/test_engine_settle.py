from dataclasses import replace
from typing import Any

from evenflow_contract.worker_config import WorkerConfig
from evenflow_operator.core.aimd import AimdState
from evenflow_operator.core.decisions import merged, recorded
from evenflow_operator.core.memory import CapState, PoolMemory
from evenflow_operator.core.plan import Command, CreatePod, Decision, PatchPod, Plan, PutService
from evenflow_operator.engine.settle import settle_plan


def cap(value: float) -> CapState:
    return CapState(AimdState(cap=value))


def create(slot: int) -> CreatePod:
    why = Decision("CreatePod", "SlotEmpty", "create a pod", {}, slot)
    return CreatePod(slot, {"metadata": {"name": f"llama-{slot}-x"}}, why)


def patch(slot: int) -> PatchPod:
    why = Decision("Cap", "CapRaised", "cap 1 -> 2", {}, slot)
    return PatchPod(slot, f"llama-{slot}-x", f"pod-{slot}", "1", {}, {}, WorkerConfig(generation=2), decision=why)


def plan(*commands: Command, more: tuple[Decision, ...] = ()) -> Plan:
    named = [one for one in (getattr(command, "decision", None) for command in commands) if one is not None]
    decisions = merged([*named, *more])
    before = [{"time": "t", "type": "Scale", "reason": "Old", "message": "old", "inputs": {}}]
    memory = PoolMemory(decisions=recorded(before, decisions, 1000.0), caps={"pod-0": cap(2.0), "pod-1": cap(2.0)})
    status: dict[str, Any] = {"replicas": 1, "decisions": list(memory.decisions)}
    return Plan(tuple(commands), decisions, status, replace(memory, written_status=status), None)


BEFORE = PoolMemory(caps={"pod-0": cap(1.0)})


def types(memory: PoolMemory) -> list[str]:
    return [record["type"] for record in memory.decisions]


def test_a_plan_that_was_carried_out_is_kept_as_it_is() -> None:
    made = plan(create(0), patch(1))
    assert settle_plan(made, BEFORE, []) == (made.memory, made.status, made.decisions)


def test_a_create_that_failed_is_not_told() -> None:
    made = plan(create(0))
    memory, status, decisions = settle_plan(made, BEFORE, list(made.commands))
    assert decisions == ()
    assert types(memory) == ["Scale"]
    assert status is not None
    assert [record["type"] for record in status["decisions"]] == ["Scale"]
    assert memory.written_status == status, "the next pass must compare with what is really written"


def test_a_decision_about_several_slots_stays_while_one_of_them_succeeded() -> None:
    made = plan(create(0), create(1))
    assert len(made.decisions) == 1
    memory, _, decisions = settle_plan(made, BEFORE, [made.commands[1]])
    assert decisions == made.decisions
    assert types(memory) == ["Scale", "CreatePod"]


def test_a_cap_that_was_not_written_starts_again_from_before() -> None:
    made = plan(patch(0), patch(1))
    memory, _, decisions = settle_plan(made, BEFORE, list(made.commands))
    assert memory.caps == {"pod-0": cap(1.0)}, "a pod without a state before has none now"
    assert decisions == ()


def test_every_decision_that_a_failed_patch_carried_is_lost() -> None:
    watermark = Decision("Watermark", "WatermarkSet", "watermark 5% -> 0%", {}, 0)
    made = plan(patch(0), create(1), more=(watermark,))
    _, _, decisions = settle_plan(made, BEFORE, [made.commands[0]])
    assert [one.type for one in decisions] == ["CreatePod"]


def test_a_service_that_failed_is_told_by_its_name() -> None:
    about = [
        Decision("CreateService", "ServiceMissing", f"create Service {name}", {"service": name}) for name in ("a", "b")
    ]
    services = [PutService({"metadata": {"name": name}}) for name in ("a", "b")]
    made = plan(*services, more=tuple(about))
    _, _, decisions = settle_plan(made, BEFORE, [services[1]])
    assert decisions == (about[0],)


def test_decisions_without_a_command_are_always_told() -> None:
    hold = Decision("Hold", "MetricsStale", "caps hold", {})
    made = plan(create(0), more=(hold,))
    memory, _, decisions = settle_plan(made, BEFORE, [made.commands[0]])
    assert decisions == (hold,)
    assert types(memory) == ["Scale", "Hold"]


def test_a_long_message_is_found_although_the_record_cuts_it() -> None:
    command = create(0)
    long = replace(command, decision=replace(command.decision, message="x" * 3000))
    made = plan(long)
    memory, _, _ = settle_plan(made, BEFORE, [long])
    assert types(memory) == ["Scale"]
