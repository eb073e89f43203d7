"""A slow, literal engine to compare the simulated one with: vLLM V1's schedule() and update, block by block.

Blocks have numbers and owners, the waiting queue is a sorted list, tokens are counted one request at a time, scheduling
and updating are separate passes. Only keys, bucket and predictor are the product's: they have tests of their own.
"""

from collections import Counter

from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.fleet.records import EngineRequest, EngineSpec, FinishedRequest
from evenflow_model.steptime import step_time_model
from evenflow_model.volume import proxy_block_volume
from evenflow_worker.predict import GuardedPredictor
from evenflow_worker.scheduling import AdmissionBucket, Ordering, predicted_volume
from evenflow_worker.simulated.records import StepOutcome


class Req:
    def __init__(self, request: EngineRequest, number: int, traffic_class: str) -> None:
        self.request = request
        self.number = number
        self.traffic_class = traffic_class
        self.outputs = 0
        self.num_computed_tokens = 0
        self.blocks: list[int] = []
        self.preemptions = 0
        self.preempted_at = 0
        self.best_computed = 0
        self.predicted = 0.0
        self.metric = 0.0
        self.key: tuple[float, float, int] = (0.0, 0.0, 0)
        self.volume = 0.0
        self.admitted_s = -1.0
        self.first_s = -1.0

    @property
    def num_tokens(self) -> int:
        return self.request.prompt_tokens + self.outputs

    @property
    def id(self) -> str:
        return self.request.request_id


