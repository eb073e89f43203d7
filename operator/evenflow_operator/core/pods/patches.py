"""Labels, annotations and worker config of each pod: the difference between what it has and what it should have.

A class that comes is in the config before it is in the labels; a class that goes leaves both at once, but only when
enough other pods serve it (make before break, docs/kubernetes.md §4).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from evenflow_contract import labels
from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_operator.api.conditions import DecisionReason
from evenflow_operator.api.enums import AdmissionMode, DecisionType
from evenflow_operator.core.decisions import decision
from evenflow_operator.core.placement.assign import Assignment
from evenflow_operator.core.placement.search import slot_counts
from evenflow_operator.core.plan import Decision, PatchPod, PushConfig
from evenflow_operator.core.pods.config import base_config, config_decisions, next_config, slot_config
from evenflow_operator.core.readings.facts import applied_generation
from evenflow_operator.core.slots.drains import Drains
from evenflow_operator.core.slots.survey import Situation
from evenflow_operator.core.snapshot import PodView
from evenflow_operator.core.times import CLOCK_SKEW_SECONDS, rfc3339

PUSH_SECONDS = 15.0
"""Shortest time between two pushes of the same document."""


@dataclass(frozen=True, slots=True)
class Patch:
    command: PatchPod
    decisions: tuple[Decision, ...]


def patches(
    situation: Situation,
    assignment: Assignment,
    drains: Drains,
    admissions: Mapping[int, Admission],
    deleted: frozenset[str],
) -> tuple[Patch, ...]:
    """`deleted` are uids of pods that this plan deletes."""
    base = base_config(situation.spec)
    retained = _retained_classes(situation, assignment)
    found = []
    for slot, pod in situation.filling.items():
        if pod.uid in deleted or not situation.settled(slot) or slot not in admissions:
            continue
        patch = _patch(
            situation, slot, pod, assignment, drains, admissions[slot], retained.get(slot, frozenset()), base
        )
        if patch is not None:
            found.append(patch)
    return tuple(found)


def pushes(situation: Situation, patched: frozenset[str]) -> tuple[PushConfig, ...]:
    """Documents that a worker should have applied by now and hasn't, as a reading from after the last push says."""
    commands = []
    memory = situation.snapshot.memory
    for pod in situation.filling.values():
        reading = situation.snapshot.readings.get(pod.uid)
        applied = applied_generation(reading)
        if pod.uid in patched or pod.ip is None or pod.worker_config is None or reading is None or applied is None:
            continue
        pushed_at = memory.pushed_at.get(pod.uid, 0.0)
        lagging = applied < pod.worker_config.generation and reading.taken_at > pushed_at
        if lagging and situation.now - pushed_at >= PUSH_SECONDS and not situation.is_orphan(pod):
            commands.append(PushConfig(pod.name, pod.uid, pod.ip, pod.worker_config))
    return tuple(commands)


def _patch(
    situation: Situation,
    slot: int,
    pod: PodView,
    assignment: Assignment,
    drains: Drains,
    admission: Admission,
    retained: frozenset[str],
    base: WorkerConfig,
) -> Patch | None:
    decisions: list[Decision] = []
    annotations: dict[str, str | None] = {}
    adopt = situation.is_orphan(pod)
    if adopt:
        message = f"adopt {pod.name}: it has no owner and is of the current revision"
        decisions.append(decision(DecisionType.ADOPT_POD, DecisionReason.ORPHAN_ADOPTED, message, slot=slot))
    if slot in drains.start:
        why = drains.start[slot]
        decisions.append(why)
        annotations[labels.DRAIN_STARTED] = rfc3339(situation.now)
        if pod.drain_reason is None:
            annotations[labels.DRAIN_REASON] = why.reason
    elif slot in drains.cancel:
        decisions.append(_cancellation(slot, pod))
        annotations[labels.DRAIN_STARTED] = None
        if pod.drain_reason is not None:
            annotations[labels.DRAIN_REASON] = None
    elif pod.drain_started is not None and pod.drain_started > situation.now + CLOCK_SKEW_SECONDS:
        # Written by hand, or before the clock was set back: its timeout would never come.
        annotations[labels.DRAIN_STARTED] = rfc3339(situation.now)
    draining = slot in drains.start or (pod.drain_started is not None and slot not in drains.cancel)
    classes = frozenset(assignment.classes.get(slot, ())) | retained
    wanted = slot_config(base, classes, admission, draining=draining)
    applied = applied_generation(situation.snapshot.readings.get(pod.uid))
    config = next_config(pod.worker_config, wanted, applied)
    if config is not None:
        figures = assignment.figures.get(slot)
        auto = situation.spec.admission.mode is AdmissionMode.AUTO
        shown = "" if figures is None else f" (severity {figures.severity:.2g})"
        decisions += config_decisions(pod.worker_config, wanted, slot, auto=auto, figures=shown)
    changes, why_labels = _labels(situation, slot, pod, classes, draining=draining)
    decisions += why_labels
    if not (changes or annotations or adopt or config is not None):
        return None
    command = PatchPod(
        slot=slot,
        name=pod.name,
        uid=pod.uid,
        resource_version=pod.resource_version,
        labels=changes,
        annotations=annotations,
        config=config,
        adopt=adopt,
        decision=decisions[0] if decisions else None,
    )
    return Patch(command, tuple(decisions))


