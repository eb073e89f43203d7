"""Condition types, the reasons of each, and the reasons of decisions. All of them are part of the API: tests, alerts
and `kubectl wait` name them, so none is ever renamed.
"""

from enum import StrEnum


class ConditionType(StrEnum):
    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    SPEC_VALID = "SpecValid"
    METRICS_AVAILABLE = "MetricsAvailable"
    SCHEDULER_ACTIVE = "SchedulerActive"
    CAPS_CONVERGED = "CapsConverged"
    LENGTHS_DESYNCHRONIZED = "LengthsDesynchronized"
    EVICTION_FREE = "EvictionFree"
    CLASS_LENGTH_DRIFT = "ClassLengthDrift"
    SCALING_LIMITED = "ScalingLimited"
    REBALANCE_BLOCKED = "RebalanceBlocked"


class ReadyReason(StrEnum):
    ALL_SLOTS_READY = "AllSlotsReady"
    SOME_SLOTS_READY = "SomeSlotsReady"
    """Every class is served, by fewer slots than wanted."""
    NO_READY_SLOTS = "NoReadySlots"
    CLASS_UNSERVED = "ClassUnserved"
    SCALED_TO_ZERO = "ScaledToZero"
    SPEC_INVALID = "SpecInvalid"


class ProgressingReason(StrEnum):
    STABLE = "Stable"
    CREATING_PODS = "CreatingPods"
    WAITING_FOR_PODS = "WaitingForPods"
    DRAINING = "Draining"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_STUCK = "RolloutStuck"
    SCALING_UP = "ScalingUp"
    SCALING_DOWN = "ScalingDown"
    REBALANCING = "Rebalancing"
    PAUSED = "Paused"
    ADVISORY = "Advisory"


class DegradedReason(StrEnum):
    AS_EXPECTED = "AsExpected"
    POD_FAILED = "PodFailed"
    BACK_OFF = "BackOff"
    NODE_LOST = "NodeLost"
    ENGINE_STALLED = "EngineStalled"
    INSUFFICIENT_ACCELERATORS = "InsufficientAccelerators"
    CREATE_REFUSED = "CreateRefused"
    """The API server refused a pod or a Service: quota, admission, permissions."""
    CONFIG_NOT_APPLIED = "ConfigNotApplied"
    """An engine doesn't take its worker config."""
    WAITING_FOR_GPUS = "WaitingForGPUs"
    """Terminating pods still hold the GPUs that a slot needs."""


class SpecValidReason(StrEnum):
    VALID = "Valid"
    INVALID = "Invalid"
    NAME_CONFLICT = "NameConflict"
    """An object that isn't this pool's has the name of one that the pool needs."""
    CLASS_TOO_LARGE = "ClassTooLarge"
    """Requests of a class can't fit into the KV memory that the engines report."""
    PLACEMENT_INFEASIBLE = "PlacementInfeasible"
    TOKEN_UNAVAILABLE = "TokenUnavailable"
    """The admin token's Secret can't be read."""


class MetricsAvailableReason(StrEnum):
    METRICS_FRESH = "MetricsFresh"
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    METRICS_INVALID = "MetricsInvalid"
    """NaN, infinite or negative."""
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    COUNTER_RESET = "CounterReset"
    NO_READY_SLOTS = "NoReadySlots"


class SchedulerActiveReason(StrEnum):
    ACTIVE = "Active"
    STOCK_SCHEDULER = "StockScheduler"
    """At least one engine fell back to its own scheduler."""
    UNKNOWN = "Unknown"


class CapsConvergedReason(StrEnum):
    CONVERGED = "Converged"
    ADJUSTING = "Adjusting"
    WAITING = "Waiting"
    """A wanted cap isn't yet reported as applied, or there are too few samples."""
    HOLDING = "Holding"
    """Caps stay as they are, because metrics are missing, stale, invalid or were reset."""
    FIXED = "Fixed"
    OFF = "Off"


class LengthsDesynchronizedReason(StrEnum):
    DESYNCHRONIZED = "Desynchronized"
    SYNCHRONIZED = "Synchronized"
    BORDERLINE = "Borderline"
    """Severity between the two thresholds."""
    NO_CLASSES = "NoClasses"
    UNKNOWN = "Unknown"


