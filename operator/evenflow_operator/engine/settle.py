"""What is kept of a plan of which some commands failed: what was not done is neither remembered nor told."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenflow_operator.api.enums import DecisionType
from evenflow_operator.core.decisions import SERVICE_INPUT, SLOTS_INPUT
from evenflow_operator.core.memory import PoolMemory
from evenflow_operator.core.plan import (
    Command,
    CreatePod,
    Decision,
    DeletePod,
    DeleteService,
    PatchPod,
    Plan,
    PutService,
    ScalePool,
)

_PATCHED = frozenset(
    {
        DecisionType.ADOPT_POD,
        DecisionType.DRAIN,
        DecisionType.PLACE,
        DecisionType.CAP,
        DecisionType.WATERMARK,
        DecisionType.POLICY,
    }
)
"""Decisions that a pod's patch carries out, whichever of them the command names."""


def settle_plan(
    plan: Plan, before: PoolMemory, undone: Sequence[Command]
) -> tuple[PoolMemory, Mapping[str, Any] | None, tuple[Decision, ...]]:
    """Memory, status and decisions after all commands but the `undone` ones were carried out.

    The cap of a pod whose patch failed starts again from the state before; a decision whose every command failed is
    taken out of the record.
    """
    if not undone:
        return plan.memory, plan.status, plan.decisions
    lost = [one for one in plan.decisions if _all_failed(one, undone, plan.commands)]
    memory = replace(plan.memory, caps=_caps(plan, before, undone))
    if not lost:
        return memory, plan.status, plan.decisions
    memory = replace(memory, decisions=_without(memory.decisions, lost, len(plan.decisions)))
    status = plan.status
    if status is not None:
        status = {**status, "decisions": list(memory.decisions)}
        memory = replace(memory, written_status=status)
    return memory, status, tuple(one for one in plan.decisions if one not in lost)


def _caps(plan: Plan, before: PoolMemory, undone: Sequence[Command]) -> Mapping[str, Any]:
    caps = dict(plan.memory.caps)
    for command in undone:
        if isinstance(command, PatchPod):
            caps.pop(command.uid, None)
            if command.uid in before.caps:
                caps[command.uid] = before.caps[command.uid]
    return caps


def _without(records: Sequence[Mapping[str, Any]], lost: Sequence[Decision], new: int) -> tuple[Mapping[str, Any], ...]:
    """The record without the lost ones among its `new` last entries."""
    gone = {(one.type, one.reason) for one in lost}
    messages = tuple(one.message for one in lost)
    old = max(0, len(records) - new)
    kept = [
        one
        for one in records[old:]
        # A recorded message may be cut, never changed otherwise.
        if not ((one["type"], one["reason"]) in gone and any(text.startswith(one["message"]) for text in messages))
    ]
    return (*records[:old], *kept)


def _all_failed(decision: Decision, undone: Sequence[Command], commands: Sequence[Command]) -> bool:
    own = [command for command in commands if _carries_out(command, decision)]
    return bool(own) and all(any(command is other for other in undone) for command in own)


def _carries_out(command: Command, decision: Decision) -> bool:
    if isinstance(command, ScalePool):
        return command.decision is decision
    if isinstance(command, PutService):
        return decision.inputs.get(SERVICE_INPUT) == str(command.manifest["metadata"]["name"])
    if isinstance(command, DeleteService):
        return decision.inputs.get(SERVICE_INPUT) == command.name
    if not isinstance(command, CreatePod | DeletePod | PatchPod) or str(command.slot) not in _slots(decision):
        return False
    named = command.decision
    if named is not None and (named.type, named.reason) == (decision.type, decision.reason):
        return True
    if isinstance(command, PatchPod):
        return decision.type in _PATCHED
    return isinstance(command, CreatePod) and decision.type == DecisionType.PLACE


def _slots(decision: Decision) -> Sequence[str]:
    if SLOTS_INPUT in decision.inputs:
        return decision.inputs[SLOTS_INPUT].split(",")
    return () if decision.slot is None else (str(decision.slot),)
