"""What order and cap must be, written down a second time: exact, slow, from the specification alone."""

from fractions import Fraction
from typing import Any

from evenflow_contract.worker_config import Admission, WorkerConfig
from evenflow_model.volume import proxy_block_volume, worst_case_proxies
from evenflow_worker.vllm.record import record_of


def expected_order(config: WorkerConfig, waiting: list[Any], max_model_len: int) -> list[Any]:
    """The waiting requests in the order in which they must be served. Only without aging: that depends on when the
    queue was keyed last."""
    assert config.aging_seconds == 0.0 or config.policy == "FCFS"
    return sorted(waiting, key=lambda request: _rank(config, request, max_model_len))


def _rank(config: WorkerConfig, request: Any, max_model_len: int) -> tuple[Any, ...]:
    record = record_of(request)
    assert record is not None
    first_come = (record.arrival_s, record.sequence)
    if config.policy == "FCFS":
        # As vLLM's own: the evicted in front, the last one of them first.
        return (0, -record.last_eviction) if record.lost_memory else (1, *first_come)
    prompt, output = request.num_prompt_tokens - record.cached, record.predicted
    if config.policy == "SJF":
        return (output, *first_come)
    if config.policy == "OneBitSVF":
        proxies = config.proxies or worst_case_proxies(max_model_len)
        output = proxies.short if output <= proxies.threshold else proxies.long
    return (prompt * output + output * (output + 1) / 2, *first_come)


class ExactBucket:
    """The cap in fractions: a refill an iteration, at most one refill (volume) or cap + 1 (requests) kept."""

    def __init__(self, capacity_tokens: int, block_size: int) -> None:
        self.credit = Fraction(0)
        self._capacity = capacity_tokens
        self._block_size = block_size
        self._config: WorkerConfig | None = None
        self._share = Fraction(0)

    @property
    def _cap(self) -> Admission | None:
        config = self._config
        return config.admission if config is not None and config.admission.mode == "Limited" else None

    def configure(self, config: WorkerConfig) -> None:
        """Another config was taken, or still the same."""
        if config is self._config:
            return
        before, self._config = self._cap, config
        cap = self._cap
        if cap is not None:
            fresh = before is None or before.unit != cap.unit
            self.credit = Fraction(0) if fresh else min(self.credit, self._most)
        self._share = Fraction(0)

    def refill(self) -> None:
        """Before a pass that isn't paused."""
        cap = self._cap
        if cap is not None:
            self.credit = min(self.credit + self._rate, self._most)
            self._share = self._rate if cap.unit == "Volume" else Fraction(0)

    @property
    def _rate(self) -> Fraction:
        cap = self._cap
        assert cap is not None
        assert cap.per_iteration is not None
        return Fraction(str(cap.per_iteration)) * (self._capacity if cap.unit == "Volume" else 1)

    @property
    def _most(self) -> Fraction:
        cap = self._cap
        assert cap is not None
        return self._rate if cap.unit == "Volume" else self._rate + 1

    def admit(self, request: Any, *, idle: bool) -> None:
        """One new request was admitted: it had to be allowed, and is charged."""
        cap, record = self._cap, record_of(request)
        if cap is None or record is None:
            return
        cost, need = Fraction(1), Fraction(1)
        if cap.unit == "Volume":
            own = max(record.prompt - record.cached, 0)
            # In the bucket's own grains: a cost like 93.99999999999997 must not decide whether anything is left.
            cost = Fraction(round(proxy_block_volume(own, record.predicted, self._block_size) * 10**12), 10**12)
            need = Fraction(1, 10**12)
        assert idle or self.credit >= need or cost <= self._share, f"{request.request_id} passed the cap {cap}"
        self.credit = max(self.credit - cost, -cost) if idle else self.credit - cost
        self._share = max(self._share - cost, Fraction(0))

    def agrees(self, credit: float) -> bool:
        """With what the product's bucket says, but for its rounding."""
        return self._cap is None or abs(float(self.credit) - credit) <= 1e-6 * max(1.0, abs(credit))
