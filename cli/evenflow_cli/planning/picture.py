"""One picture of a plan: severity, what requests hold over their lives, KV memory over time, and load by replicas."""

import io
import math
from typing import Any

import numpy as np

from evenflow_cli.planning.document import classes_of
from evenflow_cli.planning.plan import PoolPlan
from evenflow_cli.planning.table import short
from evenflow_model.congestion import GREEDY, Actuators
from evenflow_model.congestion import simulate as simulate_flow
from evenflow_model.lengths import LengthMix
from evenflow_operator.core.caps import ACT_ABOVE
from evenflow_operator.core.placement.search import OK_BELOW
from evenflow_operator.core.scaling.engine import RESOURCES, Resource

COLOURS = ("#1f6f5c", "#4f86b5", "#c99a2e", "#7a6c9d", "#9d4e74", "#8aa05a", "#b3482f", "#555555")
GOOD, FAIR, BAD = "#1f6f5c", "#c99a2e", "#b3482f"
RESOURCE_LABELS: dict[Resource, str] = {"kv": "KV memory", "stepBudget": "step budget", "sequences": "sequences"}
LIFETIMES = 5
MOST_ITERATIONS = 3000
MOST_REQUESTS = 60_000
SHOWN_CLASSES = 8
LABELLED_CLASSES = 4
BESIDE_SHARE = 0.35
"""Part of the longest output below which a class's label stands beside its end: before it there is no room."""


