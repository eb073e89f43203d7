"""Draw the pictures of docs/theory.md with the library itself; a minute on one core.

python docs/make_pictures.py [NAME …]        (volume, wave, aging, cures, severity; all by default)
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenflow_contract.worker_config import Admission, ClassPrior, WorkerConfig
from evenflow_model.congestion import Actuators, FlowTrace, eviction_free_rate, simulate
from evenflow_model.fleet.records import EngineRequest, EngineSpec, FinishedRequest
from evenflow_model.lengths import LengthMix
from evenflow_model.severity import eviction_free_watermark, severity
from evenflow_model.svf import Policy, Request, schedule
from evenflow_model.volume import volume
from evenflow_worker.simulated.core import EngineCore

FOLDER = Path(__file__).parent / "pictures"
INK, MUTED, GRID = "#22303c", "#6b7785", "#e4e8ec"
BLUE, ORANGE, GREEN, RED = "#2a6f97", "#e07a1f", "#3a8f5c", "#b8323f"
KV, PROMPT = 430_000, 512
TIERS = (100, 125, 200, 250)


def style() -> None:
    mpl.rcParams.update(
        {
            "figure.dpi": 140,
            "savefig.dpi": 140,
            "font.family": "DejaVu Sans",
            "font.size": 9.5,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.edgecolor": MUTED,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": GRID,
            "axes.axisbelow": True,
            "text.color": INK,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "legend.frameon": False,
        }
    )


def save(figure: Figure, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / f"{name}.png", facecolor="white")
    print(f"{name}.png", file=sys.stderr, flush=True)


def random_requests(tiers: tuple[int, ...], count: int, seed: int) -> list[tuple[int, int]]:
    chosen = np.random.default_rng(seed).integers(0, len(tiers), count).tolist()
    return [(PROMPT, tiers[k]) for k in chosen]


def draw_volume() -> None:
    figure = Figure(figsize=(11, 4.0), layout="constrained")
    first, fcfs, svf = figure.subplots(1, 3, gridspec_kw={"width_ratios": [1.05, 1, 1]})
    for (prompt, output), colour, words in (
        ((60, 240), BLUE, "short prompt,\nlong answer"),
        ((420, 40), ORANGE, "long prompt,\nshort answer"),
    ):
        steps = np.arange(1, output + 1)
        first.fill_between([0, *steps], [prompt, *(prompt + steps)], color=colour, alpha=0.75, lw=0)
        x, y = (118, 55) if output > 100 else (48, 440)
        text = f"{words}\nvolume {volume(prompt, output):,}"
        first.text(x, y, text, color="white" if output > 100 else colour, weight="bold", va="center")
    first.set(
        title="Volume: memory × time", xlabel="iterations since admission", ylabel="KV tokens held", ylim=(0, 520)
    )

    rng = np.random.default_rng(4)
    requests = [Request(int(s), int(o)) for s, o in zip(rng.integers(20, 90, 26), rng.integers(8, 50, 26), strict=True)]
    requests[1], requests[2], requests[4] = Request(420, 60), Request(380, 80), Request(450, 70)
    longest = 0
    panels: list[tuple[Axes, Policy]] = [(fcfs, "FCFS"), (svf, "SVF")]
    for axes, policy in panels:
        longest = max(longest, burst_profile(axes, requests, 600, policy))
    for axes in (fcfs, svf):
        axes.set(xlim=(0, longest), ylim=(0, 660), xlabel="iteration", ylabel="KV tokens held")
        axes.axhline(600, color=INK, lw=1)
        axes.text(longest, 606, "M", ha="right", va="bottom")
    save(figure, "volume")


def burst_profile(axes: Axes, requests: list[Request], kv: int, policy: Policy) -> int:
    """One band per request; returns the step in which the last one ends."""
    found = schedule(requests, kv, policy)
    end = max(k + r.output for k, r in zip(found.starts, requests, strict=True))
    below = np.zeros(end + 1)
    order = sorted(range(len(requests)), key=lambda i: (found.starts[i], i))
    for i in order:
        start, request = found.starts[i], requests[i]
        held = np.zeros(end + 1)
        held[start + 1 : start + request.output + 1] = request.prompt + np.arange(1, request.output + 1)
        big = request.prompt > 300
        axes.fill_between(
            np.arange(end + 1),
            below,
            below + held,
            where=held > 0,
            color=ORANGE if big else BLUE,
            alpha=0.8,
            lw=0.8,
            edgecolor="white",
            step="pre",
        )
        below += held
    mean = found.total_latency / len(requests)
    axes.set_title(f"{policy}: mean latency {mean:.0f} iterations")
    return end


def greedy_and_capped() -> tuple[FlowTrace, FlowTrace, float]:
    mix = LengthMix([(1, PROMPT, o) for o in TIERS])
    even = eviction_free_rate(mix, KV)
    requests = random_requests(TIERS, 6_000, 0)
    return simulate(requests, KV), simulate(requests, KV, actuators=Actuators(even)), even


def draw_wave() -> None:
    greedy, capped, even = greedy_and_capped()
    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(3, 2, sharex=True, sharey="row", gridspec_kw={"height_ratios": [1, 0.8, 1]})
    window = slice(400, 700)
    x = np.arange(window.start, window.stop)
    titles = ("Greedy admission", f"Admission cap at x* = {even:.2f} requests per iteration")
    for column, (trace, title) in enumerate(zip((greedy, capped), titles, strict=True)):
        admitted, evicted, memory = (row[column] for row in panels)
        admitted.bar(x, trace.admitted[window], width=1.0, color=BLUE)
        admitted.set_title(title)
        evicted.bar(x, trace.evicted[window], width=1.0, color=RED)
        count = int(trace.evicted[window].sum())
        evicted.text(
            0.99, 0.86, f"{count} in this window", transform=evicted.transAxes, ha="right", va="top", color=RED
        )
        memory.plot(x, np.minimum(trace.memory_before[window] / KV, 1.0), color=INK, lw=1.1)
        memory.set(xlabel="iteration", ylim=(0.7, 1.02))
    panels[1][0].set_ylim(0, 4)
    for row, label in zip(panels, ("admitted", "evicted", "share of KV memory"), strict=True):
        row[0].set_ylabel(label)
    words = "Output tiers {100, 125, 200, 250}, prompt 512, M = 430,000, demand without end; per iteration"
    figure.suptitle(words, x=0.01, ha="left", color=MUTED, fontsize=9.5)
    save(figure, "wave")


LOAD = {"chat": (900, 220, 0.62), "code": (2_200, 30, 0.30), "report": (4_000, 400, 0.08)}


def mixed_load(seconds: float, rate: float, seed: int) -> list[EngineRequest]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, int(2 * seconds * rate)))
    names = list(LOAD)
    requests = []
    for number, arrival in enumerate(arrivals[arrivals < seconds].tolist()):
        name = names[int(rng.choice(len(names), p=[LOAD[n][2] for n in names]))]
        prompt, output, _ = LOAD[name]
        s = int(np.clip(rng.lognormal(math.log(prompt) - 0.125, 0.5), 16, 12_000))
        o = int(np.clip(rng.lognormal(math.log(output) - 0.245, 0.7), 1, 3_000))
        requests.append(EngineRequest(str(number), s, o, o, name, arrival))
    return requests


def latencies(config: WorkerConfig) -> np.ndarray:
    core = EngineCore(EngineSpec(kv_tokens=60_000, max_model_len=16_384), config)
    done: list[FinishedRequest] = []
    for request in mixed_load(240.0, 6.2, 2):
        while core.has_work and core.now < request.arrival_s:
            done.extend(core.step().finished)
        if not core.has_work:
            core.advance_idle(request.arrival_s)
        core.add(request)
    while core.has_work:
        done.extend(core.step().finished)
    return np.sort([one.finished_s - one.arrival_s for one in done])


def draw_aging() -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    keys, tails = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.15]})
    wait = np.linspace(0, 400, 400)
    for name, colour in (("report", ORANGE), ("chat", BLUE), ("code", GREEN)):
        prompt, output, _ = LOAD[name]
        key = volume(prompt, output) / (1 + wait / 30)
        keys.plot(wait, key, color=colour, lw=2)
        keys.text(404, key[-1], f"{name}\n{prompt}/{output}", color=colour, va="center", weight="bold")
    fresh = volume(*LOAD["chat"][:2])
    keys.axhline(fresh, color=MUTED, lw=1, ls=":")
    keys.text(396, fresh * 1.06, "a chat request that has just arrived", color=MUTED, ha="right", va="bottom")
    crossing = 30 * (volume(*LOAD["report"][:2]) / fresh - 1)
    keys.plot([crossing], [fresh], "o", color=ORANGE)
    keys.annotate(
        f"after {crossing:.0f} s a report\ngoes before it",
        (crossing, fresh),
        xytext=(-6, -34),
        textcoords="offset points",
        ha="right",
        color=ORANGE,
    )
    keys.set(
        yscale="log",
        xlim=(0, 400),
        title="Aging: volume / (1 + wait / 30 s)",
        xlabel="seconds waited",
        ylabel="key, smallest first",
    )

    off = Admission("Off", "Volume", None, 0.05)
    classes = {name: ClassPrior(float(prompt), float(output)) for name, (prompt, output, _) in LOAD.items()}
    base = WorkerConfig(classes=tuple(classes), class_priors=classes, admission=off)
    svf = replace(base, policy="SVF", victim="LargestVolume")
    runs = {
        "FCFS": (replace(base, policy="FCFS", victim="LeastProgress", aging_seconds=0.0), MUTED),
        "SVF, no aging": (replace(svf, aging_seconds=0.0), ORANGE),
        "SVF, aging 30 s": (replace(svf, aging_seconds=30.0), BLUE),
        "SVF, aging 5 s": (replace(svf, aging_seconds=5.0), GREEN),
    }
    for name, (config, colour) in runs.items():
        found = latencies(config)
        share = (np.arange(len(found)) + 1) / len(found)
        p50, p99 = np.percentile(found, [50, 99])
        label = f"{name}: mean {found.mean():.0f} s, p50 {p50:.0f}, p99 {p99:.0f}"
        tails.plot(1 - share + 0.5 / len(found), found, color=colour, lw=2, label=label)
    tails.invert_xaxis()
    tails.set(
        xscale="log",
        yscale="log",
        title="Latency, slowest requests to the right",
        xlabel="requests slower than this",
        ylabel="seconds",
    )
    tails.set_xticks([1, 0.5, 0.1, 0.01, 0.001], ["all", "half", "10 %", "1 %", ".1 %"])
    tails.legend(loc="lower right")
    save(figure, "aging")


def per_completion(requests: list[tuple[int, int]], actuators: Actuators) -> tuple[float, float]:
    """Evictions per completion and requests per second, once the cold start is over and before the end."""
    trace = simulate(requests, KV, actuators=actuators)
    seconds = np.cumsum(trace.seconds(0.0127, 8.1e-8, 6.8e-5))
    done = np.cumsum(trace.completed)
    first = int(np.searchsorted(done, len(requests) // 3))
    last = int(np.searchsorted(done, 9 * len(requests) // 10))
    completed = done[last] - done[first]
    return float(trace.evicted[first:last].sum() / completed), float(completed / (seconds[last] - seconds[first]))


def draw_cures() -> None:
    mix = LengthMix([(1, PROMPT, o) for o in TIERS])
    even = eviction_free_rate(mix, KV)
    requests = random_requests(TIERS, 12_000, 1)
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(2, 3, sharex="col", sharey="row", gridspec_kw={"height_ratios": [1.7, 1]})
    greedy = per_completion(requests, Actuators())

    caps = [0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0]
    line(panels, 0, caps, [per_completion(requests, Actuators(even * cap)) for cap in caps], greedy)
    panels[0][0].set_title("Admission cap")
    panels[1][0].set_xlabel("cap / x*")

    marks = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1]
    line(panels, 1, marks, [per_completion(requests, Actuators(watermark=int(m * KV))) for m in marks], greedy)
    enough = eviction_free_watermark(mix, KV) / KV
    panels[0][1].axvline(enough, color=MUTED, ls=":", lw=1.2)
    panels[0][1].text(enough + 0.002, 0.2, "N (g − 1)", color=MUTED)
    panels[0][1].set_title("Watermark")
    panels[1][1].set_xlabel("share of M that admission leaves free")

    widths = [0.0, 0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3]
    found = []
    for width in widths:
        rng = np.random.default_rng(3)
        drawn = [(s, int(rng.integers(round(o * (1 - width)), round(o * (1 + width)) + 1))) for s, o in requests]
        found.append(per_completion(drawn, Actuators()))
    line(panels, 2, widths, found, greedy)
    forecast = [severity(mix.jittered(w) if w else mix, KV).value for w in np.linspace(0, 0.3, 61)]
    panels[0][2].plot(np.linspace(0, 0.3, 61), forecast, color=MUTED, lw=1.2, ls="--")
    panels[0][2].text(0.022, 0.16, "severity", color=MUTED)
    panels[0][2].set_title("Mixing wider lengths")
    panels[1][2].set_xlabel("outputs spread over ± this share")
    panels[0][0].set_ylabel("evictions per completion")
    panels[1][0].set_ylabel("requests per second,\neviction = start again")
    panels[0][0].text(0.6, greedy[0], "greedy", color=MUTED, va="bottom")
    panels[1][0].text(0.6, greedy[1], "greedy", color=MUTED, va="top")
    # Last, once for each shared axis: setting a limit ends its growth with what is drawn after.
    for row in panels:
        row[0].set_ylim(0, 1.08 * row[0].get_ylim()[1])
    save(figure, "cures")


def line(
    panels: np.ndarray, column: int, x: list[float], found: list[tuple[float, float]], greedy: tuple[float, float]
) -> None:
    for row, colour in ((0, RED), (1, BLUE)):
        panels[row][column].plot(x, [values[row] for values in found], "o-", color=colour, lw=2, ms=4)
        panels[row][column].axhline(greedy[row], color=MUTED, lw=1)


def draw_severity() -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    scatter, law = figure.subplots(1, 2)
    rng = np.random.default_rng(12)
    points = []
    for number in range(48):
        classes = int(rng.integers(1, 9))
        tiers = np.unique(rng.integers(20, 520, classes))
        if number % 3 == 0:
            tiers = np.unique(rng.integers(2, 33, classes) * 16)
        mix = LengthMix([(1, PROMPT, int(o)) for o in tiers])
        watermark = KV // 100
        count = int(24 * eviction_free_rate(mix, KV) * mix.mean_output())
        requests = random_requests(tuple(int(o) for o in tiers), count, number)
        evicted, _ = per_completion(requests, Actuators(watermark=watermark))
        points.append((severity(mix, KV, watermark).value, evicted, mix.gcd()))
    table = np.array(points)
    shared = table[:, 2] > 1
    scatter.plot([0, 1], [0, 1], color=MUTED, lw=1, ls=":")
    scatter.plot(table[shared, 0], table[shared, 1], "o", color=RED, alpha=0.8, label="lengths share a divisor")
    scatter.plot(table[~shared, 0], table[~shared, 1], "o", color=BLUE, alpha=0.8, label="coprime lengths")
    scatter.set(title="48 random pods, watermark 1 %", xlabel="severity", ylabel="evictions per completion, simulated")
    scatter.legend(loc="upper left")

    spreads = np.array([2, 4, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 60, 90])
    for mean, colour in ((100, GREEN), (300, BLUE), (900, ORANGE)):
        values = [severity(LengthMix.from_classes([(1, PROMPT, mean, float(s))]), KV).value for s in spreads]
        law.plot(spreads, values, "o-", color=colour, lw=2, ms=4, label=f"mean output {mean}")
    law.axhspan(0, 0.05, color=GREEN, alpha=0.08)
    law.text(90, 0.06, "below .05: nothing to do", ha="right", color=MUTED)
    law.set(
        xscale="log",
        title="One class, by the spread of its outputs",
        xlabel="standard deviation, % of the mean (log-normal)",
        ylabel="severity, no watermark",
    )
    law.set_xticks([2, 5, 10, 20, 50, 90], ["2", "5", "10", "20", "50", "90"])
    law.minorticks_off()
    law.legend(loc="upper right")
    save(figure, "severity")


PICTURES: dict[str, Callable[[], None]] = {
    "volume": draw_volume,
    "wave": draw_wave,
    "aging": draw_aging,
    "cures": draw_cures,
    "severity": draw_severity,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*PICTURES, []], help=", ".join(PICTURES))
    style()
    for name in parser.parse_args().names or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
