"""Non-preemptive scheduling of requests whose KV memory grows; what is known about it (SVF paper, docs/theory.md §1).

Time is discrete. A request with prompt s and output o that starts at step k occupies s+τ-k KV tokens at τ = k+1 … k+o,
finishes at k+o, and is never evicted: it starts only when everything fits until the end (eq. 3c).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from evenflow_model._checks import check_int, check_real
from evenflow_model.volume import Proxies, geometric_proxies, proxy_volume, volume

Policy = Literal["SVF", "OneBitSVF", "SJF", "FCFS"]
POLICIES: tuple[Policy, ...] = ("SVF", "OneBitSVF", "SJF", "FCFS")

MAX_STEPS = 1 << 26
"""Longest busy period that is simulated, in steps: it bounds the memory of one call to half a gigabyte."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: prompt ≥ 0 and output ≥ 1 in tokens, arrival in steps ≥ 0.

    `predicted` is the output length that orders the queue where given (it may be fractional); `is_long` is the one bit
    that OneBitSVF knows, the true one where not given. Raises ValueError naming the field.
    """

    prompt: int
    output: int
    arrival: int = 0
    predicted: float | None = None
    is_long: bool | None = None

    def __post_init__(self) -> None:
        check_int("prompt", self.prompt, 0)
        check_int("output", self.output, 1)
        check_int("arrival", self.arrival, 0)
        if self.predicted is not None:
            check_real("predicted", self.predicted, 0.0, exclusive=True)

    @property
    def peak(self) -> int:
        """KV tokens held in its last step."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Schedule:
    """`starts[i]`: step at which request i starts. `total_latency`: Σ(finish - arrival) in steps.

    `peak_kv_tokens`: most KV memory ever held, in tokens.
    """

    starts: tuple[int, ...]
    total_latency: int
    peak_kv_tokens: int


def schedule(
    requests: Sequence[Request], kv_tokens: int, policy: Policy = "SVF", proxies: Proxies | None = None
) -> Schedule:
    """Start times under a policy: at every step the head of the sorted queue starts while it fits (SVF paper).

    Order: SVF by the volume of the predicted output, OneBitSVF by the volume of the proxy for the one bit, SJF by the
    predicted output, FCFS by arrival; ties by arrival, then index. The memory check always uses true outputs. The first
    head that doesn't fit ends the step: backfilling would void the bound. Raises ValueError for a request that can
    never fit, an unknown policy, or OneBitSVF without proxies.
    """
    kv = check_int("kv_tokens", kv_tokens, 1)
    keys = [_key(request, policy, proxies) for request in requests]
    for index, request in enumerate(requests):
        if request.peak > kv:
            raise ValueError(
                f"requests[{index}] needs {request.peak} KV tokens in its last step, kv_tokens is {kv}: "
                "it would wait forever and block the queue; refuse it or give the engine more memory"
            )
    arrivals = sorted(range(len(requests)), key=lambda i: (requests[i].arrival, i))
    starts = [0] * len(requests)
    queue: list[tuple[float, int, int]] = []
    profile = _Profile(kv)
    coming = 0
    now = 0
    while coming < len(arrivals) or queue:
        if not queue:
            now = max(now, requests[arrivals[coming]].arrival)
        while coming < len(arrivals) and requests[arrivals[coming]].arrival <= now:
            index = arrivals[coming]
            heappush(queue, (keys[index], requests[index].arrival, index))
            coming += 1
        while queue:
            index = queue[0][2]
            fits_at = profile.earliest(now, requests[index].prompt, requests[index].output)
            if fits_at > now:
                # Nothing changes before the head may fit, except that an arrival may become the head.
                now = min(fits_at, requests[arrivals[coming]].arrival) if coming < len(arrivals) else fits_at
                break
            heappop(queue)
            starts[index] = now
            profile.add(now, requests[index].prompt, requests[index].output)
    latency = sum(k + r.output - r.arrival for k, r in zip(starts, requests, strict=True))
    return Schedule(tuple(starts), latency, profile.peak)


