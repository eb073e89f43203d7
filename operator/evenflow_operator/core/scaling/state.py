"""What the autoscaler remembers of a pool between two decisions. A restart of the operator loses it: then every wait
begins anew, so that nothing is taken away sooner."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine at one moment. Counters are cumulative; None where the engine has no such series."""

    at: float
    running: float
    waiting: float
    admitted: float | None
    iterations: float | None


@dataclass(frozen=True, slots=True)
class ScalingState:
    history: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    """Samples of the last window by pod uid, oldest first."""
    calibration: float | None = None
    """Measured over modelled iteration time; None until an engine was busy long enough to measure it."""
    recommended: tuple[tuple[float, int], ...] = ()
    """Times and replicas that the load called for, within the stabilisation window: from each on, none was higher."""
    complete_since: float | None = None
    """Since when the load was known without a gap; None while it isn't."""
    replicas: int | None = None
    """`spec.replicas` of the last look."""
    unnamed_at: float | None = None
    """When somebody whom managedFields don't name changed them since our last write."""
