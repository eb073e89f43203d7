"""Running candidates on a pool's engines, one after another or on several cores."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import numpy as np

from evenflow_cli.simulation.operator_loop import OperatorLoop
from evenflow_cli.simulation.policies import Candidate, operated_spec, static_config
from evenflow_cli.simulation.scheduling import PoolScheduling
from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.congestion import eviction_free_rate
from evenflow_model.fleet.engine import Engine
from evenflow_model.fleet.kv import BlockPool
from evenflow_model.fleet.pool import Fleet, IterationHook, TimeHook
from evenflow_model.fleet.prefix import PrefixCache
from evenflow_model.fleet.records import EngineRequest, EngineSpec
from evenflow_model.fleet.results import FleetResult, summarise
from evenflow_model.fleet.routing import router
from evenflow_model.lengths import LengthMix
from evenflow_model.traces import HASH_BLOCK_TOKENS
from evenflow_operator.api.pool import LLMServingPool
from evenflow_operator.api.spec import LLMServingPoolSpec

LONGEST_REQUEST = 1 << 20
"""Stands for a model's limit where the pool doesn't say one."""
QUANTILES = 200
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent to the pool, and how: the same for every candidate."""

    pool: LLMServingPool
    requests: tuple[EngineRequest, ...]
    seed: int = 0
    routing: str = "least-outstanding"
    prefix_caching: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What one candidate came to. `latencies` are quantiles from 0 to 1 in equal steps, in seconds."""

    name: str
    result: FleetResult
    refused: int
    latencies: tuple[float, ...]


Progress = Callable[[int, int], None]
"""Told the number of a candidate and how many of its requests are finished."""


def engine_spec(spec: LLMServingPoolSpec) -> EngineSpec:
    """The pool's engines as the simulation has them."""
    engine = spec.engine
    return EngineSpec(
        kv_tokens=engine.kv_cache_tokens,
        max_model_len=spec.model.max_model_len or LONGEST_REQUEST,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        step_time_model=engine.simulated.step_time_model.value,
    )


def simulate(
    load: Load,
    one: Candidate,
    progress: Callable[[int], None] | None = None,
    on_iterations: IterationHook | None = None,
) -> Run:
    """Serve the whole load under one candidate."""
    loop = None
    spec = engine_spec(load.pool.spec)
    if one.max_num_active_seqs is not None:
        spec = replace(spec, max_num_seqs=min(spec.max_num_seqs, one.max_num_active_seqs))
    if one.operated:
        pool = load.pool.model_copy(update={"spec": operated_spec(one, load.pool.spec)})
        loop = OperatorLoop(pool)
        configs = loop.configs
    else:
        rate = 0.0 if one.count_cap is None else observed_rate(load.requests, spec)
        configs = [static_config(one, load.pool.spec, rate)] * load.pool.spec.replicas
    engines, scheduling = _engines(spec, configs, load, one)
    hook = None
    if loop is not None:
        loop.attach(engines, scheduling)
        hook = TimeHook(loop.interval_s, loop.tick)
    fleet = Fleet(
        engines,
        router(load.routing, load.seed),
        placement=None if loop is None else loop.placement,
        on_iterations=on_iterations,
        on_time=hook,
    )
    finished = fleet.run(load.requests, progress=progress)
    latencies = [request.finished_s - request.arrival_s for request in finished]
    steps = np.linspace(0.0, 1.0, QUANTILES + 1)
    return Run(
        name=one.name,
        result=summarise(len(load.requests), finished, engines),
        refused=fleet.refused,
        latencies=tuple(float(x) for x in np.quantile(latencies, steps)) if latencies else (),
    )


def observed_rate(requests: Sequence[EngineRequest], spec: EngineSpec) -> float:
    """x*, in requests per iteration of one engine, from the requests' true lengths."""
    mix = LengthMix([(1.0, request.prompt_tokens, request.output_tokens) for request in requests])
    return eviction_free_rate(mix, spec.kv_tokens, spec.block_size)


def _engines(
    spec: EngineSpec, configs: Sequence[WorkerConfig], load: Load, one: Candidate
) -> tuple[list[Engine], list[PoolScheduling]]:
    capacity = BlockPool.of_tokens(spec.kv_tokens, spec.block_size).capacity_tokens
    engines, all_scheduling = [], []
    for config in configs:
        cache = PrefixCache(HASH_BLOCK_TOKENS) if load.prefix_caching else None
        scheduling = PoolScheduling(capacity, spec.max_model_len, config, prompt_only=one.prompt_only)
        engines.append(Engine(spec, scheduling, prefix_cache=cache))
        all_scheduling.append(scheduling)
    return engines, all_scheduling


# ---------------------------------------------------------------------- several cores

_in_worker: dict[str, Any] = {}


def simulate_all(
    load: Load, candidates: Sequence[Candidate], *, jobs: int | None = None, progress: Progress | None = None
) -> list[Run]:
    """Every candidate, in order, on up to `jobs` processes (default: as many as there are cores)."""
    jobs = min(jobs or len(os.sched_getaffinity(0)), len(candidates))
    if jobs <= 1:
        return [
            simulate(load, one, None if progress is None else partial(progress, number))
            for number, one in enumerate(candidates)
        ]
    context = multiprocessing.get_context("spawn")
    counts = [context.Value("q", 0) for _ in candidates]
    with ProcessPoolExecutor(jobs, context, _prepare, (load, counts)) as executor:
        others = set(multiprocessing.active_children())
        try:
            with _interrupts_held():
                futures = [executor.submit(_simulate_here, number, one) for number, one in enumerate(candidates)]
            waiting = set(futures)
            while waiting:
                _, waiting = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                if progress is not None:
                    for number, count in enumerate(counts):
                        progress(number, count.value)
            return [future.result() for future in futures]
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which goes to the whole foreground group: this one ends them.

    They inherit this thread's mask. It doesn't keep the signal from this process, whose other threads have none, so a
    handler keeps one that comes meanwhile; raised in the midst of a start, it would leave a child that nobody ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = threading.Event()
    handler = signal.signal(signal.SIGINT, lambda *_: held.set())
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if held.is_set():
            signal.raise_signal(signal.SIGINT)


def _prepare(load: Load, counts: Sequence["Synchronized[int]"]) -> None:
    _in_worker.update(load=load, counts=counts)


def _simulate_here(number: int, one: Candidate) -> Run:
    count = _in_worker["counts"][number]

    def progress(done: int) -> None:
        count.value = done

    return simulate(_in_worker["load"], one, progress)
