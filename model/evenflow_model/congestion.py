"""Rates of a greedy server with bounded KV memory (service-induced congestion paper; theory B.2 and B.3)."""

from evenflow_model._checks import check_real
from evenflow_model.lengths import LengthMix


def eviction_free_rate(mix: LengthMix, kv_tokens: float, block_size: int = 1) -> float:
    """x* = M/E[volume]: admissions per engine iteration that `kv_tokens` of KV memory sustain (eq. B.2).

    With block_size > 1 volumes are counted in whole blocks, x*_b = M / E[Σ_j B·ceil((l0+1+j)/B)], as paged engines hold
    them. Raises ValueError unless kv_tokens > 0 is finite and block_size is an integer ≥ 1.
    """
    return check_real("kv_tokens", kv_tokens, 0.0, exclusive=True) / mix.mean_volume(block_size)


def pulse_cycle_rate(mix: LengthMix, kv_tokens: float) -> float:
    """Completions per iteration of the pulse cycle at the mix's length gcd g: T_g = M/(g·Σ_{i≥1} W_{ig-1}) (B.3).

    W_j = E[(l0+1+j)·1{l>j}]. With g = 1 this is x*; the gap to x* is the throughput that synchronised lengths cost a
    greedy server. Raises ValueError unless kv_tokens > 0 is finite.
    """
    kv = check_real("kv_tokens", kv_tokens, 0.0, exclusive=True)
    g = mix.gcd()
    pulses = mix.outputs // g
    held = float(mix.shares @ (pulses * mix.prompts + g * (pulses * (pulses + 1) / 2.0)))
    return kv / (g * held)
