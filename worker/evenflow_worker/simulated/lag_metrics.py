"""Whether this computer kept up with the engine's clock: without it no figure of a simulated engine can be trusted."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from evenflow_worker.simulated.clock import EngineClock
from evenflow_worker.simulated.core import EngineCore

LAG_SECONDS = "evenflow_simulated_lag_seconds"
LAG_RATIO = "evenflow_simulated_lag_ratio"
LOST_SECONDS = "evenflow_simulated_lost_seconds_total"
BUSY_SECONDS = "evenflow_simulated_busy_seconds_total"
TIME_SCALE = "evenflow_simulated_time_scale"


class LagMetrics(Collector):
    """Read from clock and core at scrape time. For the lag of a period: rate of lost over rate of busy seconds."""

    def __init__(self, registry: CollectorRegistry, clock: EngineClock, core: EngineCore) -> None:
        self._clock = clock
        self._core = core
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        clock = self._clock
        behind = max(clock.now() - self._core.now, 0.0) if self._core.has_work else 0.0
        yield GaugeMetricFamily(LAG_SECONDS, "Engine seconds that the engine is behind its clock now.", value=behind)
        yield GaugeMetricFamily(LAG_RATIO, "Engine seconds lost per engine second run, ever.", value=clock.lag_ratio)
        yield CounterMetricFamily(
            LOST_SECONDS, "Engine seconds by which the clock was set back.", value=clock.lost_seconds
        )
        yield CounterMetricFamily(BUSY_SECONDS, "Engine seconds that steps took.", value=clock.busy_seconds)
        yield GaugeMetricFamily(TIME_SCALE, "Engine seconds per wall second.", value=clock.time_scale)