class EvictionFreeReason(StrEnum):
    NO_EVICTIONS = "NoEvictions"
    FEW_EVICTIONS = "FewEvictions"
    EVICTIONS_OBSERVED = "EvictionsObserved"
    UNKNOWN = "Unknown"


class ClassLengthDriftReason(StrEnum):
    AS_DECLARED = "AsDeclared"
    DRIFTED = "Drifted"
    """Observed lengths differ from the declared ones."""
    TOO_FEW_REQUESTS = "TooFewRequests"
    NO_CLASSES = "NoClasses"


class ScalingLimitedReason(StrEnum):
    WITHIN_LIMITS = "WithinLimits"
    DISABLED = "Disabled"
    AT_MAX_REPLICAS = "AtMaxReplicas"
    AT_MIN_REPLICAS = "AtMinReplicas"
    INSUFFICIENT_ACCELERATORS = "InsufficientAccelerators"
    STABILIZING = "Stabilizing"
    OTHER_WRITER = "OtherWriter"
    """Something else writes the scale subresource too."""
    METRICS_UNAVAILABLE = "MetricsUnavailable"


class RebalanceBlockedReason(StrEnum):
    NOT_BLOCKED = "NotBlocked"
    DISABLED = "Disabled"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    TOO_LITTLE_GAIN = "TooLittleGain"
    MIN_REPLICAS = "MinReplicas"
    """A move would leave a class with fewer slots than its minimum."""
    INFEASIBLE = "Infeasible"
    SLOTS_NOT_READY = "SlotsNotReady"
    OTHER_COMMAND = "OtherCommand"
    """Another disruptive command runs."""
    METRICS_UNAVAILABLE = "MetricsUnavailable"


class DecisionReason(StrEnum):
    """Why the operator did, or refused to do, one thing."""

    SLOT_EMPTY = "SlotEmpty"
    POD_FAILED = "PodFailed"
    POD_SUCCEEDED = "PodSucceeded"
    NODE_LOST = "NodeLost"
    ENGINE_STALLED = "EngineStalled"
    ENGINE_RECOVERED = "EngineRecovered"
    BACK_OFF = "BackOff"
    GPUS_HELD = "GPUsHeld"
    ORPHAN_ADOPTED = "OrphanAdopted"
    DUPLICATE_IN_SLOT = "DuplicateInSlot"
    SCALE_UP = "ScaleUp"
    SCALE_DOWN = "ScaleDown"
    USER_DRAIN = "UserDrain"
    REVISION_CHANGED = "RevisionChanged"
    RESTART_REQUESTED = "RestartRequested"
    ROLLOUT_STUCK = "RolloutStuck"
    DRAINED = "Drained"
    DRAIN_TIMED_OUT = "DrainTimedOut"
    SLOT_READY = "SlotReady"
    SLOT_UNREADY = "SlotUnready"
    CLASSES_CHANGED = "ClassesChanged"
    STRATEGY_CHANGED = "StrategyChanged"
    SEVERITY_REDUCED = "SeverityReduced"
    CAP_STARTED = "CapStarted"
    """First cap of a slot, from its severity."""
    CAP_RAISED = "CapRaised"
    CAP_CUT = "CapCut"
    CAP_FIXED = "CapFixed"
    CAP_LIFTED = "CapLifted"
    EVICTIONS_OBSERVED = "EvictionsObserved"
    WATERMARK_SET = "WatermarkSet"
    SETTINGS_CHANGED = "SettingsChanged"
    """Policy, victim, aging, predictor or class lengths."""
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    METRICS_INVALID = "MetricsInvalid"
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    COUNTER_RESET = "CounterReset"
    SAMPLE_GAP = "SampleGap"
    """More than three metric intervals between two samples."""
    NAME_CONFLICT = "NameConflict"
    SPEC_INVALID = "SpecInvalid"
    CREATE_REFUSED = "CreateRefused"
    SERVICE_MISSING = "ServiceMissing"
    SERVICE_DRIFTED = "ServiceDrifted"
    CLASS_REMOVED = "ClassRemoved"
    PAUSED = "Paused"
    ADVISORY = "Advisory"