def lower_bound(requests: Sequence[Request], kv_tokens: int) -> Fraction:
    """No schedule has a smaller total latency, in steps, exact (SVF paper, prop. 3.1).

    The larger of Σ o and, where all arrive together, the area bound (1/M)·Σ_j Σ_{i≤j} v_(i) over sorted volumes.
    """
    kv = check_int("kv_tokens", kv_tokens, 1)
    outputs = Fraction(sum(r.output for r in requests))
    if len({r.arrival for r in requests}) != 1:
        return outputs
    area = held = 0
    for held_more in sorted(volume(r.prompt, r.output) for r in requests):
        held += held_more
        area += held
    return max(outputs, Fraction(area, kv))


def peak_share(requests: Sequence[Request], kv_tokens: int) -> Fraction:
    """alpha = max_i (s_i + o_i)/M, the largest share of KV memory that one request takes. 0 without requests."""
    return Fraction(max((r.peak for r in requests), default=0), check_int("kv_tokens", kv_tokens, 1))


def competitive_ratio_bound(alpha: float) -> float:
    """1 + 2/(1-alpha): SVF's total latency over the optimum, at most, in a burst (SVF paper, theorem 3.2).

    alpha is `peak_share`. Raises ValueError unless 0 ≤ alpha < 1: a request as large as the memory voids the bound.
    """
    return 1.0 + 2.0 / (1.0 - _check_alpha(alpha))


def one_bit_ratio_bound(alpha: float, max_tokens: int) -> float:
    """1 + 2T/(1-alpha), OneBitSVF with the worst-case proxies for a model limit of T tokens (SVF paper, 1-bit SVF).

    Raises ValueError unless 0 ≤ alpha < 1 and max_tokens is an integer ≥ 1.
    """
    return 1.0 + 2.0 * check_int("max_tokens", max_tokens, 1) / (1.0 - _check_alpha(alpha))


@dataclass(frozen=True, slots=True)
class PaperBounds:
    """What the SVF paper states for Poisson arrivals and geometric outputs (its theorems 3.4 and 3.5): not a guarantee.

    Their proof uses a lower bound on the optimum that is false (lemma F.1; docs/theory.md §1), so these are the paper's
    formulas only. `load` is its rho: load 1 means memory about half used, so nothing is said above that.
    `mean_wait` is in steps, `mean_volume` in token-steps.
    """

    mean_volume: float
    load: float
    svf_ratio: float
    one_bit_ratio: float
    mean_wait: float


def paper_stochastic_bounds(
    *, mu: float, mean_prompt: float, alpha: float, kv_tokens: float, arrival_rate: float, threshold: int
) -> PaperBounds:
    """The stochastic formulas of the SVF paper (theorems 3.4, 3.5, eq. 66), as stated there; see PaperBounds.

    mu = 1/mean output, mean_prompt in tokens, arrival_rate in requests per step, threshold of the one bit in tokens.
    Raises ValueError naming the field, and where rho is not below 1: the formulas are undefined there.
    """
    rate_of_ends = check_real("mu", mu, 0.0, 1.0, exclusive=True)
    prompt = check_real("mean_prompt", mean_prompt, 0.0)
    free = (1.0 - _check_alpha(alpha)) * check_real("kv_tokens", kv_tokens, 0.0, exclusive=True) / 2.0
    arriving = check_real("arrival_rate", arrival_rate, 0.0)
    mean_volume = prompt / rate_of_ends + 1.0 / rate_of_ends**2
    rho = arriving * mean_volume / free
    if rho >= 1.0:
        raise ValueError(
            f"arrival_rate must keep rho = rate·E[volume]/((1-alpha)·M/2) below 1, found {rho:.4g}: "
            f"the paper's formulas are undefined above {free / mean_volume:.4g} requests per step"
        )
    if rate_of_ends == 1.0:
        raise ValueError("mu must be below 1 for the paper's formulas, found 1: outputs of one token need no order")
    penalty = geometric_proxies(rate_of_ends, threshold).penalty
    excess = 2.0 / ((1.0 - alpha) * (1.0 - rate_of_ends) * (1.0 - rho))
    residual = arriving * (prompt / rate_of_ends**2 + 2.0 / rate_of_ends**3)
    return PaperBounds(
        mean_volume=mean_volume,
        load=rho,
        svf_ratio=1.0 + excess,
        one_bit_ratio=1.0 + excess * mean_volume / (mean_volume - penalty),
        mean_wait=residual / (free - arriving * mean_volume),
    )


