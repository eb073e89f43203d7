"""One picture of a demo run: KV use, evictions and latency over engine time, a line per phase."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = {"before": "#b3482f", "watermark": "#c99a2e", "after": "#1f6f5c"}


@dataclass(frozen=True, slots=True)
class PhaseSeries:
    """What one phase looked like; times in engine seconds since the phase began."""

    name: str
    label: str
    kv_use: Sequence[tuple[float, float]]
    """(time, mean share of KV memory in use over the engines)"""
    evictions: Sequence[tuple[float, float]]
    """(time, evictions so far, all engines)"""
    latencies: Sequence[tuple[float, float]]
    """(arrival, latency of that request in engine seconds)"""


def draw(phases: Sequence[PhaseSeries], title: str, file: Path) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (use, evictions, latency) = plt.subplots(
        3, 1, figsize=(10, 9.5), sharex=True, layout="constrained", height_ratios=(1, 1, 1.3)
    )
    figure.suptitle(title, fontsize=13, fontweight="bold")
    for phase in phases:
        colour = COLOURS.get(phase.name, "#555555")
        label = f"{phase.name}: {phase.label}"
        use.plot(*_columns(phase.kv_use, 100.0), color=colour, label=label, linewidth=1.6)
        evictions.plot(*_columns(phase.evictions, 1.0), color=colour, drawstyle="steps-post", linewidth=1.8)
        latency.plot(
            *_columns(phase.latencies, 1.0), color=colour, linestyle="", marker="o", markersize=2.2, alpha=0.22
        )
        latency.plot(*_columns(rolling_mean(phase.latencies, 60), 1.0), color=colour, linewidth=2.2)
    for index, phase in enumerate(phases):
        total = phase.evictions[-1][1] if phase.evictions else 0.0
        colour = COLOURS.get(phase.name, "#555555")
        text = f"{phase.name}: {total:,.0f}"
        evictions.text(0.01, 0.9 - 0.13 * index, text, color=colour, transform=evictions.transAxes, fontweight="bold")
    use.set_ylabel("KV memory in use, %")
    use.set_ylim(0, 103)
    use.legend(loc="lower center", frameon=False, ncols=1, fontsize=9)
    evictions.set_ylabel("evictions so far")
    evictions.set_ylim(bottom=0)
    latency.set_ylabel("latency, s\n(line: mean of 60 requests)")
    latency.set_ylim(bottom=0)
    latency.set_xlabel("time since the phase began, engine seconds (latency: by arrival)")
    for axes in (use, evictions, latency):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _columns(points: Sequence[tuple[float, float]], factor: float) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] * factor for point in points]


def rolling_mean(points: Sequence[tuple[float, float]], width: int) -> list[tuple[float, float]]:
    """Mean of `width` neighbours by time, at the middle one; fewer points than that give none."""
    ordered = sorted(points)
    total = sum(value for _, value in ordered[:width])
    means = []
    for end in range(width, len(ordered) + 1):
        means.append((ordered[end - width // 2 - 1][0], total / width))
        if end < len(ordered):
            total += ordered[end][1] - ordered[end - width][1]
    return means
