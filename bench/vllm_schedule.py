"""What the worker costs inside vLLM's schedule(), and what its order and cap give, on real scheduler objects.

    python bench/vllm_schedule.py cost                 microseconds of one schedule() beside stock FCFS and PRIORITY
    python bench/vllm_schedule.py queue                vLLM's own queues beside ours
    python bench/vllm_schedule.py open [--seeds 5]     the loads of open_arrivals.py, with aging beside
    python bench/vllm_schedule.py predictor            CPU per request, and steps beside a busy predictor

Needs vLLM for CPU (`make test-real` makes such an environment); no model is loaded, a fake runner gives the tokens.
"""

import argparse
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "vllm_real"))
# Before numpy is loaded: one thread asks the model, whatever the computer has.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    from vllm_kit import Engine, make_engine, make_model_dir
except ImportError as error:
    print(f"skipped: {error}; run it in an environment that `make test-real` made")
    sys.exit(0)

import numpy as np
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue

from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_model.volume import volume
from evenflow_worker.predict import BatchPredictor, LengthModel, LinearTokenModel, Prompt
from open_arrivals import BLOCK, CAPACITY, LOADS, PROMPT, X_STAR, X_STAR_BLOCKS, Result, draw, mean_of

SVF = WorkerConfig(generation=1, aging_seconds=0.0)


def apply(engine: Engine, config: WorkerConfig) -> None:
    engine.scheduler.evenflow.steering.offer(config)
    engine.scheduler.evenflow.take_config()


# ---------------------------------------------------------------------- cost

PASSES = 300


def cost(model: Path) -> None:
    kinds: dict[str, Callable[..., Engine]] = {
        "stock FCFS": lambda **o: make_engine(model, steered=False, **o),
        "stock PRIORITY": lambda **o: make_engine(model, steered=False, policy="priority", **o),
        "evenflow SVF": lambda **o: _steered(model, SVF, **o),
        "evenflow SVF aged 30": lambda **o: _steered(model, replace(SVF, aging_seconds=30.0), **o),
        "evenflow SVF, cap 1.0": lambda **o: _steered(
            model, replace(SVF, admission=Admission("Limited", "Volume", 1.0)), **o
        ),
    }
    print(f"schedule(), microseconds of CPU: medians of {PASSES} passes (ratio to stock FCFS's); the running decode")
    for running, blocked in ((32, True), (255, False)):
        for waiting in (1_000, 10_000):
            engines = {name: _loaded(make, running, waiting, blocked) for name, make in kinds.items()}
            times = _schedule_us(engines, random.Random(1))
            stock = times["stock FCFS"]
            what = "admission blocked" if blocked else "admissions"
            print(f"{running} running, {waiting} waiting, {what}: ", end="")
            cells = []
            for name, taken in times.items():
                ratio = statistics.median(one / base for one, base in zip(taken, stock, strict=True))
                cells.append(f"{name} {statistics.median(taken):.0f} ({ratio:.3f})")
            print(", ".join(cells), flush=True)


def _steered(model: Path, config: WorkerConfig, **options: object) -> Engine:
    engine = make_engine(model, **options)
    apply(engine, config)
    return engine


def _loaded(make: Callable[..., Engine], running: int, waiting: int, blocked: bool) -> Engine:
    engine = make(
        num_blocks=60_000,
        max_num_seqs=running if blocked else running + 1,
        max_num_batched_tokens=8192,
        max_model_len=2048,
    )
    source = random.Random(3)
    for number in range(running):
        engine.add(f"run{number}", 64, 1_900)
    while len(engine.scheduler.running) < running:
        engine.step()
    for number in range(waiting):
        engine.add(f"wait{number}", source.randint(1, 200), 1, priority=source.randrange(1 << 20))
    return engine