def _check_alpha(alpha: float) -> float:
    found = check_real("alpha", alpha, 0.0)
    if found >= 1.0:
        raise ValueError(f"alpha must be below 1, found {found:g}: a request fills the memory alone, no bound holds")
    return found


def _key(request: Request, policy: str, proxies: Proxies | None) -> float:
    predicted = request.output if request.predicted is None else request.predicted
    match policy:
        case "SVF":
            # Whole lengths stay integers: two equal volumes must tie exactly.
            if isinstance(predicted, int):
                return volume(request.prompt, predicted)
            return proxy_volume(request.prompt, predicted)
        case "OneBitSVF":
            if proxies is None:
                raise ValueError("proxies must be given for OneBitSVF, found None: pass worst_case_proxies(max_tokens)")
            long = request.output > proxies.threshold if request.is_long is None else request.is_long
            return proxy_volume(request.prompt, proxies.long if long else proxies.short)
        case "SJF":
            return predicted
        case "FCFS":
            return 0
    raise ValueError(f"policy must be one of {', '.join(POLICIES)}, found {policy!r}: choose one of them")


class _Profile:
    """KV tokens held at each step from what has started; steps before the last idle moment are forgotten."""

    def __init__(self, kv_tokens: int) -> None:
        self.peak = 0
        self._kv = kv_tokens
        self._base = 0
        self._end = 0
        self._held = np.zeros(1024, dtype=np.int64)
        self._ramp = np.arange(1, 1025, dtype=np.int64)

    def earliest(self, now: int, prompt: int, output: int) -> int:
        """`now` if the request fits there, else a later step before which it certainly doesn't."""
        if now >= self._end:
            return now
        horizon = min(output, self._end - now)
        excess = self._held[now + 1 - self._base : now + 1 - self._base + horizon] + self._growth(horizon)
        excess += prompt - self._kv
        if excess.max() <= 0:
            return now
        # A step τ that is too full stays so until enough growth is avoided by starting later, or τ itself is over.
        return now + int(np.minimum(excess, self._growth(horizon)).max())

    def add(self, now: int, prompt: int, output: int) -> None:
        if now >= self._end:
            self._held[: max(0, self._end + 1 - self._base)] = 0
            self._base = self._end = now
        self._end = max(self._end, now + output)
        self._reserve(self._end + 1 - self._base)
        held = self._held[now + 1 - self._base : now + 1 - self._base + output]
        held += self._growth(output)
        held += prompt
        self.peak = max(self.peak, int(held.max()))

    def _growth(self, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if length > len(self._ramp):
            self._ramp = np.arange(1, 2 * length + 1, dtype=np.int64)
        return self._ramp[:length]

    def _reserve(self, steps: int) -> None:
        if steps > MAX_STEPS:
            raise ValueError(
                f"requests keep the engine busy for more than {MAX_STEPS} steps on end, found {steps}: "
                "split them into shorter runs"
            )
        if steps > len(self._held):
            grown = np.zeros(min(MAX_STEPS, max(steps, 2 * len(self._held))), dtype=np.int64)
            grown[: len(self._held)] = self._held
            self._held = grown
