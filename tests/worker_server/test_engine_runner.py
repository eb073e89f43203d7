"""The task that steps the core: what it delivers and when, and what happens when it fails or lags."""

import asyncio
import time

import pytest

from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.fleet.records import EngineSpec
from evenflow_worker.simulated.clock import EngineClock
from evenflow_worker.simulated.core import EngineCore
from evenflow_worker.simulated.runner import EngineRunner, EngineStopped, GenerationSpec, QueueFull


class Deliveries(asyncio.Event):
    """Records how many tokens had been delivered each time somebody was told."""

    def __init__(self):
        super().__init__()
        self.generation = None
        self.counts = []

    def set(self):
        if self.generation is not None:
            self.counts.append(self.generation.produced)
        super().set()


def make_runner(scale=100.0, wall=time.monotonic, **options):
    core = EngineCore(EngineSpec(kv_tokens=4096, max_model_len=4096), WorkerConfig())
    return EngineRunner(core, EngineClock(scale, wall), version="simulated test", **{"max_num_queued": 10, **options})


def spec(name="a", output=10, interval=1, prompt=5):
    return GenerationSpec(name, 0.0, prompt, output, 4000, "chat", interval)


async def deliveries(runner, output, interval):
    changed = Deliveries()
    changed.generation = runner.submit(spec(output=output, interval=interval), changed)
    task = asyncio.create_task(runner.run())
    async with asyncio.timeout(10):
        await runner.drained()
    task.cancel()
    return changed.counts


@pytest.mark.parametrize(
    ("output", "interval", "counts"),
    [
        (1, 4, [1, 1]),
        (4, 1, [1, 2, 3, 4]),
        (10, 4, [1, 5, 9, 10]),
        (9, 4, [1, 5, 9]),
        (3, 100, [1, 3]),
        (1000, 600, [1, 601, 1000]),
        (10, None, [10]),
    ],
)
async def test_the_first_token_at_once_then_every_interval_and_the_last(output, interval, counts):
    found = await deliveries(make_runner(), output, interval)
    # A delivery that coincides with the end may be told twice; what is told never goes back.
    assert sorted(set(found)) == sorted(set(counts))
    assert found == sorted(found)


async def test_nothing_remembers_a_request_that_ended():
    runner = make_runner()
    await deliveries(runner, 1000, 7)
    assert runner.in_flight == 0
    assert sum(len(waiting) for waiting in runner._due.values()) <= 1


async def test_the_queue_is_bounded():
    runner = make_runner(max_num_queued=2)
    runner.submit(spec("a"), asyncio.Event())
    runner.submit(spec("b"), asyncio.Event())
    with pytest.raises(QueueFull, match="2 requests"):
        runner.submit(spec("c"), asyncio.Event())
    assert runner.core.waiting == 2


async def test_an_engine_that_fails_tells_everybody():
    runner = make_runner()

    def boom():
        raise RuntimeError("boom")

    runner.core.step = boom
    changed = asyncio.Event()
    generation = runner.submit(spec(), changed)
    with pytest.raises(RuntimeError, match="boom"):
        await runner.run()
    assert changed.is_set()
    assert generation.failed
    with pytest.raises(EngineStopped):
        runner.submit(spec("b"), asyncio.Event())


async def test_an_abort_between_step_and_delivery_is_harmless():
    runner = make_runner(scale=0.01)
    changed = Deliveries()
    generation = runner.submit(spec(output=1), changed)
    changed.generation = generation
    task = asyncio.create_task(runner.run())
    while runner.core.counters.iterations == 0:
        await asyncio.sleep(0)
    # The only step is computed, its end is a wall second away.
    runner.abort(generation)
    runner.abort(generation)
    assert runner.in_flight == 0
    task.cancel()
    assert changed.counts == []


async def test_an_idle_engine_keeps_its_clock():
    wall = [100.0]
    runner = make_runner(scale=10.0, wall=lambda: wall[0])
    wall[0] = 150.0
    runner.submit(GenerationSpec("a", runner.clock.now(), 5, 1, 100, "chat", None), asyncio.Event())
    assert runner.core.now == pytest.approx(500.0)


async def test_a_computer_that_is_too_slow_is_noticed():
    runner = make_runner(scale=100.0)
    step = runner.core.step

    def slow_step():
        time.sleep(0.02)
        return step()

    runner.core.step = slow_step
    # A step takes 12.7 ms of engine time, so 100 engine seconds per second would need one every 0.13 ms.
    await deliveries(runner, 60, None)
    assert runner.clock.lag_ratio > 0.5
    assert runner.clock.busy_seconds == pytest.approx(runner.core.now, rel=0.2)