def _schedule_us(engines: Mapping[str, Engine], source: random.Random) -> dict[str, list[float]]:
    """Of each pass. All engines take a pass in turn, in random order: what slows the computer down hits every one."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(PASSES):
        for name in source.sample(list(engines), len(engines)):
            # CPU time of this thread: on a computer that others use too, wall time says more about them.
            before = time.thread_time()
            engines[name].schedule()
            times[name].append((time.thread_time() - before) * 1e6)
            engines[name].update()
    return times


ROUNDS = 9


def _add_pop(made: Any, extra: Sequence[Any]) -> float:
    """Seconds to add one and pop one while 10,000 wait."""
    before = time.perf_counter()
    for request in extra:
        made.add_request(request)
        made.peek_request()
        made.pop_request()
    return (time.perf_counter() - before) / len(extra)


def queue(model: Path) -> None:
    engine = _steered(model, SVF)
    source = random.Random(5)
    requests = [
        engine.request(f"r{n}", source.randint(1, 60), 1, priority=source.randrange(1 << 20))
        for n in range(10_000 + 1_000 * ROUNDS)
    ]
    for request in requests:
        engine.scheduler.evenflow.steering.register(request)
    print("10,000 waiting, microseconds each: add + pop, remove + add")
    for name, made in (
        ("FCFS", FCFSRequestQueue()),
        ("PRIORITY", PriorityRequestQueue()),
        ("evenflow", engine.scheduler.waiting),
    ):
        for request in requests[:10_000]:
            made.add_request(request)
        pair = min(
            _add_pop(made, requests[10_000 + 1_000 * number : 11_000 + 1_000 * number]) for number in range(ROUNDS)
        )
        inside = list(made)[:: 500 if name != "evenflow" else 5]
        before = time.perf_counter()
        for request in inside:
            made.remove_request(request)
            made.add_request(request)
        removal = (time.perf_counter() - before) / len(inside)
        print(f"{name:10} {pair * 1e6:8.2f} {removal * 1e6:9.2f}")
        while len(made):
            made.pop_request()


# ---------------------------------------------------------------------- order and cap


def _replay(engine: Engine, requests: Sequence[tuple[float, int]]) -> Result:
    arrived: dict[str, float] = {}
    latency: list[float] = []
    recomputed = evictions = generated = step = index = 0
    highest: dict[str, int] = {}
    while len(latency) < len(requests):
        while index < len(requests) and requests[index][0] <= step:
            name = f"r{index}"
            arrived[name], output = requests[index]
            request = engine.add(name, PROMPT, output, priority=volume(PROMPT, output))
            hooks = getattr(engine.scheduler, "evenflow", None)
            if hooks is not None:
                # The oracle: as a perfect predictor's answer would arrive.
                hooks.steering.predict(request, float(output))
            index += 1
        if not engine.scheduler.requests:
            step += 1
            continue
        computed = {r.request_id: r.num_computed_tokens for r in engine.scheduler.running}
        preempted = {r.request_id: r.num_preemptions for r in engine.scheduler.running}
        scheduled = engine.schedule()
        for name, count in preempted.items():
            if engine.scheduler.requests[name].num_preemptions > count:
                evictions += 1
                highest[name] = max(highest.get(name, 0), computed[name])
        for name, tokens in scheduled.num_scheduled_tokens.items():
            if name in highest:
                end = engine.scheduler.requests[name].num_computed_tokens
                recomputed += max(min(end, highest[name]) - (end - tokens), 0)
        step += 1
        before = engine.tokens
        latency.extend(step - arrived[name] for name in engine.update())
        generated = before
    latency.sort()
    count = len(latency)
    return Result(sum(latency) / count, latency[int(0.99 * count)], evictions / count, recomputed / generated)


def open_arrivals(model: Path, seeds: int, count: int) -> None:
    limited = Admission("Limited", "Volume", 1.0)
    policies: dict[str, WorkerConfig | str] = {
        "stock FCFS": "fcfs",
        "stock PRIORITY(volume)": "priority",
        "SVF": SVF,
        "SVF, volume cap 1.0": replace(SVF, admission=limited),
        "SVF aged 30": replace(SVF, aging_seconds=30.0),
        "SVF aged 30, volume cap 1.0": replace(SVF, aging_seconds=30.0, admission=limited),
    }
    print(
        f"x* {X_STAR:.3f} requests per iteration ({X_STAR_BLOCKS:.3f} in whole blocks); {seeds} seeds, "
        f"{count} requests each, iterations of 0.03 s for aging"
    )
    for title, rate in LOADS.items():
        base: Result | None = None
        print(f"{title:30}{'mean':>8}{'ratio':>7}{'p99':>8}{'ratio':>7}{'evict':>7}{'recomputed':>11}")
        for name, policy in policies.items():
            loads = [draw(count, rate, random.Random(seed)) for seed in range(seeds)]
            mean = mean_of([_replay(_engine(model, policy), load) for load in loads])
            base = base or mean
            print(
                f"{name:30}{mean.mean:8.1f}{mean.mean / base.mean:7.3f}{mean.p99:8.0f}{mean.p99 / base.p99:7.2f}"
                f"{mean.evictions:7.2f}{mean.recomputed:11.3f}",
                flush=True,
            )


def _engine(model: Path, policy: WorkerConfig | str) -> Engine:
    options = {"num_blocks": CAPACITY // BLOCK + 1, "block_size": BLOCK, "max_num_seqs": 1024}
    options |= {"max_num_batched_tokens": 8192, "max_model_len": 1024}
    if isinstance(policy, str):
        return make_engine(model, steered=False, policy=policy, **options)
    ticks = [0]
    engine = make_engine(model, clock=lambda: 0.03 * ticks[0], **options)
    begin = engine.scheduler.evenflow.steering.begin

    def counted(*, paused: bool) -> None:
        ticks[0] += 1
        begin(paused=paused)

    engine.scheduler.evenflow.steering.begin = counted
    apply(engine, policy)
    return engine


# ---------------------------------------------------------------------- predictor

DEVICE_S = 0.02
PAIRS, BLOCK_STEPS = 20, 30


class Products:
    """A trained model's cost: matrix products, which release the interpreter's lock, 20 ms a batch."""

    def __init__(self) -> None:
        self._matrix = np.random.default_rng(1).standard_normal((400, 400))

    def predict(self, batch: Sequence[Prompt]) -> Sequence[float]:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            self._matrix @ self._matrix
        return [100.0] * len(batch)


def predictor(model: Path) -> None:
    engine = _decoding(model)
    requests = [engine.request(f"r{n}", 500, 10, traffic_class="chat") for n in range(5_000)]
    steering = engine.scheduler.evenflow.steering
    before = time.process_time()
    for request in requests:
        steering.register(request)
    print(
        f"register and predict in the engine's thread: {(time.process_time() - before) / 5_000 * 1e3:.4f} ms a request"
    )
    linear = LinearTokenModel(np.zeros(1 << 16, dtype=np.float32), 4.0, 0.1)
    hurried = LinearTokenModel(np.zeros(1 << 16, dtype=np.float32), 4.0, 0.1, pause=lambda _: None)
    cases: list[tuple[str, LengthModel, int]] = [
        ("nobody asks", linear, 0),
        ("linear, 500 tokens", linear, 500),
        ("linear, 4,000 tokens", linear, 4_000),
        ("linear without its pauses", hurried, 500),
        ("matrix products", Products(), 500),
    ]
    print(f"steps of {DEVICE_S * 1e3:.0f} ms device time, 64 running, beside a model that is never idle")
    print(f"{'model':28}{'quiet ms':>10}{'busy ms':>10}{'ratio':>8}{'':8}{'asked/s':>9}")
    for name, length_model, tokens in cases:
        _beside(_decoding(model), name, length_model, Prompt("chat", tokens, list(range(tokens))) if tokens else None)


def _decoding(model: Path) -> Engine:
    engine = _steered(model, replace(SVF, classes=("chat",)), num_blocks=60_000, max_num_seqs=64, max_model_len=4096)
    for number in range(64):
        engine.add(f"run{number}", 100, 3_900)
    for _ in range(5):
        engine.step()
    return engine


def _beside(engine: Engine, name: str, length_model: LengthModel, prompt: Prompt | None) -> None:
    """Steps with and without, in turns of some 30 steps, so that what slows the computer down hits both."""
    answered = [0]

    def observed(batch: int, seconds: float) -> None:
        answered[0] += batch

    quiet, busy = [], []
    spent = 0.0
    for _ in range(PAIRS):
        quiet.append(_step_ms(engine))
        models: BatchPredictor[int] = BatchPredictor(lambda reason, count: None, observed)
        models.use(lambda: length_model)

        def feed(models: BatchPredictor[int] = models) -> None:
            for number in range(2_048 if prompt is not None else 0):
                models.submit(number, cast("Prompt", prompt))
            models.drain()

        began = time.perf_counter()
        busy.append(_step_ms(engine, feed))
        spent += time.perf_counter() - began
        models.close()
    ratio = statistics.mean(busy) / statistics.mean(quiet)
    rests = [loud - ratio * still for loud, still in zip(busy, quiet, strict=True)]
    error = statistics.stdev(rests) / len(rests) ** 0.5 / statistics.mean(quiet)
    print(
        f"{name:28}{statistics.mean(quiet):10.3f}{statistics.mean(busy):10.3f}{ratio:8.4f} ±{error:.4f}"
        f"{answered[0] / spent:9.0f}",
        flush=True,
    )


def _step_ms(engine: Engine, feed: Callable[[], None] = lambda: None) -> float:
    """Mean duration of a step; a model's step is device time that releases the interpreter's lock: here it sleeps."""
    times = []
    for _ in range(BLOCK_STEPS):
        feed()
        before = time.perf_counter()
        engine.schedule()
        time.sleep(DEVICE_S)
        engine.update()
        times.append(time.perf_counter() - before)
    return statistics.mean(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="cost", choices=("cost", "queue", "open", "predictor"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1_000, help="of each open run")
    arguments = parser.parse_args()
    # A table is easier to read without vLLM's advice about CPUs between its rows.
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model_dir(Path(folder) / "model")
        if arguments.what == "open":
            open_arrivals(model, arguments.seeds, arguments.requests)
        else:
            {"cost": cost, "queue": queue, "predictor": predictor}[arguments.what](model)


if __name__ == "__main__":
    main()