def _labels(
    situation: Situation, slot: int, pod: PodView, classes: frozenset[str], *, draining: bool
) -> tuple[dict[str, str | None], list[Decision]]:
    changes: dict[str, str | None] = {}
    stalled = situation.stalled(pod)
    if draining or stalled:
        if not pod.serving:
            return {}, []
        changes[labels.SERVING] = None
        if draining:
            return changes, []
        message = f"take {pod.name} out of its Services: it has waiting requests and doesn't iterate"
        return changes, [decision(DecisionType.PLACE, DecisionReason.ENGINE_STALLED, message, slot=slot)]
    changes.update({labels.class_label(name): None for name in sorted(pod.classes - classes)})
    configured = frozenset(pod.worker_config.classes) if pod.worker_config is not None else frozenset()
    in_service = pod.worker_config is not None and not pod.worker_config.draining
    if not (pod.ready and in_service):
        return changes, []
    changes.update(labels.class_labels((classes & configured) - pod.classes))
    # With no class in common yet the pod would get the default class's traffic alone; that waits for the config.
    if pod.serving or (classes and not classes & configured):
        return changes, []
    changes[labels.SERVING] = labels.TRUE
    message = f"put {pod.name} into service" + (f" for {', '.join(sorted(classes & configured))}" if classes else "")
    return changes, [decision(DecisionType.PLACE, DecisionReason.SLOT_READY, message, slot=slot)]


def _retained_classes(situation: Situation, assignment: Assignment) -> dict[int, frozenset[str]]:
    """Classes that a slot must go on serving for now, because too few others do."""
    spec = situation.spec
    minimum = {entry.name: entry.min_replicas for entry in spec.traffic_classes}
    targets = slot_counts({slot: frozenset(names) for slot, names in assignment.classes.items()})
    serving: dict[str, int] = {}
    for pod in situation.filling.values():
        if situation.available(pod):
            for name in pod.classes:
                serving[name] = serving.get(name, 0) + 1
    retained: dict[int, frozenset[str]] = {}
    for slot, pod in situation.filling.items():
        kept = set()
        for name in sorted(pod.classes - frozenset(assignment.classes.get(slot, ()))):
            if name not in minimum or targets.get(name, 0) == 0:
                continue
            own = 1 if situation.available(pod) else 0
            if serving.get(name, 0) - own < min(max(1, minimum[name]), targets[name]):
                kept.add(name)
            else:
                serving[name] = serving.get(name, 0) - own
        if kept:
            retained[slot] = frozenset(kept)
    return retained


def _cancellation(slot: int, pod: PodView) -> Decision:
    reasons = {
        DecisionReason.SCALE_DOWN.value: DecisionReason.SCALE_UP,
        DecisionReason.REVISION_CHANGED.value: DecisionReason.REVISION_CHANGED,
        DecisionReason.RESTART_REQUESTED.value: DecisionReason.REVISION_CHANGED,
    }
    reason = reasons.get(pod.drain_reason or "", DecisionReason.USER_DRAIN)
    return decision(DecisionType.DRAIN, reason, f"end the drain of {pod.name}: it is wanted again", slot=slot)
