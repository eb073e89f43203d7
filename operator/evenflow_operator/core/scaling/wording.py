"""The autoscaler's figures in words, for decisions, the condition and metrics."""

import math

from evenflow_operator.core.plan import ScalingFigures
from evenflow_operator.core.scaling.engine import RESOURCE_NAMES, RESOURCES
from evenflow_operator.core.scaling.load import GroupLoad, PoolLoad


def load_words(load: PoolLoad, target: float) -> str:
    group = load.fullest
    share = load.share(group.binding)
    return f"{RESOURCE_NAMES[group.binding]} binds: {share:.0%} of {_slots(len(group.slots))}, target {target:.0%}"


def up_message(load: PoolLoad, replicas: int, to: int, target: float) -> str:
    return f"replicas {replicas} -> {to}: {load_words(load, target)}{_traffic(load)}"


def down_message(load: PoolLoad, to: int, target: float) -> str:
    group = load.fullest
    left = max(1, len(group.slots) - 1)
    share = load.share(group.binding) * len(group.slots) / left
    then = f"; with one slot less it would be {share:.0%}"
    return f"replicas {to + 1} -> {to}: {load_words(load, target)}{then}"


def stuck_message(group: GroupLoad, target: float, reach: int) -> str:
    names = ", ".join(sorted(group.classes)) or "no class"
    short = group.more(target) - len(group.slots)
    return (
        f"the slots of {names} call for {short} more, but none of the next {_slots(reach)} would serve it; "
        "give one of them the class in placement.static, or set placement.strategy to All"
    )


def figures_of(load: PoolLoad, called: int) -> ScalingFigures:
    return ScalingFigures({name: load.share(name) for name in RESOURCES}, called, load.drain_seconds)


def _traffic(load: PoolLoad) -> str:
    parts = []
    if load.arrivals is not None:
        parts.append(f"{60 * load.arrivals:.3g} requests a minute arrive")
    if load.waiting > 0:
        seconds = load.drain_seconds
        drain = f"{seconds:.0f} s to drain" if math.isfinite(seconds) else "without end at this rate"
        parts.append(f"{load.waiting:.0f} wait ({drain})")
    return "; " + ", ".join(parts) if parts else ""


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"
