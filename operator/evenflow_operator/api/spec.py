"""What the user asks of a pool (docs/design.md §4). Integers only: percent, micro, seconds, tokens."""

from typing import Annotated

from pydantic import Field

from evenflow_operator.api.base import (
    DNS_LABEL,
    ApiModel,
    ClassName,
    FreeObject,
    Items,
    ObjectName,
    Timestamp,
    UniqueItems,
)
from evenflow_operator.api.enums import (
    AdmissionMode,
    AdmissionUnit,
    FailureMode,
    MetricsSource,
    Mode,
    PlacementStrategy,
    PredictorType,
    SchedulingPolicy,
    Victim,
)
from evenflow_operator.api.names import MAX_CLASSES, MAX_REPLICAS, MAX_STATIC_SLOTS, MAX_TOKENS
from evenflow_operator.api.spec_engine import Accelerator, Engine, SecretKeyRef, ServedModel


class Predictor(ApiModel):
    """Where the predicted output length of a request comes from."""

    type: PredictorType = PredictorType.CLASS_PRIOR
    """ClassPrior: the class's mean; Quantile: of the class's observed lengths; Model: a file."""
    path: Annotated[str, Field(max_length=512, pattern=r"^/[-A-Za-z0-9_./]+$")] | None = None
    """Absolute path of the model inside the engine's container; with type Model only."""


class Scheduling(ApiModel):
    """The order of requests inside each engine."""

    policy: SchedulingPolicy = SchedulingPolicy.SVF
    """Order of the waiting queue."""
    victim: Victim = Victim.LARGEST_VOLUME
    """Which running request loses its KV memory when there is too little."""
    aging_seconds: int = Field(30, ge=0, le=86_400)
    """Waiting time that halves a request's key, so that nothing starves (engine seconds); 0: no aging."""
    predictor: Predictor = Field(default_factory=Predictor)
    """Where predicted output lengths come from."""


class TrafficClass(ApiModel):
    """A kind of request with similar prompt and output lengths."""

    name: ClassName
    """Name of the class; `default` is reserved for requests that name none."""
    prompt_tokens: int = Field(ge=1, le=MAX_TOKENS)
    """Mean prompt length (tokens)."""
    output_tokens: int = Field(ge=1, le=MAX_TOKENS)
    """Mean output length (tokens)."""
    output_spread_percent: int = Field(60, ge=0, le=1000)
    """Coefficient of variation of the output length (percent); 0: a fixed tier."""
    weight: int = Field(1, ge=1, le=1_000_000)
    """Share of the pool's requests, relative to the other classes' weights."""
    requests_per_minute: int | None = Field(None, ge=0, le=10_000_000)
    """Expected rate of requests (per minute); absent: unknown until observed."""
    min_replicas: int = Field(1, ge=1, le=MAX_REPLICAS)
    """Fewest slots that serve the class, if the pool has as many."""


class StaticSlot(ApiModel):
    """The classes of one slot under Static placement."""

    slot: int = Field(ge=0, le=MAX_REPLICAS - 1)
    """Number of the slot."""
    classes: Annotated[Items[ClassName], UniqueItems()] = Field(default_factory=tuple, max_length=MAX_CLASSES)
    """Names of the classes that the slot serves."""


class Rebalance(ApiModel):
    """When classes may move between slots."""

    enabled: bool = True
    """Whether classes may move at all."""
    min_improvement_percent: int = Field(20, ge=1, le=100)
    """Smallest fall of severity that a move must bring (percent)."""
    max_moves_per_hour: int = Field(6, ge=0, le=1000)
    """Most moves per hour."""


class Placement(ApiModel):
    """Which classes each slot serves."""

    strategy: PlacementStrategy = PlacementStrategy.BALANCED
    """Balanced: by severity and load; All: every class on every slot; Static: as listed."""
    static: Annotated[Items[StaticSlot], UniqueItems("slot")] = Field(
        default_factory=tuple, max_length=MAX_STATIC_SLOTS
    )
    """Classes of each slot, with strategy Static only; a slot that isn't listed serves every class."""
    max_classes_per_replica: int = Field(8, ge=1, le=MAX_CLASSES)
    """Most classes that one slot serves."""
    rebalance: Rebalance = Field(default_factory=Rebalance)
    """When classes may move."""


class AdmissionControl(ApiModel):
    """How fast each engine may admit new requests."""

    mode: AdmissionMode = AdmissionMode.AUTO
    """Auto: the operator tunes the cap from evictions; Fixed: capMicro; Off: no cap."""
    unit: AdmissionUnit = AdmissionUnit.VOLUME
    """What the cap counts: predicted volume as a multiple of usable KV memory M, or requests."""
    cap_micro: int | None = Field(None, ge=1, le=1_000_000_000)
    """The cap with mode Fixed (millionths of a request, or of M, per engine iteration); 1000000 in Volume is x*."""
    watermark_percent: int | None = Field(None, ge=0, le=90)
    """Share of KV memory that admission leaves free (percent); absent: Auto picks 5 or 1, Off and Fixed use 0."""


