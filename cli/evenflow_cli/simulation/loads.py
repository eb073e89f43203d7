"""From trace files to the requests that a pool is sent."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evenflow_model.fleet.records import EngineRequest
from evenflow_model.traces import (
    DEFAULT_CLASS,
    HASH_BLOCK_TOKENS,
    TimeUnit,
    Trace,
    TraceError,
    TraceRequest,
    merge_traces,
    read_trace,
    scale_rate,
    take_slice,
    without_known_prefixes,
)
from evenflow_operator.api.spec import TrafficClass

PrefixCaching = Literal["off", "lru", "ideal"]
"""`lru` is vLLM's cache in each engine; `ideal` one for all that costs nothing and forgets nothing."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """`seconds` cuts the trace before `rate_scale` speeds it up."""

    rate_scale: float = 1.0
    seconds: float | None = None
    columns: Mapping[str, str] | None = None
    time_unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    requests: tuple[TraceRequest, ...]
    has_hashes: bool
    notes: tuple[str, ...]

    def document(self, names: Sequence[str], options: TraceOptions) -> dict[str, Any]:
        """What the JSON output says about the trace; lengths in tokens, times in seconds."""
        requests = self.requests
        return {
            "files": list(names),
            "requests": len(requests),
            "rate_scale": options.rate_scale,
            "seconds": requests[-1].arrival_s - requests[0].arrival_s,
            "classes": dict(sorted(Counter(request.traffic_class for request in requests).items())),
            "mean_prompt_tokens": sum(request.prompt_tokens for request in requests) / len(requests),
            "mean_output_tokens": sum(request.output_tokens for request in requests) / len(requests),
            "notes": list(self.notes),
        }


def load_traces(
    files: Sequence[tuple[str | None, Path]], classes: Sequence[TrafficClass], options: TraceOptions
) -> LoadedTrace:
    """Read, merge, cut and speed up; each file may name the class of all its requests.

    Without that and without a class column a request is of the class whose promptTokens is nearest to its own. Raises
    TraceError, and OSError.
    """
    traces: list[Sequence[TraceRequest]] = []
    notes: list[str] = []
    hashes = True
    for name, path in files:
        trace = read_trace(path, columns=options.columns, time_unit=options.time_unit)
        notes += [f"{path.name}: {note}" for note in trace.notes]
        hashes = hashes and trace.has_hashes
        traces.append(_classified(name, trace, classes, path, notes))
    merged = merge_traces(*traces)
    if not merged:
        raise TraceError(f"{', '.join(path.name for _, path in files)}: no requests; there is nothing to send")
    end = None if options.seconds is None else merged[0].arrival_s + options.seconds
    cut = take_slice(merged, seconds=end)
    return LoadedTrace(scale_rate(cut, options.rate_scale), hashes, tuple(notes))


def _classified(
    name: str | None, trace: Trace, classes: Sequence[TrafficClass], path: Path, notes: list[str]
) -> list[TraceRequest]:
    known = {entry.name for entry in classes}
    if name is None and not trace.has_classes:
        return [_of_class(request, _nearest(request.prompt_tokens, classes)) for request in trace.requests]
    named = [_of_class(request, name or request.traffic_class) for request in trace.requests]
    unknown = Counter(request.traffic_class for request in named if request.traffic_class not in known)
    unknown.pop(DEFAULT_CLASS, None)
    if unknown:
        shown = ", ".join(sorted(unknown)[:5])
        notes.append(
            f"{path.name}: requests of classes that the pool lacks ({shown}): {unknown.total()}, counted as default"
        )
    return [request if request.traffic_class in known else _of_class(request, DEFAULT_CLASS) for request in named]


def _nearest(prompt_tokens: int, classes: Sequence[TrafficClass]) -> str:
    nearest = min(classes, key=lambda entry: abs(entry.prompt_tokens - prompt_tokens), default=None)
    return DEFAULT_CLASS if nearest is None else nearest.name


def _of_class(request: TraceRequest, name: str) -> TraceRequest:
    return TraceRequest(request.arrival_s, request.prompt_tokens, request.output_tokens, name, request.hash_ids)


def engine_requests(
    requests: Sequence[TraceRequest], *, oracle: bool, prefix_caching: PrefixCaching
) -> tuple[EngineRequest, ...]:
    """What engines are sent; with `oracle` they know the true output length beforehand."""
    if prefix_caching == "ideal":
        requests = without_known_prefixes(requests)
    return tuple(
        EngineRequest(
            request_id=str(number),
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            max_tokens=request.output_tokens,
            traffic_class=request.traffic_class,
            arrival_s=request.arrival_s,
            predicted_output=float(request.output_tokens) if oracle else None,
            prefix=request.hash_ids[: request.prompt_tokens // HASH_BLOCK_TOKENS] if prefix_caching == "lru" else (),
        )
        for number, request in enumerate(requests)
    )
