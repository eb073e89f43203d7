"""What a worker answers: its state, and the lengths it has observed (docs/design.md §6.4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenflow_contract.errors import ContractError
from evenflow_contract.names import MAX_CLASSES, check_class_name
from evenflow_contract.reading import ObjectReader, check_version, parse_json
from evenflow_contract.weights import LengthWeights

VERSION = 1
MAX_LENGTHS_BYTES = 4_000_000
MAX_DISTINCT_LENGTHS = 20_000


@dataclass(frozen=True, slots=True)
class WorkerState:
    """`scheduler` is `evenflow`, or `stock` with a `reason` after a fallback. All numbers are counts or tokens."""

    applied_generation: int
    config_hash: str
    engine: str
    scheduler: str
    policy: str
    kv_capacity_tokens: int
    block_size: int
    iterations: int
    running: int
    waiting: int
    in_flight: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None

    @staticmethod
    def parse(document: str | bytes | Mapping[str, Any]) -> "WorkerState":
        reader = ObjectReader(parse_json(document) if isinstance(document, str | bytes) else document)
        check_version(reader, VERSION)
        # A newer worker may say more than this operator knows: unlike a config, unknown fields of a state are ignored.
        return WorkerState(
            applied_generation=reader.integer("appliedGeneration"),
            config_hash=reader.string("configHash"),
            engine=reader.string("engine"),
            scheduler=reader.choice("scheduler", ("evenflow", "stock")),
            policy=reader.string("policy"),
            kv_capacity_tokens=reader.integer("kvCapacityTokens"),
            block_size=reader.integer("blockSize", low=1, high=1_000_000),
            iterations=reader.integer("iterations"),
            running=reader.integer("running"),
            waiting=reader.integer("waiting"),
            in_flight=_in_flight(reader),
            reason=reader.string("reason", None, max_length=2000),
        )

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "version": VERSION,
            "appliedGeneration": self.applied_generation,
            "configHash": self.config_hash,
            "engine": self.engine,
            "scheduler": self.scheduler,
            "policy": self.policy,
            "kvCapacityTokens": self.kv_capacity_tokens,
            "blockSize": self.block_size,
            "iterations": self.iterations,
            "running": self.running,
            "waiting": self.waiting,
            "inFlight": dict(sorted(self.in_flight.items())),
        }
        if self.reason is not None:
            document["reason"] = self.reason
        return document


def _in_flight(reader: ObjectReader) -> dict[str, int]:
    path = reader.path("inFlight")
    counts: dict[str, int] = {}
    for name, count in reader.mapping("inFlight", {}, max_items=MAX_CLASSES + 1).items():
        check_class_name(name, path)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ContractError(f"{path}.{name}", repr(count)[:60], "must be a count of requests")
        counts[name] = count
    return counts


@dataclass(frozen=True, slots=True)
class ClassLengths:
    """Lengths of one class's completed requests.

    `outputs` maps an output length in tokens to its decayed weight (exact lengths, not buckets: severity needs them);
    `completed` is the undecayed count; `prompt_quantiles` maps a probability to a prompt length in tokens.
    """

    completed: int
    outputs: Mapping[int, float]
    prompt_mean: float
    prompt_quantiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class WorkerLengths:
    """Answer of `GET /evenflow/v1/lengths`:

    `{"version":1,"classes":{"chat":{"completed":9,"outputs":{"220":3.5},"promptMean":1024.0,"promptQuantiles":{"0.5":900}}}}`
    """

    classes: Mapping[str, ClassLengths]

    @staticmethod
    def parse(document: str | bytes | Mapping[str, Any]) -> "WorkerLengths":
        if isinstance(document, str | bytes):
            document = parse_json(document, max_bytes=MAX_LENGTHS_BYTES)
        reader = ObjectReader(document)
        check_version(reader, VERSION)
        classes: dict[str, ClassLengths] = {}
        for name, value in reader.mapping("classes", max_items=MAX_CLASSES + 1).items():
            path = f"classes.{name}"
            entry = ObjectReader(value, path)
            classes[check_class_name(name, path)] = ClassLengths(
                completed=entry.integer("completed"),
                outputs=_weights(entry),
                prompt_mean=entry.number("promptMean"),
                prompt_quantiles=_quantiles(entry),
            )
        return WorkerLengths(classes)

    def document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "classes": {
                name: {
                    "completed": lengths.completed,
                    "outputs": {str(tokens): weight for tokens, weight in sorted(lengths.outputs.items())},
                    "promptMean": lengths.prompt_mean,
                    "promptQuantiles": {f"{q:g}": tokens for q, tokens in sorted(lengths.prompt_quantiles.items())},
                }
                for name, lengths in sorted(self.classes.items())
            },
        }


def _weights(entry: ObjectReader) -> LengthWeights:
    path = entry.path("outputs")
    raw = entry.mapping("outputs", max_items=MAX_DISTINCT_LENGTHS)
    inner = ObjectReader(raw, path)
    weights: dict[int, float] = {}
    for key in raw:
        if not key.isascii() or not key.isdigit() or len(key) > 8:
            raise ContractError(f"{path}.{key[:20]}", "not a length", "keys are output lengths in tokens")
        weights[int(key)] = inner.number(key)
    return LengthWeights(weights)


def _quantiles(entry: ObjectReader) -> dict[float, float]:
    path = entry.path("promptQuantiles")
    raw = entry.mapping("promptQuantiles", {}, max_items=64)
    inner = ObjectReader(raw, path)
    quantiles: dict[float, float] = {}
    for key in raw:
        try:
            probability = float(key)
        except ValueError:
            probability = -1.0
        if not 0.0 <= probability <= 1.0:
            raise ContractError(f"{path}.{key[:20]}", "not a probability", "keys are probabilities from 0 to 1")
        quantiles[probability] = inner.number(key)
    return quantiles
