"""The closed sets of words of the resource (docs/design.md §4)."""

from evenflow_operator.api.base import ApiEnum


class Mode(ApiEnum):
    ACTIVE = "Active"
    ADVISORY = "Advisory"
    PAUSED = "Paused"


class EngineType(ApiEnum):
    VLLM = "VLLM"
    SIMULATED = "Simulated"


class StepTimeModel(ApiEnum):
    A100_8B = "A100-8B"
    A100_70B = "A100-70B"


class PullPolicy(ApiEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class SchedulingPolicy(ApiEnum):
    SVF = "SVF"
    ONE_BIT_SVF = "OneBitSVF"
    SJF = "SJF"
    FCFS = "FCFS"


class Victim(ApiEnum):
    LARGEST_VOLUME = "LargestVolume"
    LEAST_PROGRESS = "LeastProgress"


class PredictorType(ApiEnum):
    CLASS_PRIOR = "ClassPrior"
    QUANTILE = "Quantile"
    MODEL = "Model"


class PlacementStrategy(ApiEnum):
    BALANCED = "Balanced"
    ALL = "All"
    STATIC = "Static"


class AdmissionMode(ApiEnum):
    AUTO = "Auto"
    FIXED = "Fixed"
    OFF = "Off"


class AdmissionUnit(ApiEnum):
    VOLUME = "Volume"
    REQUESTS = "Requests"


class MetricsSource(ApiEnum):
    AUTO = "Auto"
    PROMETHEUS = "Prometheus"
    SCRAPE = "Scrape"


class FailureMode(ApiEnum):
    FAIL_OPEN = "FailOpen"
    FAIL_CLOSE = "FailClose"


class ConditionStatus(ApiEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class SlotPhase(ApiEnum):
    """Where a slot stands."""

    PENDING = "Pending"
    """No pod yet, or one that isn't scheduled."""
    STARTING = "Starting"
    """The pod runs and isn't in service yet."""
    READY = "Ready"
    """In service."""
    DRAINING = "Draining"
    """Out of its Services, finishing what it runs."""
    TERMINATING = "Terminating"
    """The pod is being deleted."""
    FAILED = "Failed"
    """The pod ended or doesn't start."""
    BACK_OFF = "BackOff"
    """Waiting after failures."""
    STALLED = "Stalled"
    """Requests wait and the engine doesn't iterate."""


class DecisionType(ApiEnum):
    """What kind of act a decision is."""

    CREATE_POD = "CreatePod"
    """A pod is made for a slot."""
    REPLACE_POD = "ReplacePod"
    """A dead pod's object is deleted, so that the slot can be filled."""
    DELETE_POD = "DeletePod"
    """A pod is deleted: drained, surplus, or not wanted and serving nobody."""
    ADOPT_POD = "AdoptPod"
    """A pod without an owner is taken over."""
    DRAIN = "Drain"
    """A drain for a user begins, or a drain ends because the pod is wanted again."""
    PLACE = "Place"
    """A slot's classes change, or it enters or leaves its Services."""
    CAP = "Cap"
    """An admission cap is written."""
    WATERMARK = "Watermark"
    """A watermark is written."""
    POLICY = "Policy"
    """Ordering, victim, aging, predictor or priors are written."""
    SCALE = "Scale"
    """The built-in autoscaler writes replicas, or a drain for a scale-down begins."""
    ROLLOUT = "Rollout"
    """A drain for a rollout begins."""
    CREATE_SERVICE = "CreateService"
    """The Service of a class is made."""
    UPDATE_SERVICE = "UpdateService"
    """Selector and ports of a Service are restored, or changed for a class that goes or comes back."""
    DELETE_SERVICE = "DeleteService"
    """The Service of a class that is gone is deleted."""
    HOLD = "Hold"
    """Reserved: holds show as conditions."""
    REFUSE = "Refuse"
    """Reserved: refusals show as conditions."""
