"""The operator's own metrics, `evenflow_operator_…`."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evenflow_operator.core.plan import ScalingFigures

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "evenflow_operator_"

GAUGES: Mapping[str, str] = {
    "leader": "1 while this process leads.",
    "queue_depth": "Pools that wait to be worked on.",
    "oldest_sample_age_seconds": "Age of the oldest engine sample in use; NaN without any.",
    "events_dropped": "Kubernetes Events that could not be posted.",
    **{
        f"cached_{kind}": f"Objects in the cache: {kind}."
        for kind in ("pools", "pods", "services", "endpointslices", "nodes")
    },
}
"""Gauges by name, with what they mean: the parts of the operator that know their values add them."""


class Telemetry:
    """One registry per operator, so that several can live in one process (tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._duration = Histogram(
            f"{PREFIX}reconcile_duration_seconds",
            "One pass over one pool.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._wait = Histogram(
            f"{PREFIX}queue_wait_seconds",
            "Time that a pool waited in the work queue.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._failed = Counter(
            f"{PREFIX}reconcile_failures_total", "Passes that failed.", ["cause"], registry=self.registry
        )
        self._decisions = Counter(
            f"{PREFIX}decisions_total", "Decisions carried out.", ["type", "reason"], registry=self.registry
        )
        self._api_errors = Counter(
            f"{PREFIX}api_errors_total",
            "API calls that failed; status 0 means no answer.",
            ["verb", "status"],
            registry=self.registry,
        )
        self._pushes = Counter(
            f"{PREFIX}config_pushes_total", "Worker configs pushed, by result.", ["result"], registry=self.registry
        )
        self._corrections = Counter(
            f"{PREFIX}cache_corrections_total",
            "Objects that a periodic LIST put right in the cache.",
            ["kind"],
            registry=self.registry,
        )
        labels = ["namespace", "pool"]
        self._loads = Gauge(
            f"{PREFIX}autoscaling_load_ratio",
            "Load of a pool with autoscaling, by resource: 1 is every replica in full use.",
            [*labels, "resource"],
            registry=self.registry,
        )
        self._called_for = Gauge(
            f"{PREFIX}autoscaling_replicas_called_for",
            "Replicas that the load calls for, whatever the bounds.",
            labels,
            registry=self.registry,
        )
        self._drain = Gauge(
            f"{PREFIX}autoscaling_queue_drain_seconds",
            "Time until what waits is served at the present rate of arrivals; +Inf: never.",
            labels,
            registry=self.registry,
        )
        self._scaled: dict[tuple[str, str], ScalingFigures] = {}
        self._restarts = Counter(f"{PREFIX}watch_restarts_total", "Restarts of the watches.", registry=self.registry)

    def reconciled(self, seconds: float, waited: float) -> None:
        self._duration.observe(seconds)
        self._wait.observe(waited)

    def reconcile_failed(self, cause: str) -> None:
        self._failed.labels(cause).inc()

    def decided(self, kind: str, reason: str) -> None:
        self._decisions.labels(kind, reason).inc()

    def api_error(self, verb: str, status: int) -> None:
        self._api_errors.labels(verb, str(status)).inc()

    def pushed(self, result: str) -> None:
        self._pushes.labels(result).inc()

    def corrected(self, kind: str, count: int) -> None:
        self._corrections.labels(kind).inc(count)

    def watch_restarted(self) -> None:
        self._restarts.inc()

    def scaling(self, key: tuple[str, str], figures: ScalingFigures | None) -> None:
        """What the autoscaler sees of a pool. None: it sees nothing, so that nothing stands there as if it were new."""
        before = self._scaled.pop(key, None)
        if before is not None and figures is None:
            for name in before.loads:
                self._loads.remove(*key, name)
            self._called_for.remove(*key)
            self._drain.remove(*key)
        if figures is None:
            return
        self._scaled[key] = figures
        for name, share in figures.loads.items():
            self._loads.labels(*key, name).set(share)
        self._called_for.labels(*key).set(figures.replicas)
        self._drain.labels(*key).set(figures.drain_seconds)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """One of GAUGES, read when somebody scrapes."""
        Gauge(f"{PREFIX}{name}", GAUGES[name], registry=self.registry).set_function(read)

    def render(self) -> bytes:
        return generate_latest(self.registry)