class Autoscaling(ApiModel):
    """The built-in autoscaler, which writes replicas through the scale subresource."""

    min_replicas: int = Field(2, ge=1, le=MAX_REPLICAS)
    """Fewest replicas."""
    max_replicas: int = Field(8, ge=1, le=MAX_REPLICAS)
    """Most replicas."""
    target_load_percent: int = Field(75, ge=1, le=100)
    """Load of the binding resource (KV memory, step budget or sequences) to aim at (percent)."""
    scale_down_stabilization_seconds: int = Field(300, ge=0, le=86_400)
    """How long the load must stay low before a replica is taken away (seconds)."""


class Rollout(ApiModel):
    """How pods are replaced when the pool's revision changes."""

    max_unavailable: int = Field(1, ge=1, le=MAX_REPLICAS)
    """Most slots out of service at once for a rollout."""
    drain_timeout_seconds: int = Field(600, ge=0, le=86_400)
    """Longest wait for running requests before a drained pod is deleted (seconds)."""
    restarted_at: Timestamp | None = None
    """Any new value restarts every slot, one after another (RFC 3339 time)."""


class Metrics(ApiModel):
    """Where the operator reads engine metrics from."""

    source: MetricsSource = MetricsSource.AUTO
    """Auto: Prometheus where the operator was given one, else Scrape; Scrape suits up to 200 pods."""
    interval_seconds: int = Field(15, ge=1, le=300)
    """Time between two samples (seconds)."""
    stale_after_seconds: int = Field(90, ge=2, le=3600)
    """Age from which a sample is no longer believed (seconds)."""


class ParentRef(ApiModel):
    """A Gateway that an HTTPRoute attaches to."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)] | None = None
    """Namespace of the Gateway; absent: the pool's."""
    section_name: ObjectName | None = None
    """Listener of the Gateway; absent: all."""


class HttpRoute(ApiModel):
    """A Gateway API HTTPRoute that sends each class to its Service, by the header x-traffic-class."""

    parent_refs: Items[ParentRef] = Field(min_length=1, max_length=8)
    """Gateways that the route attaches to."""
    hostnames: Annotated[
        Items[Annotated[str, Field(min_length=1, max_length=253, pattern=r"^(\*\.)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]],
        UniqueItems(),
    ] = Field(default_factory=tuple, max_length=16)
    """Host names that the route serves; empty: those of the Gateway."""


class EndpointPickerRef(ApiModel):
    """The Service of an endpoint picker."""

    name: ObjectName
    """Name of the Service, in the pool's namespace."""
    port: int = Field(9002, ge=1, le=65_535)
    """Port of the Service."""


class InferencePoolRoute(ApiModel):
    """A Gateway API InferencePool per class, for an endpoint picker."""

    endpoint_picker_ref: EndpointPickerRef
    """The endpoint picker."""
    failure_mode: FailureMode = FailureMode.FAIL_CLOSE
    """What the gateway does while the picker is away."""


class Routing(ApiModel):
    """Optional routes beside the Service that each class always has."""

    http_route: HttpRoute | None = None
    """An HTTPRoute for the pool."""
    inference_pool: InferencePoolRoute | None = None
    """An InferencePool for each class."""


class PodTemplate(ApiModel):
    """A partial PodTemplateSpec, merged strategically into the pods; the engine's container is named `engine`."""

    metadata: FreeObject | None = None
    """Labels and annotations of the pods."""
    spec: FreeObject | None = None
    """Parts of a PodSpec."""


class LLMServingPoolSpec(ApiModel):
    """What the user asks for: one model, served by several replicas."""

    mode: Mode = Mode.ACTIVE
    """Active; Advisory: decide and report, change nothing; Paused: do nothing."""
    model: ServedModel
    """The model to serve."""
    replicas: int = Field(1, ge=0, le=MAX_REPLICAS)
    """Engine pods wanted. Leave it out where an autoscaler writes it through the scale subresource."""
    engine: Engine = Field(default_factory=Engine)
    """The inference engine."""
    accelerator: Accelerator = Field(default_factory=Accelerator)
    """The accelerator of each replica."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """The order of requests inside each engine."""
    traffic_classes: Annotated[Items[TrafficClass], UniqueItems("name")] = Field(
        default_factory=tuple, max_length=MAX_CLASSES
    )
    """The kinds of request that the pool serves; may be empty."""
    placement: Placement = Field(default_factory=Placement)
    """Which classes each slot serves."""
    admission: AdmissionControl = Field(default_factory=AdmissionControl)
    """How fast each engine may admit new requests."""
    autoscaling: Autoscaling | None = None
    """The built-in autoscaler; absent: replicas is yours, or another autoscaler's."""
    rollout: Rollout = Field(default_factory=Rollout)
    """How pods are replaced."""
    metrics: Metrics = Field(default_factory=Metrics)
    """Where engine metrics come from."""
    routing: Routing | None = None
    """Optional routes beside the Services."""
    admin_token_secret_ref: SecretKeyRef | None = None
    """Secret with the bearer token of the workers' admin API; absent: the pod annotation alone carries changes where
    the admin API is closed."""
    pod_template: PodTemplate | None = None
    """Changes to the pods."""
