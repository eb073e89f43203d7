"""Random abuse of real schedulers: nothing lost, no block leaked, no hook failed, the order as specified."""

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.interface import PauseState
from vllm_kit import Engine, make_engine
from vllm_rules import ExactBucket, expected_order

from evenflow_contract.worker_config import Admission, ClassPrior, Predictor, Proxies, WorkerConfig
from evenflow_worker.predict import LengthModel, Prompt
from evenflow_worker.vllm.events import HookFailed
from evenflow_worker.vllm.record import record_of

pytestmark = pytest.mark.vllm

CASES = int(os.environ.get("EVENFLOW_FUZZ_CASES", "1000"))
CLASSES = ("chat", "code")


class BadModel:
    """Crashes, answers nonsense or dawdles, at random; sometimes it predicts."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def predict(self, batch: Sequence[Prompt]) -> Sequence[float]:
        kind = self._source.random()
        if kind < 0.2:
            raise RuntimeError("crash")
        if kind < 0.3:
            return [1.0]
        if kind < 0.4:
            return [float("nan")] * len(batch)
        if kind < 0.5:
            time.sleep(0.002)
        return [self._source.uniform(1, 90) for _ in batch]


def draw_config(source: random.Random, generation: int) -> WorkerConfig:
    limited = source.random() < 0.6
    return WorkerConfig(
        generation=generation,
        policy=source.choice(("SVF", "OneBitSVF", "SJF", "FCFS")),
        victim=source.choice(("LargestVolume", "LeastProgress")),
        aging_seconds=source.choice((0.0, 0.0, 0.01, 1.0, 30.0)),
        predictor=Predictor(source.choice(("ClassPrior", "Quantile"))),
        proxies=Proxies(20, 5, 60) if source.random() < 0.3 else None,
        classes=CLASSES,
        admission=Admission(
            "Limited" if limited else "Off",
            source.choice(("Requests", "Volume")),
            source.choice((0.03, 0.4, 0.9, 1.0, 2.5)) if limited else None,
            source.choice((0.0, 0.01, 0.3)),
        ),
        class_priors={"chat": ClassPrior(20, 30)} if source.random() < 0.5 else {},
    )


class Abuse:
    def __init__(self, seed: int, model: Path) -> None:
        self.source = source = random.Random(seed)
        self.asynchronous = source.random() < 0.5
        block = source.choice((1, 4, 16))
        max_len = source.choice((60, 150, 300))
        self.blocks = max(source.choice((4, 12, 50, 200)), -(-max_len // block) + 1)
        self.max_len = max_len
        self.loras = source.choice((0, 0, 0, 1, 2))
        # vLLM skips what the adapter limit keeps out, and what has output in flight: others may enter before.
        self.skips = self.loras > 0 or self.asynchronous
        self.engine: Engine = make_engine(
            model,
            asynchronous=self.asynchronous,
            num_blocks=self.blocks + 1,
            block_size=block,
            max_num_seqs=source.choice((1, 3, 8, 64)),
            max_num_batched_tokens=source.choice((64, 100, 256, 2048)),
            max_model_len=max_len,
            caching=source.random() < 0.5,
            max_loras=self.loras,
        )
        self.scheduler = self.engine.scheduler
        self.steering = self.scheduler.evenflow.steering
        usable = self.blocks * block
        self.bucket = ExactBucket(usable, block)
        self.generation = self.passes = 0
        self.added: list[str] = []
        self.aborted: set[str] = set()
        bad: LengthModel = BadModel(random.Random(seed))
        self.modelled = source.random() < 0.3
        if self.modelled:
            self.scheduler.evenflow.models.use(lambda: bad)

    def change(self) -> None:
        self.generation += 1
        self.steering.offer(draw_config(self.source, self.generation))

    def add(self) -> None:
        source = self.source
        prompt = min(source.randint(1, 40) if source.random() < 0.7 else source.randint(1, self.max_len - 1), 299)
        prompt = min(prompt, self.max_len - 1)
        output = source.randint(1, self.max_len - prompt)
        output = min(output, 60)
        limit = source.randint(1, self.max_len - prompt) if source.random() < 0.5 else None
        name = f"r{len(self.added)}"
        # A few prompts recur, so that the prefix cache has something to say.
        ids = [3 + (n + source.choice((0, 0, 1))) % 500 for n in range(prompt)] if source.random() < 0.5 else prompt
        number = source.randint(0, 3) if self.loras else 0
        adapter = LoRARequest(f"adapter-{number}", number, "nowhere") if number else None
        traffic_class = source.choice((*CLASSES, "unlisted", None))
        self.engine.add(name, ids, output, max_tokens=limit, traffic_class=traffic_class, lora=adapter)
        self.added.append(name)
        self.bucket.configure(self.steering.config)

    def abort(self) -> None:
        alive = sorted(self.scheduler.requests)
        if alive:
            names = self.source.sample(alive, min(len(alive), self.source.randint(1, 3)))
            self.aborted.update(names)
            self.engine.abort(names)

    def one_pass(self) -> None:
        scheduler, steering = self.scheduler, self.steering
        # As the pass itself would begin; with nothing offered it changes nothing.
        scheduler.evenflow.take_config()
        running_before = set(scheduler.running)
        queue_before = list(scheduler.waiting)
        fresh = {r for r in scheduler.requests.values() if (record := record_of(r)) is None or not record.admitted}
        evicted_before = steering.counters.evictions.total()
        order = None
        self.passes += 1
        if (
            self.passes % 3 == 0
            and not self.modelled
            # With aging, what adapters keep out goes to the front some day, under FCFS too.
            and (steering.config.aging_seconds == 0.0 or (steering.config.policy == "FCFS" and not self.loras))
        ):
            order = expected_order(steering.config, queue_before, self.max_len)
            assert queue_before == order, "the queue isn't in the order of the policy"
        self.bucket.configure(steering.config)
        if scheduler.pause_state == PauseState.UNPAUSED:
            self.bucket.refill()
        self.engine.schedule()
        entered = [r for r in scheduler.running if r not in running_before]
        evicted = steering.counters.evictions.total() - evicted_before
        assert not (entered and evicted), "a pass that evicts admits nothing"
        for request in entered:
            if request in fresh:
                self.bucket.admit(request, idle=request is scheduler.running[0])
        assert self.bucket.agrees(steering.bucket.credit), (float(self.bucket.credit), steering.bucket.credit)
        if order is not None:
            served = [r for r in entered if r in set(queue_before)]
            if self.skips:
                order = [r for r in order if r in set(served)]
            assert served == order[: len(served)], "served out of order"
        assert bool(scheduler.waiting) == (len(scheduler.waiting) > 0), "the gate is open outside a pass"
        depth = 2 if self.asynchronous else 1
        while len(self.engine.in_flight) >= depth:
            self.engine.update()

    def check(self) -> None:
        scheduler = self.scheduler
        queue = list(scheduler.waiting)
        others = list(getattr(scheduler, "kv_holding_waiting", getattr(scheduler, "skipped_waiting", ())))
        everyone = [*scheduler.running, *queue, *others]
        assert len(everyone) == len({id(request) for request in everyone}), "a request is in two places"
        assert {r.request_id for r in everyone} == set(scheduler.requests), "a request is lost"
        assert self.engine.free_blocks <= self.blocks

    def run(self) -> None:
        source = self.source
        self.change()
        for _ in range(source.randint(20, 120)):
            choice = source.random()
            if choice < 0.35:
                for _ in range(source.choice((1, 1, 2, 10))):
                    self.add()
            elif choice < 0.40:
                self.abort()
            elif choice < 0.44:
                self.change()
            elif choice < 0.46:
                state = source.choice((PauseState.UNPAUSED, PauseState.UNPAUSED, PauseState.PAUSED_NEW))
                self.scheduler.set_pause_state(state)
            elif choice < 0.47:
                while self.engine.in_flight:
                    self.engine.update()
                self.scheduler.reset_prefix_cache(reset_running_requests=True)
            else:
                self.one_pass()
            if source.random() < 0.1:
                self.check()
        self.scheduler.set_pause_state(PauseState.UNPAUSED)
        for _ in range(100_000):
            if not self.scheduler.requests:
                break
            self.one_pass()
        while self.engine.in_flight:
            self.engine.update()
        self.settle()

    def settle(self) -> None:
        failed = [event for event in self.steering.events if isinstance(event, HookFailed)]
        assert not failed, failed
        assert not self.scheduler.requests
        assert not len(self.scheduler.waiting)
        assert self.engine.free_blocks == self.blocks, "a block leaked"
        done = Counter(self.engine.finished)
        assert not [name for name, count in done.items() if count > 1], "finished twice"
        assert set(done) | self.aborted == set(self.added)
        counters = self.steering.counters
        completed = counters.completed.total()
        assert completed == len(done)
        assert completed <= counters.admitted_new.total() <= len(self.added)
        self.scheduler.evenflow.models.close()


@pytest.mark.parametrize("block", range(10))
def test_random_abuse(model_dir: Path, block: int) -> None:
    evictions = 0
    for seed in range(block * CASES // 10, (block + 1) * CASES // 10):
        abuse = Abuse(seed, model_dir)
        try:
            abuse.run()
        except BaseException as error:
            error.add_note(f"seed {seed}, asynchronous {abuse.asynchronous}")
            raise
        evictions += abuse.steering.counters.evictions.total()
    assert evictions, "nothing was evicted: the cases are too easy"
