"""Rules that span fields: each as CEL, for the CRD, and as a Python twin, for everything that has no CEL.

One table makes both, so that they can't drift apart unseen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from evenflow_operator.api import twins
from evenflow_operator.api.enums import EngineType
from evenflow_operator.api.errors import FieldError
from evenflow_operator.api.messages import duplicate_message, path_text
from evenflow_operator.api.names import DEFAULT_CLASS, MAX_POOL_NAME, NAME_PATTERN
from evenflow_operator.api.schema import structural_schema
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.api.spec_engine import SimulatedEngine
from evenflow_operator.api.structural import Location, duplicate_items, with_defaults

OWNED_FLAGS = (
    "model",
    "served-model-name",
    "max-model-len",
    "host",
    "port",
    "uds",
    "config",
    "scheduler-cls",
    "scheduling-policy",
    "middleware",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
    "watermark",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "disable-log-stats",
    "ssl-keyfile",
    "ssl-certfile",
)
"""Flags of `vllm serve` that the operator sets from other fields, or without which it would be blind."""

# vLLM reads underscores in a flag as dashes, and takes short forms of the parallelism flags.
_OWNED_PATTERN = "^(--(" + "|".join(flag.replace("-", "[-_]") for flag in OWNED_FLAGS) + ")|-tp|-pp)([= ]|$)"
_DATA_PARALLEL_PATTERN = "^(--data[-_]parallel[-_a-z]*|-dp[a-z]*)([= ]|$)"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about the value at `path` (`[]` stands for every item of a list; empty is the whole object).

    `field` is where the fault is shown, below `path`. `message` states the rule and `remedy` what to do.
    A rule never stands on an object with the default {}: the API server checks that default against the rule before
    the defaults inside it are filled in, and refuses the CRD.
    """

    path: str
    cel: str
    message: str
    remedy: str
    twin: twins.Twin
    field: str = ""

    def validation(self) -> dict[str, str]:
        """The entry of x-kubernetes-validations."""
        entry = {"rule": self.cel, "message": f"{self.message}; {self.remedy}"}
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry


RULES: tuple[Rule, ...] = (
    Rule(
        "",
        f"size(self.metadata.name) <= {MAX_POOL_NAME}",
        f"a pool's name has at most {MAX_POOL_NAME} characters, so that its pods' and Services' names fit",
        f"shorten it to {MAX_POOL_NAME} characters",
        twins.long_pool_name,
    ),
    Rule(
        "",
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        f"a pool's name must match {NAME_PATTERN}, because Services are named after it",
        "use lower-case letters, digits and dashes, starting with a letter",
        twins.bad_pool_name,
    ),
    Rule(
        "spec.model.source",
        "[has(self.huggingFace), has(self.pvc), has(self.image)].exists_one(given, given)",
        "a model has one source",
        "set exactly one of huggingFace, pvc and image, or leave source out",
        twins.one_source,
    ),
    Rule(
        "spec",
        "self.engine.maxNumBatchedTokens >= self.engine.maxNumSeqs",
        "maxNumBatchedTokens must not be below maxNumSeqs, because each running request needs a token per iteration",
        "raise maxNumBatchedTokens or lower maxNumSeqs",
        twins.below(twins.budget_below_seqs, "engine"),
        field="engine.maxNumBatchedTokens",
    ),
    Rule(
        "spec.engine.vllm.extraArgs[]",
        f"!self.matches('{_DATA_PARALLEL_PATTERN}')",
        "data parallelism inside a pod is not supported, because caps and classes are kept per engine",
        "remove it and raise spec.replicas instead",
        twins.matching(_DATA_PARALLEL_PATTERN),
    ),
    Rule(
        "spec.engine.vllm.extraArgs[]",
        f"!self.matches('{_OWNED_PATTERN}')",
        "the operator sets this flag itself",
        "remove it and use the field of spec.model, spec.engine, spec.accelerator or spec.admission that stands for it",
        twins.matching(_OWNED_PATTERN),
    ),
    Rule(
        "spec",
        f"self.accelerator.parallelism.tensor * self.accelerator.parallelism.pipeline <= {twins.MAX_GPUS_PER_POD}",
        f"a replica is one pod on one node and has at most {twins.MAX_GPUS_PER_POD} GPUs",
        "lower tensor or pipeline",
        twins.below(twins.too_many_gpus, "accelerator", "parallelism"),
        field="accelerator.parallelism",
    ),
    Rule(
        "spec",
        "(self.scheduling.predictor.type == 'Model') == has(self.scheduling.predictor.path)",
        "path belongs to type Model, and only to it",
        "set path with type Model, and leave it out with every other type",
        twins.below(twins.predictor_path, "scheduling", "predictor"),
        field="scheduling.predictor.path",
    ),
    Rule(
        "spec.trafficClasses[].name",
        f"self != '{DEFAULT_CLASS}'",
        f"the class name {DEFAULT_CLASS} is reserved for requests that name no class",
        "choose another name",
        twins.reserved_class,
    ),
    Rule(
        "spec",
        "!has(self.model.maxModelLen) || !has(self.trafficClasses) || "
        "self.trafficClasses.all(c, c.promptTokens + c.outputTokens <= self.model.maxModelLen)",
        "promptTokens + outputTokens of a class must not exceed model.maxModelLen",
        "lower them or raise spec.model.maxModelLen",
        twins.class_beyond("model.maxModelLen", "model", "maxModelLen"),
        field="trafficClasses",
    ),
    Rule(
        "spec",
        "!has(self.trafficClasses) || "
        "self.trafficClasses.all(c, c.promptTokens + c.outputTokens <= self.engine.kvCacheTokens)",
        "promptTokens + outputTokens of a class must not exceed engine.kvCacheTokens, the KV memory of one pod",
        "lower them, or raise spec.engine.kvCacheTokens if a pod has more KV memory (tensor parallelism adds to it)",
        twins.class_beyond("engine.kvCacheTokens", "engine", "kvCacheTokens"),
        field="trafficClasses",
    ),
    Rule(
        "spec",
        "(self.placement.strategy == 'Static') == (has(self.placement.static) && size(self.placement.static) > 0)",
        "static lists the classes of slots: it belongs to strategy Static, which needs it",
        "set static with strategy Static, and leave it out with every other strategy",
        twins.below(twins.static_strategy, "placement"),
        field="placement.static",
    ),
    Rule(
        "spec",
        "!has(self.placement.static) || self.placement.static.all(s, !has(s.classes) || s.classes.all(n, "
        "has(self.trafficClasses) && self.trafficClasses.exists(c, c.name == n)))",
        "placement.static may name only classes that trafficClasses lists",
        "add the class to spec.trafficClasses or remove it here",
        twins.static_classes,
        field="placement.static",
    ),
    Rule(
        "spec",
        "(self.admission.mode == 'Fixed') == has(self.admission.capMicro)",
        "capMicro belongs to mode Fixed, which needs it",
        "set capMicro with mode Fixed, and leave it out with Auto and Off",
        twins.below(twins.cap_mode, "admission"),
        field="admission.capMicro",
    ),
    Rule(
        "spec.autoscaling",
        "self.minReplicas <= self.maxReplicas",
        "minReplicas must not exceed maxReplicas",
        "lower minReplicas or raise maxReplicas",
        twins.min_above_max,
        field="minReplicas",
    ),
    Rule(
        "spec",
        "self.metrics.staleAfterSeconds > self.metrics.intervalSeconds",
        "staleAfterSeconds must exceed intervalSeconds, or every sample would be stale before the next one comes",
        "raise staleAfterSeconds (six intervals are usual) or lower intervalSeconds",
        twins.below(twins.stale_within_interval, "metrics"),
        field="metrics.staleAfterSeconds",
    ),
)


