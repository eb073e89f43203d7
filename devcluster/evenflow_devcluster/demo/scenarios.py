"""What the demo sends, to which pool, and in which phases: data, no I/O but the reading of a trace."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evenflow_model.traces import TraceRequest, merge_traces, read_trace, scale_rate, take_slice

Manifest = dict[str, Any]

STOCK: Manifest = {
    "scheduling": {"policy": "FCFS", "victim": "LeastProgress"},
    "placement": {"strategy": "All"},
    "admission": {"mode": "Off", "watermarkPercent": 0},
}
WATERMARK: Manifest = {**STOCK, "admission": {"mode": "Off", "watermarkPercent": 5}}


@dataclass(frozen=True, slots=True)
class Phase:
    """One replay of the whole slice. `spec` is merged over the pool's file; None takes the file as it stands."""

    name: str
    policy: str
    spec: Manifest | None


BEFORE = Phase("before", "FCFS, vLLM's defaults", STOCK)
MIDDLE = Phase("watermark", "FCFS, watermark 5 %", WATERMARK)
AFTER = Phase("after", "SVF aged, Auto cap, Balanced", None)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`requests` arrive in engine seconds; a request's class is already chosen."""

    name: str
    title: str
    trace_name: str
    rate_scale: float
    time_scale: int
    manifest: Manifest
    requests: tuple[TraceRequest, ...]
    phases: tuple[Phase, ...]

    @property
    def kv_tokens(self) -> int:
        return int(self.manifest["spec"]["engine"]["kvCacheTokens"])

    def pool(self, phase: Phase) -> Manifest:
        """The manifest to apply for this phase."""
        manifest = copy.deepcopy(self.manifest)
        manifest["spec"]["engine"]["simulated"]["timeScale"] = self.time_scale
        if phase.spec is not None:
            manifest["spec"].update(copy.deepcopy(phase.spec))
        return manifest


LONG_PROMPT = 8192


def mooncake(examples: Path, *, quick: bool) -> Scenario:
    """Mooncake's production conversation trace at its own rate, four full-size A100 engines."""
    manifest = read_pool(examples / "pool.yaml")
    seconds = 300.0 if quick else 600.0
    limit = int(manifest["spec"]["model"]["maxModelLen"])
    trace = read_trace(examples / "traces" / "mooncake_conversation.csv.gz").requests
    requests = take_slice(trace, seconds=seconds, max_total_tokens=limit)
    return Scenario(
        name="mooncake",
        title=f"Mooncake production conversations, first {seconds:.0f} s at their own rate",
        trace_name=f"mooncake_conversation[0:{seconds:.0f}s]",
        rate_scale=1.0,
        time_scale=20 if quick else int(manifest["spec"]["engine"]["simulated"]["timeScale"]),
        manifest=manifest,
        requests=classified(requests, lambda request: "document" if request.prompt_tokens >= LONG_PROMPT else "chat"),
        phases=(BEFORE, AFTER) if quick else (BEFORE, MIDDLE, AFTER),
    )


def azure(examples: Path, *, quick: bool) -> Scenario:
    """Azure's conversation and code traces merged, 2.8x faster, on engines with little memory (a larger model)."""
    manifest = read_pool(examples / "pool-azure.yaml")
    seconds, rate_scale = (600.0 if quick else 1200.0), 2.8
    by_class = {
        name: take_slice(read_trace(examples / "traces" / f"azure2023_{file}.csv.gz").requests, seconds=seconds)
        for name, file in (("conversation", "conv"), ("code", "code"))
    }
    labelled = [
        tuple(replace(request, traffic_class=name) for request in requests) for name, requests in by_class.items()
    ]
    return Scenario(
        name="azure",
        title=f"Azure 2023 conversation and code, first {seconds:.0f} s at {rate_scale:g}x",
        trace_name=f"azure2023_conv+code[0:{seconds:.0f}s]",
        rate_scale=rate_scale,
        time_scale=int(manifest["spec"]["engine"]["simulated"]["timeScale"]),
        manifest=manifest,
        requests=scale_rate(merge_traces(*labelled), rate_scale),
        phases=(BEFORE, AFTER) if quick else (BEFORE, MIDDLE, AFTER),
    )


def tiers(examples: Path, *, quick: bool) -> Scenario:
    """Fixed output tiers, as in the congestion paper: requests of one tier that started together end together."""
    manifest = read_pool(examples / "pool-tiers.yaml")
    classes = manifest["spec"]["trafficClasses"]
    seconds = 120.0 if quick else 240.0
    replicas = int(manifest["spec"]["replicas"])
    rate = TIERS_PER_ENGINE_PER_SECOND * replicas
    rng = np.random.default_rng(20_26)
    count = int(seconds * rate)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    chosen = rng.integers(len(classes), size=count)
    requests = tuple(
        TraceRequest(
            arrival_s=float(arrival),
            prompt_tokens=int(classes[index]["promptTokens"]),
            output_tokens=int(classes[index]["outputTokens"]),
            traffic_class=str(classes[index]["name"]),
        )
        for arrival, index in zip(arrivals, chosen, strict=True)
    )
    return Scenario(
        name="tiers",
        title=f"Fixed output tiers ({', '.join(str(c['outputTokens']) for c in classes)}) under load, {seconds:.0f} s",
        trace_name="tiers-128-256-512",
        rate_scale=1.0,
        time_scale=int(manifest["spec"]["engine"]["simulated"]["timeScale"]),
        manifest=manifest,
        requests=requests,
        phases=(BEFORE, AFTER) if quick else (BEFORE, MIDDLE, AFTER),
    )


TIERS_PER_ENGINE_PER_SECOND = 10.0
"""Above what 60,000 KV tokens sustain (about 9 per second), so that memory binds all the time."""

SCENARIOS: Mapping[str, Callable[..., Scenario]] = {"mooncake": mooncake, "azure": azure, "tiers": tiers}


def classified(
    requests: Sequence[TraceRequest], traffic_class: Callable[[TraceRequest], str]
) -> tuple[TraceRequest, ...]:
    return tuple(replace(request, traffic_class=traffic_class(request)) for request in requests)


def read_pool(file: Path) -> Manifest:
    manifest = yaml.safe_load(file.read_text())
    if not isinstance(manifest, dict):
        raise ValueError(f"{file.name}: no pool in it; expected one LLMServingPool")
    return manifest
