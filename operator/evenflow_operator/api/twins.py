"""The Python twins of the CEL rules: each says what breaks its rule, and at which field below the value it was given.

They see what CEL sees, the object with its defaults filled in, but they also meet objects with faults elsewhere (lint
shows all faults at once): a missing or mistyped field makes a rule hold.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evenflow_operator.api.messages import shown
from evenflow_operator.api.names import DEFAULT_CLASS, MAX_POOL_NAME, NAME_PATTERN
from evenflow_operator.api.structural import Location

MAX_GPUS_PER_POD = 16

Violation = tuple[Location, str]
Twin = Callable[[Any], Iterator[Violation]]


def get(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _integer(value: Any, *keys: str) -> int | None:
    found = get(value, *keys)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _items(value: Any, *keys: str) -> list[Any]:
    found = get(value, *keys)
    return found if isinstance(found, list) else []


def _pool_name(pool: Any) -> str | None:
    metadata = get(pool, "metadata")
    name = get(metadata, "name")
    if name is None and isinstance(metadata, Mapping):
        return ""
    return name if isinstance(name, str) else None


def below(twin: Twin, *keys: str) -> Twin:
    """The twin of a part of the value that the rule stands on."""

    def violations(value: Any) -> Iterator[Violation]:
        for location, found in twin(get(value, *keys)):
            yield (*keys, *location), found

    return violations


def long_pool_name(pool: Any) -> Iterator[Violation]:
    name = _pool_name(pool)
    if name is not None and len(name) > MAX_POOL_NAME:
        yield ("metadata", "name"), f"found {len(name)} characters"


def bad_pool_name(pool: Any) -> Iterator[Violation]:
    name = _pool_name(pool)
    if name is not None and not re.fullmatch(NAME_PATTERN, name):
        yield ("metadata", "name"), f"found {shown(name)}" if name else "nothing found"


def one_source(source: Any) -> Iterator[Violation]:
    found = [kind for kind in ("huggingFace", "pvc", "image") if get(source, kind) is not None]
    if isinstance(source, Mapping) and len(found) != 1:
        yield (), f"found {' and '.join(found) or 'none'}"


def budget_below_seqs(engine: Any) -> Iterator[Violation]:
    budget, seqs = _integer(engine, "maxNumBatchedTokens"), _integer(engine, "maxNumSeqs")
    if budget is not None and seqs is not None and budget < seqs:
        yield ("maxNumBatchedTokens",), f"found {budget}, below maxNumSeqs {seqs}"


def matching(pattern: str) -> Twin:
    # `$` is the very end in RE2; in Python it would also match before a final newline.
    compiled = re.compile(pattern.replace("$", r"\Z"))

    def violations(argument: Any) -> Iterator[Violation]:
        if isinstance(argument, str) and compiled.search(argument):
            yield (), f"found {shown(argument)}"

    return violations


def too_many_gpus(parallelism: Any) -> Iterator[Violation]:
    tensor, pipeline = _integer(parallelism, "tensor"), _integer(parallelism, "pipeline")
    if tensor is not None and pipeline is not None and tensor * pipeline > MAX_GPUS_PER_POD:
        yield (), f"found {tensor} x {pipeline} = {tensor * pipeline} GPUs"


def predictor_path(predictor: Any) -> Iterator[Violation]:
    kind, path = get(predictor, "type"), get(predictor, "path")
    if isinstance(kind, str) and (kind == "Model") != (path is not None):
        yield ("path",), f"found {'none' if path is None else shown(path)} with type {kind}"


def reserved_class(name: Any) -> Iterator[Violation]:
    if name == DEFAULT_CLASS:
        yield (), f"found {shown(name)}"


def _class_sizes(spec: Any) -> Iterator[tuple[int, int]]:
    for index, entry in enumerate(_items(spec, "trafficClasses")):
        prompt, output = _integer(entry, "promptTokens"), _integer(entry, "outputTokens")
        if prompt is not None and output is not None:
            yield index, prompt + output


def class_beyond(limit_name: str, *limit: str) -> Twin:
    def violations(spec: Any) -> Iterator[Violation]:
        most = _integer(spec, *limit)
        for index, size in _class_sizes(spec):
            if most is not None and size > most:
                yield (
                    ("trafficClasses", index),
                    f"found promptTokens + outputTokens = {size}, above {limit_name} {most}",
                )

    return violations


def static_strategy(placement: Any) -> Iterator[Violation]:
    strategy, static = get(placement, "strategy"), _items(placement, "static")
    if isinstance(strategy, str) and (strategy == "Static") != bool(static):
        yield ("static",), f"found {len(static)} slots with strategy {strategy}"


def static_classes(spec: Any) -> Iterator[Violation]:
    known = {get(entry, "name") for entry in _items(spec, "trafficClasses") if isinstance(get(entry, "name"), str)}
    for index, slot in enumerate(_items(spec, "placement", "static")):
        for position, name in enumerate(_items(slot, "classes")):
            if isinstance(name, str) and name not in known:
                yield ("placement", "static", index, "classes", position), f"found {shown(name)}"


def cap_mode(admission: Any) -> Iterator[Violation]:
    mode, cap = get(admission, "mode"), get(admission, "capMicro")
    if isinstance(mode, str) and (mode == "Fixed") != (cap is not None):
        yield ("capMicro",), f"found {'none' if cap is None else shown(cap)} with mode {mode}"


def min_above_max(autoscaling: Any) -> Iterator[Violation]:
    low, high = _integer(autoscaling, "minReplicas"), _integer(autoscaling, "maxReplicas")
    if low is not None and high is not None and low > high:
        yield ("minReplicas",), f"found {low}, above maxReplicas {high}"


def stale_within_interval(metrics: Any) -> Iterator[Violation]:
    stale, interval = _integer(metrics, "staleAfterSeconds"), _integer(metrics, "intervalSeconds")
    if stale is not None and interval is not None and stale <= interval:
        yield ("staleAfterSeconds",), f"found {stale}, not above intervalSeconds {interval}"
