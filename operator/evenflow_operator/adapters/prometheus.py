"""The Metrics port over Prometheus (docs/kubernetes.md §6).

A few wide queries, shared by all pools, in threads of their own, with short socket time-outs and no retries. An empty
result is not zero: a pod without samples gets a Reading without counters.
"""

import asyncio
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from urllib3.util.retry import Retry

from evenflow_contract import metrics
from evenflow_operator.adapters.series import FIELDS, SeriesSums
from evenflow_operator.core.snapshot import Reading
from evenflow_operator.ports import Clock, Sample, Target

CONNECT_TIMEOUT_SECONDS = 1.0
READ_TIMEOUT_SECONDS = 3.0
MARGIN_SECONDS = 0.5
THREADS = 4
FRESH_SECONDS = 4.0
"""Results younger than this are shared: pools that sample at the same time cost one query."""
OPEN_AFTER_FAILURES = 3
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0

PodKey = tuple[str, str]


@dataclass(slots=True)
class _Series:
    """What Prometheus knows of one pod: when its samples were taken, and their values by peak window."""

    taken_at: float = math.inf
    rows: list[tuple[str, str, float]] = field(default_factory=list)


class _BearerFile(requests.auth.AuthBase):
    """Reads the token for every request: mounted tokens are rotated under a running process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._path.read_text(encoding='utf-8').strip()}"
        return request


class PrometheusMetrics:
    """`namespace_label` and `pod_label` name the labels that the scrape configuration puts on every series."""

    name = "Prometheus"

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        token_file: Path | None = None,
        namespace_label: str = "namespace",
        pod_label: str = "pod",
        timeouts: tuple[float, float] = (CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS),
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._url = url.rstrip("/")
        self._clock = clock
        self._auth = _BearerFile(token_file) if token_file else None
        self._labels = (namespace_label, pod_label)
        self._timeouts = timeouts
        self._fresh = fresh_seconds
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="prometheus")
        self._local = threading.local()
        self._running = 0
        self._lock = asyncio.Lock()
        self._series: Mapping[PodKey, _Series] = {}
        self._problem: str | None = None
        self._fetched_at: float | None = None
        self._failures = 0
        self._closed_until = 0.0

    async def sample(self, targets: Sequence[Target]) -> Sample:
        async with self._lock:
            if self._fetched_at is None or self._clock.monotonic() - self._fetched_at >= self._fresh:
                await self._refresh()
        if self._problem is not None:
            return Sample(problem=self._problem)
        return Sample({target.uid: self._reading(target) for target in targets})

    async def close(self) -> None:
        """Don't wait for queries under way: their sockets time out soon."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _reading(self, target: Target) -> Reading:
        series = self._series.get((target.namespace, target.name))
        now = self._clock.now()
        if series is None:
            return Reading(now, "Prometheus", problem="Prometheus has no series of this pod")
        if not math.isfinite(series.taken_at) or series.taken_at < target.created_at:
            return Reading(now, "Prometheus", problem="Prometheus has no sample since this pod exists")
        sums = SeriesSums()
        for name, window, value in series.rows:
            if name != metrics.KV_USAGE_PEAK_RATIO or window == target.peak_window:
                sums.add(name, value)
        if sums.empty:
            return Reading(now, "Prometheus", problem="Prometheus has no series of this pod's engine")
        return Reading(series.taken_at, "Prometheus", sums.counters(), problem=sums.problem())

    async def _refresh(self) -> None:
        now = self._clock.monotonic()
        if now < self._closed_until:
            return
        try:
            self._series = await self._fetch()
        except _Unavailable as error:
            self._failures += 1
            self._problem = f"Prometheus: {error}"
            if self._failures >= OPEN_AFTER_FAILURES:
                doublings = min(self._failures - OPEN_AFTER_FAILURES, 10)
                pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**doublings)
                self._closed_until = self._clock.monotonic() + pause
                self._problem += f"; asked again in {pause:g} s"
        else:
            self._failures = 0
            self._problem = None
        self._fetched_at = self._clock.monotonic()

    async def _fetch(self) -> Mapping[PodKey, _Series]:
        queries = (self._values_query(), *self._age_queries())
        # All of them end before the first failure is told: or else the next refresh would run beside this one's rest.
        answers = await asyncio.gather(*(self._ask(text) for text in queries), return_exceptions=True)
        values, ages, admin_ages = (_raised(answer) for answer in answers)
        series: dict[PodKey, _Series] = {}
        for row in values:
            labels, value = _labels_and_value(row)
            key = self._pod_key(labels)
            if key is not None and labels.get("__name__") in FIELDS:
                entry = series.setdefault(key, _Series())
                entry.rows.append((labels["__name__"], labels.get(metrics.LABEL_WINDOW, ""), value))
        for row in (*ages, *admin_ages):
            labels, value = _labels_and_value(row)
            key = self._pod_key(labels)
            if key in series:
                # Engine and admin port are scraped apart: the counters are as old as the older of the two.
                series[key].taken_at = min(series[key].taken_at, value if math.isfinite(value) else math.inf)
        return series

    def _values_query(self) -> str:
        names = "|".join(FIELDS)
        extra = (metrics.LABEL_WINDOW, metrics.LABEL_CLASS, metrics.LABEL_KIND, "engine")
        by = ", ".join(("__name__", *self._labels, *extra))
        # max, not sum: two scrape jobs that see the same pod must not count it twice. Classes are added up here.
        return f'max by ({by}) ({{__name__=~"{names}", {metrics.LABEL_KIND}!="{metrics.KIND_RESUMED}"}})'

    def _age_queries(self) -> tuple[str, str]:
        by = ", ".join(self._labels)
        return (
            f"max by ({by}) (timestamp({metrics.VLLM_RUNNING}))",
            f"max by ({by}) (timestamp({metrics.ITERATIONS}))",
        )

    def _pod_key(self, labels: Mapping[str, str]) -> PodKey | None:
        namespace, pod = (labels.get(name) for name in self._labels)
        return (namespace, pod) if namespace and pod else None

    async def _ask(self, query: str) -> list[Any]:
        if self._running >= THREADS:
            raise _Unavailable(f"{self._running} earlier queries still hang")
        self._running += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self._query, query)
        future.add_done_callback(self._done)
        limit = sum(self._timeouts) + MARGIN_SECONDS
        try:
            return await asyncio.wait_for(asyncio.shield(future), limit)
        except TimeoutError as error:
            raise _Unavailable(f"no answer within {limit:g} s") from error

    def _done(self, future: "asyncio.Future[list[Any]]") -> None:
        self._running -= 1
        if not future.cancelled():
            future.exception()

    def _query(self, query: str) -> list[Any]:
        """In a thread of the executor. Raises _Unavailable, one short line."""
        try:
            result = self._connection().custom_query(query, timeout=self._timeouts)
        except requests.Timeout as error:
            raise _Unavailable(f"no answer within {sum(self._timeouts):g} s") from error
        except PrometheusApiClientException as error:
            raise _Unavailable(str(error)[:200]) from error
        except (requests.JSONDecodeError, KeyError, TypeError) as error:
            raise _Unavailable(f"the answer is not Prometheus's ({type(error).__name__})") from error
        except (requests.RequestException, OSError, ValueError) as error:
            raise _Unavailable(type(error).__name__) from error
        if not isinstance(result, list):
            raise _Unavailable("the answer is no vector")
        return result

    def _connection(self) -> Any:
        """One per thread: its HTTP connection isn't guaranteed to be thread-safe."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            # read=False: or else a time-out would come disguised as "max retries exceeded".
            retry = Retry(total=0, read=False)
            connection = PrometheusConnect(self._url, retry=retry, auth=self._auth, timeout=self._timeouts)
            self._local.connection = connection
        return connection


class _Unavailable(Exception):
    """Prometheus gave no usable answer; the message says why."""


def _raised(answer: list[Any] | BaseException) -> list[Any]:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _labels_and_value(row: Any) -> tuple[Mapping[str, str], float]:
    try:
        labels = row["metric"]
        value = float(row["value"][1])
        return (labels if isinstance(labels, Mapping) else {}), value
    except (KeyError, IndexError, TypeError, ValueError):
        return {}, math.nan