class ReferenceEngine:
    def __init__(self, spec: EngineSpec, config: WorkerConfig) -> None:
        self.spec = spec
        self.now = 0.0
        usable = spec.kv_tokens // spec.block_size
        self.null_block = 0
        self.free_blocks = list(range(1, usable + 1))
        self.usable = usable
        self.running: list[Req] = []
        self.waiting: list[Req] = []
        self.steps = 0
        self.preempted_total = 0
        self.number = 0
        self.rekeyed_s, self.rekeyed_step = 0.0, 0
        self.fallbacks: Counter[str] = Counter()
        self.predictor = GuardedPredictor(None, self.fallbacks)
        self.bucket = AdmissionBucket(usable * spec.block_size)
        self.time_model = step_time_model(spec.step_time_model, spec.overhead_ms)
        self.apply(config)

    def apply(self, config: WorkerConfig) -> None:
        self.config = config
        self.ordering = Ordering.from_config(config, self.spec.max_model_len)
        self.bucket.configure(config.admission)
        self.predictor.configure(config)
        for req in self.waiting:
            req.metric = self.ordering.metric(req.request.prompt_tokens, req.predicted)
        self.rekey()

    def add(self, request: EngineRequest) -> None:
        self.number += 1
        known = request.traffic_class in self.config.classes
        req = Req(request, self.number, request.traffic_class if known else "default")
        limit = min(self.spec.max_model_len, self.usable * self.spec.block_size) - request.prompt_tokens
        req.predicted = min(max(self.predictor.predict(req.traffic_class, request.prompt_tokens), 1.0), max(limit, 1))
        req.metric = self.ordering.metric(request.prompt_tokens, req.predicted)
        self.enqueue(req)

    def abort(self, request_id: str) -> bool:
        for requests in (self.running, self.waiting):
            for req in requests:
                if req.id == request_id:
                    requests.remove(req)
                    self.free(req)
                    return True
        return False

    def enqueue(self, req: Req) -> None:
        req.key = self.key_of(req)
        self.waiting.append(req)

    def key_of(self, req: Req) -> tuple[float, float, int]:
        arguments = (req.metric, req.request.arrival_s, req.number, self.now)
        if req.preemptions:
            return self.ordering.evicted_key(*arguments, req.preempted_at)
        return self.ordering.key(*arguments)

    def rekey(self) -> None:
        for req in self.waiting:
            req.key = self.key_of(req)
        self.rekeyed_s, self.rekeyed_step = self.now, self.steps

    def free(self, req: Req) -> None:
        self.free_blocks += req.blocks
        req.blocks = []

    def allocate_slots(self, req: Req, new_tokens: int, *, waiting: bool) -> bool:
        watermark = 0
        if waiting:
            if self.running:
                watermark = int(self.config.admission.watermark * (self.usable + 1))
            full = -(-req.num_tokens // self.spec.block_size)
            if full - len(req.blocks) + watermark > len(self.free_blocks):
                return False
        needed = -(-(req.num_computed_tokens + new_tokens) // self.spec.block_size) - len(req.blocks)
        if needed + watermark > len(self.free_blocks):
            return False
        for _ in range(needed):
            req.blocks.append(self.free_blocks.pop())
        assert self.null_block not in req.blocks
        return True

    def step(self) -> StepOutcome:
        started = self.now
        self.bucket.refill()
        if self.waiting and self.ordering.rekey_due(
            elapsed_s=self.now - self.rekeyed_s, iterations=self.steps - self.rekeyed_step, waiting=len(self.waiting)
        ):
            self.rekey()
        most_blocks = len(self.running) + self.spec.max_num_batched_tokens // self.spec.block_size
        if most_blocks > len(self.free_blocks):
            if self.config.victim == "LargestVolume":
                self.running = sorted(self.running, key=lambda req: req.volume)
            else:
                self.running = sorted(self.running, key=lambda req: -req.outputs)

        token_budget = self.spec.max_num_batched_tokens
        scheduled: list[tuple[Req, int]] = []
        preempted: list[Req] = []
        lowest_free = len(self.free_blocks)
        req_index = 0
        while req_index < len(self.running) and token_budget > 0:
            req = self.running[req_index]
            new = min(req.num_tokens - req.num_computed_tokens, token_budget)
            while not (fits := self.allocate_slots(req, new, waiting=False)):
                lowest_free = min(lowest_free, len(self.free_blocks))
                victim = self.running.pop()
                self.free(victim)
                victim.best_computed = max(victim.best_computed, victim.num_computed_tokens)
                victim.num_computed_tokens = 0
                victim.preemptions += 1
                self.preempted_total += 1
                victim.preempted_at = self.preempted_total
                victim.predicted = max(victim.predicted, victim.outputs + 1.0)
                victim.metric = self.ordering.metric(victim.request.prompt_tokens, victim.predicted)
                preempted.append(victim)
                self.enqueue(victim)
                if victim is req:
                    break
            if not fits:
                break
            scheduled.append((req, new))
            token_budget -= new
            req_index += 1

        new_ids: list[str] = []
        resumed_ids: list[str] = []
        if not preempted:
            self.waiting.sort(key=lambda req: req.key)
            while self.waiting and token_budget > 0:
                if len(self.running) == self.spec.max_num_seqs:
                    break
                req = self.waiting[0]
                idle = not self.running
                volume = proxy_block_volume(req.request.prompt_tokens, req.predicted, self.spec.block_size)
                if req.preemptions == 0 and not self.bucket.allows(volume, idle=idle):
                    break
                new = min(req.num_tokens, token_budget)
                if not self.allocate_slots(req, new, waiting=True):
                    break
                self.waiting.pop(0)
                if req.preemptions == 0:
                    new_ids.append(req.id)
                    self.bucket.take(volume, idle=idle)
                else:
                    resumed_ids.append(req.id)
                if req.admitted_s < 0:
                    req.admitted_s = self.now
                req.volume = predicted_volume(req.request.prompt_tokens, req.predicted)
                self.running.append(req)
                scheduled.append((req, new))
                token_budget -= new

        lowest_free = min(lowest_free, len(self.free_blocks))
        return self.update(started, scheduled, preempted, new_ids, resumed_ids, lowest_free)

    def update(self, started, scheduled, preempted, new_ids, resumed_ids, lowest_free) -> StepOutcome:
        context = prefill = recomputed = 0
        chunks = []
        for req, new in scheduled:
            if new == 1 and req.outputs and req.num_computed_tokens == req.num_tokens - 1:
                context += req.num_tokens
            else:
                chunks.append((new, req.num_computed_tokens))
                prefill += new
                recomputed += len(range(req.num_computed_tokens, min(req.num_computed_tokens + new, req.best_computed)))
            req.num_computed_tokens += new
        tokens = sum(new for _, new in scheduled)
        duration = self.time_model.step_ms(tokens, context, chunks) / 1000.0
        self.now = started + duration
        sampled = [req for req, _ in scheduled if req.num_computed_tokens == req.num_tokens]
        first, finished = [], []
        for req in sampled:
            req.outputs += 1
            if req.outputs == 1:
                req.first_s = self.now
                first.append(req.id)
            true = req.request
            if req.outputs >= true.output_tokens or req.outputs >= true.max_tokens:
                self.running.remove(req)
                self.free(req)
                self.predictor.observe(req.traffic_class, true.prompt_tokens, req.outputs)
                finished.append(
                    FinishedRequest(
                        req.id,
                        req.traffic_class,
                        "length" if req.outputs >= true.max_tokens else "stop",
                        true.prompt_tokens,
                        req.outputs,
                        req.predicted,
                        true.arrival_s,
                        req.admitted_s,
                        req.first_s,
                        self.now,
                        req.preemptions,
                    )
                )
        self.steps += 1
        return StepOutcome(
            started,
            duration,
            tuple(req.id for req in sampled),
            tuple(first),
            tuple(finished),
            tuple(req.id for req in preempted),
            tuple(new_ids),
            tuple(resumed_ids),
            tokens,
            prefill,
            recomputed,
            1.0 - lowest_free / self.usable,
        )
