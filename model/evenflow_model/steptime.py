"""Milliseconds of one engine step on A100-80GB GPUs, and KV capacity from a model's dimensions.

The formulas fit public A100 profiles (mean error 3.7 % for 8B decode, 5.6 % for 70B decode); attention of the 70B model
is scaled from 8B. Engines add overhead of their own: about 2.5 ms per step.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from evenflow_model._checks import check_int, check_real

ENGINE_OVERHEAD_MS = 2.5
"""Milliseconds per step for the LM head, sampling and the engine's own work; used where a whole engine is simulated."""


class StepTimeModel(Protocol):
    """Step time of one engine, in milliseconds."""

    @property
    def overhead_ms(self) -> float:
        """Milliseconds added to every step."""
        ...

    def step_ms(self, tokens: int, decode_context: int, chunks: Iterable[tuple[int, int]] = ()) -> float:
        """Milliseconds of one step.

        tokens: all tokens processed, one per decoding sequence plus those of prefill chunks. decode_context: sum of the
        decoding sequences' context lengths, in tokens. chunks: (chunk tokens, tokens of that request already in KV) of
        each prefill chunk. Called once per engine step: arguments are trusted, not checked.
        """
        ...

    def with_overhead(self, overhead_ms: float) -> Self:
        """The same model with another overhead in ms per step. Raises ValueError unless it is finite and ≥ 0."""
        ...


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """t = (floor^1.5 + (token·n)^1.5)^(2/3) + context·C + layers·(a·c² + b·c·k): memory-bound, then compute-bound."""

    floor_ms: float
    token_ms: float
    context_ms: float
    layers: int
    chunk_ms: float
    chunk_context_ms: float
    overhead_ms: float = 0.0

    def step_ms(self, tokens: int, decode_context: int, chunks: Iterable[tuple[int, int]] = ()) -> float:
        """See StepTimeModel."""
        ms: float = (
            (self.floor_ms**1.5 + (self.token_ms * tokens) ** 1.5) ** (2.0 / 3.0)
            + self.context_ms * decode_context
            + self.overhead_ms
        )
        if chunks:
            ms += _attention_ms(self.layers, self.chunk_ms, self.chunk_context_ms, chunks)
        return ms

    def with_overhead(self, overhead_ms: float) -> Self:
        """See StepTimeModel."""
        return replace(self, overhead_ms=check_real("overhead_ms", overhead_ms, 0.0))


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """t = floor + token·n + context·C + layers·(a·c² + b·c·k): tensor-parallel, all-reduces are part of the floor."""

    floor_ms: float
    token_ms: float
    context_ms: float
    layers: int
    chunk_ms: float
    chunk_context_ms: float
    overhead_ms: float = 0.0

    def step_ms(self, tokens: int, decode_context: int, chunks: Iterable[tuple[int, int]] = ()) -> float:
        """See StepTimeModel."""
        ms = self.floor_ms + self.token_ms * tokens + self.context_ms * decode_context + self.overhead_ms
        if chunks:
            ms += _attention_ms(self.layers, self.chunk_ms, self.chunk_context_ms, chunks)
        return ms

    def with_overhead(self, overhead_ms: float) -> Self:
        """See StepTimeModel."""
        return replace(self, overhead_ms=check_real("overhead_ms", overhead_ms, 0.0))


def _attention_ms(layers: int, square: float, product: float, chunks: Iterable[tuple[int, int]]) -> float:
    total = 0.0
    for chunk, cached in chunks:
        total += chunk * (square * chunk + product * cached)
    return layers * total


STEP_TIME_MODELS: dict[str, StepTimeModel] = {
    "A100-8B": RooflineStepTime(10.2, 0.068, 8.1e-5, 32, 5.6e-8, 1.4e-7),
    "A100-70B": LinearStepTime(21.8, 0.106, 2.5e-5, 80, 7e-9, 1.8e-8),
}
"""Llama-3-8B on one A100-80GB and Llama-3-70B on eight (tensor-parallel), without engine overhead."""


def step_time_model(name: str, overhead_ms: float = ENGINE_OVERHEAD_MS) -> StepTimeModel:
    """The named model with `overhead_ms` per step. Raises ValueError for an unknown name or a negative overhead."""
    model = STEP_TIME_MODELS.get(name)
    if model is None:
        known = ", ".join(STEP_TIME_MODELS)
        raise ValueError(f"step-time model must be one of {known}, found {name!r}: use the one nearest to your model")
    return model.with_overhead(overhead_ms)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What KV capacity needs to know of a model: layers, KV heads, head dimension and the weights' size in bytes."""

    layers: int
    kv_heads: int
    head_dim: int
    weight_bytes: int


LLAMA_3_8B = ModelShape(layers=32, kv_heads=8, head_dim=128, weight_bytes=16_060_000_000)
LLAMA_3_70B = ModelShape(layers=80, kv_heads=8, head_dim=128, weight_bytes=141_100_000_000)


def kv_bytes_per_token(shape: ModelShape, bytes_per_value: int = 2, tensor: int = 1, pipeline: int = 1) -> int:
    """Bytes of KV per token on one GPU: 2 (K and V) · layers · KV heads · head dimension · bytes per value, its part.

    KV heads are replicated, not split further, when `tensor` exceeds them. Raises ValueError for arguments below 1.
    """
    layers = math.ceil(check_int("shape.layers", shape.layers, 1) / check_int("pipeline", pipeline, 1))
    heads = math.ceil(check_int("shape.kv_heads", shape.kv_heads, 1) / check_int("tensor", tensor, 1))
    head_dim = check_int("shape.head_dim", shape.head_dim, 1)
    return 2 * layers * heads * head_dim * check_int("bytes_per_value", bytes_per_value, 1)


def kv_capacity_tokens(
    shape: ModelShape,
    gpu_memory_bytes: int,
    *,
    utilization: float = 0.9,
    activation_bytes: int = 2 << 30,
    bytes_per_value: int = 2,
    tensor: int = 1,
    pipeline: int = 1,
    block_size: int = 16,
) -> int:
    """Usable KV tokens M of one engine: (utilization·memory - weights - activations) / KV bytes per token, in blocks.

    All per GPU: gpu_memory_bytes is the memory a process sees on one, activation_bytes what activations and graphs take
    there. One block is the engine's own, so M = (blocks-1)·block_size. Raises ValueError when nothing is left, naming
    the shortfall.
    """
    fraction = check_real("utilization", utilization, 0.0, 1.0, exclusive=True)
    memory = fraction * check_int("gpu_memory_bytes", gpu_memory_bytes, 1)
    per_token = kv_bytes_per_token(shape, bytes_per_value, tensor, pipeline)
    weights = check_int("shape.weight_bytes", shape.weight_bytes, 0) / (tensor * pipeline)
    free = memory - weights - check_int("activation_bytes", activation_bytes, 0)
    block = check_int("block_size", block_size, 1)
    blocks = math.floor(free / (per_token * block))
    if blocks < 2:
        raise ValueError(
            f"gpu_memory_bytes must leave room for KV: {memory:.4g} bytes usable, {weights:.4g} of weights and "
            f"{activation_bytes:.4g} of activations leave {free:.4g}: use more GPUs per replica or a smaller model"
        )
    return (blocks - 1) * block