def picture(plan: PoolPlan) -> bytes:
    """A PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(13, 8.4), layout="constrained")
    pool = plan.subject.pool
    figure.suptitle(
        (
            f"{pool.metadata.name}: {pool.spec.replicas} x {pool.spec.model.name}, "
            f"{plan.subject.memory.tokens:,} KV tokens each"
        ),
        fontsize=13,
        fontweight="bold",
    )
    _severities(axes[0, 0], plan)
    _lives(axes[0, 1], plan)
    _memory_over_time(axes[1, 0], plan)
    _loads(axes[1, 1], plan)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    plt.close(figure)
    return data.getvalue()


def _severities(axes: Any, plan: PoolPlan) -> None:
    least, most = 1e-4, max(2.0, *(2 * one.severity for one in plan.candidates))
    for low, high, colour in ((least, OK_BELOW, GOOD), (OK_BELOW, ACT_ABOVE, FAIR), (ACT_ABOVE, most, BAD)):
        axes.axvspan(low, high, color=colour, alpha=0.1, linewidth=0)
    for place, one in enumerate(plan.candidates):
        value = one.severity
        colour = GOOD if value < OK_BELOW else BAD if value > ACT_ABOVE else FAIR
        axes.plot([least, max(value, least)], [place, place], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot(max(value, least), place, "o", color=colour, markersize=11, clip_on=False)
        axes.annotate(
            "0" if value < least else f"{value:.2g}",
            (max(value, least), place),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    names = [f"{one.name}{'' if one.note is None else f' ({one.note})'}" for one in plan.candidates]
    axes.set_yticks(range(len(names)), names)
    for label, one in zip(axes.get_yticklabels(), plan.candidates, strict=True):
        label.set_fontweight("bold" if one.name == plan.choice.candidate.name else "normal")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.set_xticks([least, 0.001, OK_BELOW, ACT_ABOVE, 0.5], ["0", ".001", ".005", ".05", ".5"])
    axes.minorticks_off()
    axes.set_xlabel("severity of the worst slot: fine below .005, act above .05 (bold: chosen)")
    axes.set_title("How far lengths finish in step, by placement", loc="left", fontsize=11)


def _lives(axes: Any, plan: PoolPlan) -> None:
    classes = sorted(classes_of(plan.subject), key=lambda one: -one["meanVolume"])[:SHOWN_CLASSES]
    longest = max(one["outputTokens"] for one in classes)
    crowded = len(classes) > LABELLED_CLASSES
    for number, one in enumerate(classes):
        prompt, output = one["promptTokens"], one["outputTokens"]
        beside, colour = output < BESIDE_SHARE * longest, COLOURS[number % len(COLOURS)]
        outline, text = (
            ([0, 0, output, output], [0, prompt, prompt + output, 0]),
            f"{one['name']}: {short(one['meanVolume'])}",
        )
        axes.fill(*outline, color=colour, alpha=0.06 if crowded else 0.18, linewidth=0)
        axes.plot(*outline, color=colour, linewidth=1.8, label=text)
        if not crowded:
            axes.annotate(
                text,
                (output, prompt + output),
                xytext=(4, -4) if beside else (-4, 5),
                textcoords="offset points",
                ha="left" if beside else "right",
                fontsize=9,
                color=colour,
            )
    if crowded:
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper left")
    axes.set_xlim(left=0)
    axes.set_ylim(0, (1.35 if crowded else 1.15) * max(one["promptTokens"] + one["outputTokens"] for one in classes))
    axes.set_xlabel("iterations since the request was admitted")
    axes.set_ylabel("KV tokens held")
    axes.set_title("A mean request's life (area and number: its volume)", loc="left", fontsize=11)
    axes.grid(alpha=0.25)


def _memory_over_time(axes: Any, plan: PoolPlan) -> None:
    worst = plan.worst
    mix, kv = worst.group.mix, worst.group.kv_tokens
    iterations = min(MOST_ITERATIONS, max(200, math.ceil(LIFETIMES * mix.mean_output())))
    requests = _requests(mix, kv, iterations * worst.group.token_rate)
    cap = None if worst.multiple is None else worst.multiple * worst.group.figures.rate
    planned = Actuators(cap=cap, watermark=int(worst.admission.watermark * kv))
    text = "no cap" if worst.multiple is None else f"cap {worst.multiple:.2g} x*"
    label = f"as planned: {text}, watermark {worst.admission.watermark:.0%}"
    so_far = axes.twinx()
    for name, actuators, colour in (("nothing held back", GREEDY, BAD), (label, planned, GOOD)):
        flow = simulate_flow(requests, kv, iterations, actuators=actuators)
        use = 100 * flow.memory / kv
        evictions = flow.evicted.sum() / max(1, flow.completed.sum())
        axes.plot(use, color=colour, linewidth=1.2, alpha=0.9, label=f"{name}, {evictions:.2f} evictions/completion")
        so_far.plot(np.cumsum(flow.evicted), color=colour, linewidth=1.2, linestyle=":")
    so_far.set_ylim(0, max(10.0, 1.5 * so_far.get_ylim()[1]))
    so_far.set_ylabel("evictions so far (dotted)")
    so_far.spines[["top"]].set_visible(False)
    axes.set_ylim(0, 140)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlim(0, iterations)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.set_xlabel("iterations from an empty server with a full queue")
    axes.set_ylabel("KV memory in use, %")
    axes.set_title("The worst slot under pressure, simulated", loc="left", fontsize=11)
    axes.grid(alpha=0.25)


def _requests(mix: LengthMix, kv_tokens: int, expected: float) -> list[tuple[int, int]]:
    """Enough requests of the mix in random order to keep the queue full; always the same ones."""
    fitting = np.rint(mix.prompts) + mix.outputs <= kv_tokens
    shares = mix.shares[fitting] / mix.shares[fitting].sum()
    count = min(MOST_REQUESTS, math.ceil(3 * expected) + 200)
    drawn = np.random.default_rng(0).choice(np.flatnonzero(fitting), size=count, p=shares)
    prompts = np.rint(mix.prompts[drawn]).astype(np.int64)
    return list(zip(prompts.tolist(), mix.outputs[drawn].tolist(), strict=True))


def _loads(axes: Any, plan: PoolPlan) -> None:
    capacity, replicas = plan.capacity, plan.subject.pool.spec.replicas
    axes.set_title("Load of each resource", loc="left", fontsize=11)
    if capacity.load is None:
        shares = [100 * capacity.full.shares[name] for name in RESOURCES]
        axes.barh([RESOURCE_LABELS[name] for name in RESOURCES], shares, color=COLOURS[: len(RESOURCES)], height=0.5)
        axes.invert_yaxis()
        axes.set_xlim(0, 105)
        axes.set_xlabel(f"% in use at {60 * capacity.sustained:,.3g} requests a minute, the most of a replica")
        axes.grid(alpha=0.25, axis="x")
        return
    last = max(replicas, capacity.needed or replicas) + 3
    numbers = np.arange(1, last + 1)
    for name, colour in zip(RESOURCES, COLOURS, strict=False):
        loads = 100 * capacity.load.shares[name] * replicas / numbers
        axes.plot(numbers, loads, "o-", color=colour, linewidth=2, markersize=4, label=RESOURCE_LABELS[name])
    axes.axhline(100 * capacity.target, color="#555555", linestyle="--", linewidth=1)
    axes.annotate(
        f"target {capacity.target:.0%}",
        (last, 100 * capacity.target),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axes.axvline(replicas, color="#555555", linewidth=1, alpha=0.5)
    axes.annotate("now", (replicas, 112), xytext=(4, 0), textcoords="offset points", fontsize=9)
    if capacity.needed is not None:
        axes.axvline(capacity.needed, color=GOOD, linewidth=6, alpha=0.2)
        axes.annotate(
            "needed", (capacity.needed, 104), xytext=(4, 0), textcoords="offset points", fontsize=9, color=GOOD
        )
    axes.set_ylim(0, 160)
    axes.set_xticks(numbers if last <= 20 else np.unique(np.linspace(1, last, 12).astype(int)))
    axes.set_xlabel(f"replicas, at {60 * (capacity.rate or 0):,.4g} requests a minute ({plan.subject.rate_source})")
    axes.set_ylabel("load of the fullest slot, %")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.grid(alpha=0.25)
