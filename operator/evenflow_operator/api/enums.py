"""The closed sets of words of the resource (design §4)."""

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
    PENDING = "Pending"
    STARTING = "Starting"
    READY = "Ready"
    DRAINING = "Draining"
    TERMINATING = "Terminating"
    FAILED = "Failed"
    BACK_OFF = "BackOff"
    STALLED = "Stalled"


class DecisionType(ApiEnum):
    CREATE_POD = "CreatePod"
    REPLACE_POD = "ReplacePod"
    DELETE_POD = "DeletePod"
    ADOPT_POD = "AdoptPod"
    DRAIN = "Drain"
    PLACE = "Place"
    CAP = "Cap"
    WATERMARK = "Watermark"
    POLICY = "Policy"
    SCALE = "Scale"
    ROLLOUT = "Rollout"
    CREATE_SERVICE = "CreateService"
    UPDATE_SERVICE = "UpdateService"
    DELETE_SERVICE = "DeleteService"
    HOLD = "Hold"
    REFUSE = "Refuse"
