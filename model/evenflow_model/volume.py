"""Volume of a request: KV memory times iterations (SVF paper, section 2; block form: vLLM's paged KV cache).

A request with prompt s and output o occupies s+1, s+2, … s+o KV tokens in the o iterations it runs.
"""

import math
from dataclasses import dataclass

from evenflow_model._checks import check_int, check_real


@dataclass(frozen=True, slots=True)
class Proxies:
    """One-bit length proxies: a request is short iff its output is at most `threshold` tokens.

    `short` and `long` are the output lengths, in tokens, that stand for the two kinds; `penalty` is the volume lost by
    knowing one bit only (token-iterations; 0 for the worst-case proxies, which carry no length distribution).
    """

    threshold: float
    short: float
    long: float
    penalty: float = 0.0


def volume(prompt_tokens: int, output_tokens: int) -> int:
    """Volume v(s,o) = s·o + o(o+1)/2 in token-iterations, exact (SVF paper, section 2).

    Raises ValueError unless prompt_tokens is an integer ≥ 0 and output_tokens an integer ≥ 1.
    """
    s = check_int("prompt_tokens", prompt_tokens, 0)
    o = check_int("output_tokens", output_tokens, 1)
    return s * o + o * (o + 1) // 2


def proxy_volume(prompt_tokens: float, output_tokens: float) -> float:
    """Volume s·O + O(O+1)/2 in token-iterations for a predicted, possibly fractional output O (SVF paper, 1-bit SVF).

    Raises ValueError unless prompt_tokens ≥ 0 and output_tokens > 0, both finite.
    """
    s = check_real("prompt_tokens", prompt_tokens, 0.0)
    o = check_real("output_tokens", output_tokens, 0.0, exclusive=True)
    return s * o + o * (o + 1.0) / 2.0


def block_volume(prompt_tokens: int, output_tokens: int, block_size: int) -> int:
    """Block-rounded volume Σ_{j<o} B·ceil((s+1+j)/B) in token-iterations, exact and O(1) (the volume behind x*_b).

    What an engine with paged KV memory really holds: whole blocks of `block_size` tokens. Equals `volume` for blocks of
    one token. Raises ValueError unless prompt_tokens ≥ 0, output_tokens ≥ 1 and block_size ≥ 1 are integers.
    """
    s = check_int("prompt_tokens", prompt_tokens, 0)
    o = check_int("output_tokens", output_tokens, 1)
    b = check_int("block_size", block_size, 1)
    return b * (_blocks_up_to(s + o, b) - _blocks_up_to(s, b))


def proxy_block_volume(prompt_tokens: float, output_tokens: float, block_size: int) -> float:
    """`block_volume` for predicted lengths, in token-iterations: linear between integer prompts and outputs.

    Raises ValueError unless prompt_tokens ≥ 0 and output_tokens > 0 are finite and block_size is an integer ≥ 1.
    """
    s = check_real("prompt_tokens", prompt_tokens, 0.0)
    o = check_real("output_tokens", output_tokens, 0.0, exclusive=True)
    b = check_int("block_size", block_size, 1)
    return b * (_blocks_integral(s + o, b) - _blocks_integral(s, b))


def worst_case_proxies(max_tokens: int) -> Proxies:
    """Proxies for a model limit of T tokens without any length statistics: √T, T^(1/4), T^(3/4) (SVF paper, 1-bit SVF).

    Raises ValueError unless max_tokens is an integer ≥ 1.
    """
    t = check_int("max_tokens", max_tokens, 1)
    root = math.sqrt(t)
    fourth = math.sqrt(root)
    return Proxies(threshold=root, short=fourth, long=root * fourth)


def geometric_proxies(mu: float, threshold: int) -> Proxies:
    """Proxies for geometric outputs on {1, 2, …} with mean 1/mu: the conditional means below and above `threshold`.

    With q = 1-mu: pen = θq^θ/(1-q^θ), short = 1/mu - pen, long = θ + 1/mu, penalty = pen²/2 (SVF paper, 1-bit SVF).
    Raises ValueError unless 0 < mu ≤ 1 and threshold is an integer ≥ 1.
    """
    m = check_real("mu", mu, 0.0, 1.0, exclusive=True)
    theta = check_int("threshold", threshold, 1)
    # log1p and expm1 keep 1-q^θ exact to rounding where mu·θ is tiny.
    log_survival = theta * math.log1p(-m) if m < 1.0 else -math.inf
    pen = theta * math.exp(log_survival) / -math.expm1(log_survival)
    return Proxies(threshold=float(theta), short=1.0 / m - pen, long=theta + 1.0 / m, penalty=pen * pen / 2.0)


def _blocks_up_to(tokens: int, block_size: int) -> int:
    """Σ_{t=1..tokens} ceil(t/block_size)."""
    full, rest = divmod(tokens, block_size)
    return block_size * full * (full + 1) // 2 + rest * (full + 1)


def _blocks_integral(tokens: float, block_size: int) -> float:
    full = math.floor(tokens / block_size)
    rest = tokens - full * block_size
    return block_size * full * (full + 1) / 2.0 + rest * (full + 1)
