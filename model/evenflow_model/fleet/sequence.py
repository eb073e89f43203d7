"""One request inside the simulated engine, as its scheduler and its runner see it."""

from operator import attrgetter

from evenflow_model.fleet.records import EngineRequest, FinishedRequest


class Sequence:
    """Mutable state of a request: `length` is prompt plus output so far, `computed` what of it is in KV memory.

    A request decodes exactly when all but its last token is computed. `capacity` is the KV tokens of its blocks, the
    first `shared` of which belong to the prefix cache. `own_prompt` is the prompt without what was cached: what counts
    as volume.
    """

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "capacity",
        "computed",
        "evictions",
        "first_token_s",
        "highest_computed",
        "last_eviction",
        "length",
        "max_tokens",
        "metric",
        "output",
        "own_prompt",
        "predicted_output",
        "prefix",
        "prompt",
        "request_id",
        "running",
        "sequence",
        "shared",
        "stop_length",
        "traffic_class",
        "victim_volume",
    )

    def __init__(self, request: EngineRequest, sequence: int, traffic_class: str) -> None:
        self.request_id = request.request_id
        self.traffic_class = traffic_class
        self.prompt = self.own_prompt = request.prompt_tokens
        self.prefix = request.prefix
        self.shared = 0
        self.max_tokens = request.max_tokens
        self.stop_length = request.prompt_tokens + min(request.output_tokens, request.max_tokens)
        self.arrival_s = request.arrival_s
        self.sequence = sequence
        self.length = request.prompt_tokens
        self.output = 0
        self.computed = 0
        self.capacity = 0
        self.highest_computed = 0
        self.running = False
        self.evictions = 0
        self.last_eviction = 0
        self.predicted_output = 0.0
        self.metric = 0.0
        self.victim_volume = 0.0
        self.admitted_s = -1.0
        self.first_token_s = -1.0

    def finished(self, now_s: float) -> FinishedRequest:
        return FinishedRequest(
            request_id=self.request_id,
            traffic_class=self.traffic_class,
            reason="length" if self.output >= self.max_tokens else "stop",
            prompt_tokens=self.prompt,
            output_tokens=self.output,
            predicted_output=self.predicted_output,
            arrival_s=self.arrival_s,
            admitted_s=self.admitted_s,
            first_token_s=self.first_token_s,
            finished_s=now_s,
            evictions=self.evictions,
        )


victim_volume = attrgetter("victim_volume")
progress = attrgetter("output")
