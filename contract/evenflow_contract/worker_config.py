"""The worker config document (docs/design.md §6.2): what the operator wants one engine to do.

It lives in the pod annotation `evenflow.dev/worker-config`, is mounted through the downward API and is pushed to the
admin API so that it arrives at once. A malformed document is refused whole.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from evenflow_contract.errors import ContractError
from evenflow_contract.names import MAX_CLASSES, check_class_name
from evenflow_contract.reading import ObjectReader, check_version, parse_json

VERSION = 1

Policy = Literal["SVF", "OneBitSVF", "SJF", "FCFS"]
Victim = Literal["LargestVolume", "LeastProgress"]
PredictorType = Literal["ClassPrior", "Quantile", "Model"]
AdmissionMode = Literal["Limited", "Off"]
AdmissionUnit = Literal["Requests", "Volume"]

POLICIES: tuple[Policy, ...] = ("SVF", "OneBitSVF", "SJF", "FCFS")
VICTIMS: tuple[Victim, ...] = ("LargestVolume", "LeastProgress")
PREDICTOR_TYPES: tuple[PredictorType, ...] = ("ClassPrior", "Quantile", "Model")
ADMISSION_MODES: tuple[AdmissionMode, ...] = ("Limited", "Off")
ADMISSION_UNITS: tuple[AdmissionUnit, ...] = ("Requests", "Volume")

MAX_GENERATION = 2**53
MAX_TOKENS = 10_000_000
MAX_PER_ITERATION = 1e6
MIN_PER_ITERATION = 1e-6


@dataclass(frozen=True, slots=True)
class Admission:
    """How fast new requests may enter. `per_iteration` is in requests, or in multiples of M (unit `Volume`, 1.0 = x*).

    It is None exactly when the mode is `Off`. `watermark` is the share of KV memory that admission leaves free.
    """

    mode: AdmissionMode = "Off"
    unit: AdmissionUnit = "Volume"
    per_iteration: float | None = None
    watermark: float = 0.0


@dataclass(frozen=True, slots=True)
class Predictor:
    type: PredictorType = "ClassPrior"
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Proxies:
    """1-bit SVF: outputs up to `threshold` tokens count as `short`, longer ones as `long` tokens (SVF paper)."""

    threshold: float
    short: float
    long: float


@dataclass(frozen=True, slots=True)
class ClassPrior:
    """Mean lengths of a class in tokens, until the worker has seen requests of its own."""

    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One engine's settings. The default is what a worker without a document does: generation 0, SVF, admission Off."""

    generation: int = 0
    policy: Policy = "SVF"
    victim: Victim = "LargestVolume"
    aging_seconds: float = 30.0
    predictor: Predictor = Predictor()
    proxies: Proxies | None = None
    classes: tuple[str, ...] = ()
    draining: bool = False
    admission: Admission = Admission()
    class_priors: Mapping[str, ClassPrior] = field(default_factory=dict)

    @staticmethod
    def parse(document: str | bytes | Mapping[str, Any]) -> "WorkerConfig":
        """Read a document strictly; raises ContractError naming the field, what was found and the remedy."""
        reader = ObjectReader(parse_json(document) if isinstance(document, str | bytes) else document)
        check_version(reader, VERSION)
        config = WorkerConfig(
            generation=reader.integer("generation", high=MAX_GENERATION),
            policy=cast(Policy, reader.choice("policy", POLICIES)),
            victim=cast(Victim, reader.choice("victim", VICTIMS)),
            aging_seconds=reader.number("agingSeconds", high=1e6),
            predictor=_predictor(reader.nested("predictor")),
            proxies=_proxies(reader.nested("proxies")) if reader.has("proxies") else reader.take("proxies", None),
            classes=_classes(reader),
            draining=reader.boolean("draining"),
            admission=_admission(reader.nested("admission")),
            class_priors=_class_priors(reader),
        )
        reader.finish()
        return config

    def document(self) -> dict[str, Any]:
        """The document as JSON types, in the order of docs/design.md §6.2."""
        admission: dict[str, Any] = {"mode": self.admission.mode, "unit": self.admission.unit}
        if self.admission.per_iteration is not None:
            admission["perIteration"] = self.admission.per_iteration
        admission["watermark"] = self.admission.watermark
        predictor: dict[str, Any] = {"type": self.predictor.type}
        if self.predictor.path is not None:
            predictor["path"] = self.predictor.path
        return {
            "version": VERSION,
            "generation": self.generation,
            "policy": self.policy,
            "victim": self.victim,
            "agingSeconds": self.aging_seconds,
            "predictor": predictor,
            "proxies": None
            if self.proxies is None
            else {"threshold": self.proxies.threshold, "short": self.proxies.short, "long": self.proxies.long},
            "classes": list(self.classes),
            "draining": self.draining,
            "admission": admission,
            "classPriors": {
                name: {"promptTokens": prior.prompt_tokens, "outputTokens": prior.output_tokens}
                for name, prior in sorted(self.class_priors.items())
            },
        }

    def to_json(self) -> str:
        return json.dumps(self.document(), separators=(",", ":"))

    def content_hash(self) -> str:
        """Hash of the whole document, generation included: equal hashes mean that nothing has to be applied."""
        canonical = json.dumps(self.document(), separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def same_settings(self, other: "WorkerConfig") -> bool:
        """True if the two differ in nothing but their generation."""
        return replace(self, generation=0) == replace(other, generation=0)


def _predictor(reader: ObjectReader) -> Predictor:
    kind = cast(PredictorType, reader.choice("type", PREDICTOR_TYPES))
    path = reader.string("path", None, max_length=1024)
    if (kind == "Model") != (path is not None):
        raise ContractError(
            reader.path("path"), "missing" if path is None else path, "belongs to type Model, and only to it"
        )
    reader.finish()
    return Predictor(kind, path)


def _proxies(reader: ObjectReader) -> Proxies:
    proxies = Proxies(
        threshold=reader.number("threshold", high=MAX_TOKENS),
        short=reader.number("short", high=MAX_TOKENS),
        long=reader.number("long", high=MAX_TOKENS),
    )
    if proxies.short > proxies.long:
        raise ContractError(reader.path("short"), f"{proxies.short:g} > long", "short must not exceed long")
    reader.finish()
    return proxies


def _classes(reader: ObjectReader) -> tuple[str, ...]:
    names = reader.items("classes", max_items=MAX_CLASSES + 1)
    path = reader.path("classes")
    checked = tuple(check_class_name(name, f"{path}[{index}]") for index, name in enumerate(names))
    if len(set(checked)) != len(checked):
        raise ContractError(path, "a class is listed twice", "list each class once")
    return checked


def _admission(reader: ObjectReader) -> Admission:
    mode = cast(AdmissionMode, reader.choice("mode", ADMISSION_MODES))
    unit = cast(AdmissionUnit, reader.choice("unit", ADMISSION_UNITS))
    per_iteration = reader.number("perIteration", None, low=MIN_PER_ITERATION, high=MAX_PER_ITERATION)
    if mode == "Limited" and per_iteration is None:
        raise ContractError(
            reader.path("perIteration"), "missing", "mode Limited needs it; to lift the cap say mode Off"
        )
    if mode == "Off" and per_iteration is not None:
        raise ContractError(reader.path("perIteration"), f"{per_iteration:g}", "leave it out when the mode is Off")
    watermark = reader.number("watermark", high=0.9)
    reader.finish()
    return Admission(mode, unit, per_iteration, watermark)


def _class_priors(reader: ObjectReader) -> dict[str, ClassPrior]:
    priors: dict[str, ClassPrior] = {}
    for name, value in reader.mapping("classPriors", {}, max_items=MAX_CLASSES + 1).items():
        path = f"{reader.path('classPriors')}.{name}"
        entry = ObjectReader(value, path)
        priors[check_class_name(name, path)] = ClassPrior(
            prompt_tokens=entry.number("promptTokens", high=MAX_TOKENS),
            output_tokens=entry.number("outputTokens", high=MAX_TOKENS),
        )
        entry.finish()
    return priors