@cache
def spec_schema() -> dict[str, Any]:
    """The structural schema of `spec`, without the rules."""
    return structural_schema(LLMServingPoolSpec)


def cel_twin(new: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[FieldError]:
    """What the API server's CEL would say about `new`, with what was found where.

    Like the API server it doesn't complain about a part that an update leaves as it was in `old`.
    """
    objects = [None if obj is None else _defaulted(obj) for obj in (new, old)]
    return [
        FieldError(path_text((*location, *below)), f"{found}; {rule.remedy}")
        for rule in RULES
        for location, value in _instances(_steps(rule.path), objects[0], objects[1])
        for below, found in rule.twin(value)
    ]


def duplicates(obj: Mapping[str, Any]) -> list[FieldError]:
    """Entries of the spec's list maps and sets that stand twice."""
    found = duplicate_items(spec_schema(), obj.get("spec"), ("spec",))
    return [FieldError(path_text(location), duplicate_message(value)) for location, value in found]


def warnings(spec: LLMServingPoolSpec) -> list[FieldError]:
    """What is allowed, because it may be wanted or the rest may follow later, but probably isn't meant."""
    found = []
    if not spec.accelerator.products:
        remedy = "so a pod may land on any GPU, whatever its memory; list the products that spec.engine is meant for"
        found.append(FieldError("spec.accelerator.products", f"found [], {remedy}"))
    if spec.engine.type is EngineType.VLLM and spec.engine.simulated != SimulatedEngine():
        text = "found settings that type VLLM ignores; remove them, or set spec.engine.type to Simulated"
        found.append(FieldError("spec.engine.simulated", text))
    if spec.autoscaling is not None and "replicas" in spec.model_fields_set:
        text = f"found {spec.replicas} beside spec.autoscaling; leave it out, or each apply sets back what it wrote"
        found.append(FieldError("spec.replicas", text))
    most = spec.replicas if spec.autoscaling is None else spec.autoscaling.max_replicas
    found += [
        FieldError(
            path_text(("spec", "trafficClasses", index, "minReplicas")),
            f"found {entry.min_replicas}, above the pool's {most} replicas; lower it or add replicas",
        )
        for index, entry in enumerate(spec.traffic_classes)
        if entry.min_replicas > most > 0
    ]
    return found


def _defaulted(obj: Mapping[str, Any]) -> dict[str, Any]:
    return with_defaults({"properties": {"spec": spec_schema()}}, obj)  # type: ignore[no-any-return]


def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.replace("[]", ".[]").split(".")) if path else ()


def _instances(steps: tuple[str, ...], value: Any, old: Any, location: Location = ()) -> Iterator[tuple[Location, Any]]:
    """The values that a rule's path leads to, without those that are as they were."""
    if not steps:
        if value is not None and (old is None or value != old):
            yield location, value
    elif steps[0] != "[]":
        yield from _instances(steps[1:], twins.get(value, steps[0]), twins.get(old, steps[0]), (*location, steps[0]))
    elif isinstance(value, list) and value != old:
        for index, item in enumerate(value):
            yield from _instances(steps[1:], item, _counterpart(item, old), (*location, index))


def _counterpart(item: Any, old: Any) -> Any:
    """The item of the old list with the same name; items without a name have none."""
    name = twins.get(item, "name")
    if name is None or not isinstance(old, list):
        return None
    return next((other for other in old if twins.get(other, "name") == name), None)
