"""One picture of a comparison: how latencies are distributed, and what each policy costs."""

import io
from collections.abc import Sequence

import numpy as np

from evenflow_cli.simulation.runs import Run

COLOURS = ("#b3482f", "#c99a2e", "#7a6c9d", "#4f86b5", "#8aa05a", "#1f6f5c", "#555555", "#9d4e74")


def picture(runs: Sequence[Run], title: str) -> bytes:
    """A PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (spread, means, evictions) = plt.subplots(
        1, 3, figsize=(13, 4.8), layout="constrained", width_ratios=(1.6, 1, 1)
    )
    figure.suptitle(title, fontsize=12, fontweight="bold")
    names = [run.name for run in runs]
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(runs))]
    for run, colour in zip(runs, colours, strict=True):
        if run.latencies:
            shares = np.linspace(0.0, 100.0, len(run.latencies))
            spread.plot(run.latencies, shares, color=colour, label=run.name, linewidth=1.8)
    spread.set_xscale("symlog", linthresh=1.0)
    spread.set_xlabel("latency, s")
    spread.set_ylabel("share of requests that took at most so long, %")
    spread.legend(frameon=False, fontsize=9)
    places = np.arange(len(runs))
    means.barh(places, [run.result.mean_latency_s for run in runs], color=colours)
    means.set_xlabel("mean latency, s (number: mean, 99th percentile)")
    evictions.barh(places, [run.result.recomputed_per_generated for run in runs], color=colours)
    evictions.set_xlabel("recomputed tokens per generated token\n(number: evictions)")
    for place, run in enumerate(runs):
        evictions.text(0.0, place, f" {run.result.evictions:,}", va="center", fontsize=9)
        means.text(
            0.0, place, f" {run.result.mean_latency_s:.1f}, {run.result.p99_latency_s:.0f}", va="center", fontsize=9
        )
    for axes in (means, evictions):
        axes.set_yticks(places, names)
        axes.invert_yaxis()
    for axes in (spread, means, evictions):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    plt.close(figure)
    return data.getvalue()
