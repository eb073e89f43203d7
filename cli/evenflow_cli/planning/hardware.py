"""What a replica's model and GPUs come to: usable KV tokens, and which step-time model fits."""

import re
from dataclasses import dataclass

from evenflow_model.steptime import LLAMA_3_8B, LLAMA_3_70B, ModelShape, kv_capacity_tokens
from evenflow_operator.api.enums import EngineType, StepTimeModel
from evenflow_operator.api.names import MAX_KV_TOKENS
from evenflow_operator.api.spec import LLMServingPoolSpec
from evenflow_operator.core.readings.facts import DEFAULT_BLOCK_SIZE

FEWEST_KV_TOKENS = 32

# A size counts only as a word of its own: 8B is not the end of 18B.
_SHAPES: tuple[tuple[re.Pattern[str], ModelShape], ...] = (
    (re.compile(r"llama-?3(\.[13])?-8b\b", re.IGNORECASE), LLAMA_3_8B),
    (re.compile(r"llama-?3(\.[13])?-70b\b", re.IGNORECASE), LLAMA_3_70B),
)
_QUANTISED = re.compile(r"awq|gptq|int4|int8|fp8|w4a16|w8a8|gguf|bnb", re.IGNORECASE)
_GPU_MEMORY_GIB = {
    "NVIDIA-A100-SXM4-80GB": 79.2,
    "NVIDIA-A100-80GB-PCIe": 79.2,
    "NVIDIA-A100-SXM4-40GB": 39.4,
    "NVIDIA-A100-PCIE-40GB": 39.4,
    "NVIDIA-H100-80GB-HBM3": 79.1,
    "NVIDIA-H100-PCIe": 79.1,
}
"""Memory that a process sees on one GPU, by the node label nvidia.com/gpu.product."""


@dataclass(frozen=True, slots=True)
class KvMemory:
    """M of one replica, in whole blocks, and where it comes from.

    `doubt` says what makes it uncertain, if anything; `assumed`: it stands for something that isn't known at all.
    """

    tokens: int
    source: str
    block_size: int = DEFAULT_BLOCK_SIZE
    doubt: str | None = None
    assumed: bool = False


def kv_memory(spec: LLMServingPoolSpec, given: int | None) -> KvMemory:
    """Raises ValueError naming the field where nothing can be left for KV memory."""
    if given is not None:
        if not FEWEST_KV_TOKENS <= given <= MAX_KV_TOKENS:
            raise ValueError(
                f"--kv-tokens: found {given}; give the usable KV tokens of one replica, "
                f"from {FEWEST_KV_TOKENS} to {MAX_KV_TOKENS}"
            )
        return KvMemory(_whole_blocks(given), "--kv-tokens")
    engine = spec.engine
    if "kv_cache_tokens" in engine.model_fields_set:
        return KvMemory(_whole_blocks(engine.kv_cache_tokens), "spec.engine.kvCacheTokens")
    if engine.type is EngineType.SIMULATED:
        return KvMemory(_whole_blocks(engine.kv_cache_tokens), "the default of spec.engine.kvCacheTokens")
    shape, gpu = _shape(spec.model.name), _gpu(spec)
    if shape is None or gpu is None:
        unknown = f"the dimensions of {spec.model.name}" if shape is None else "the GPU of spec.accelerator.products"
        return KvMemory(
            _whole_blocks(engine.kv_cache_tokens),
            "the default of spec.engine.kvCacheTokens",
            doubt=f"{unknown} isn't known here" if shape is not None else f"{unknown} aren't known here",
            assumed=True,
        )
    parallelism = spec.accelerator.parallelism
    try:
        tokens = kv_capacity_tokens(
            shape,
            int(_GPU_MEMORY_GIB[gpu] * 2**30),
            utilization=engine.vllm.gpu_memory_utilization_percent / 100,
            tensor=parallelism.tensor,
            pipeline=parallelism.pipeline,
            block_size=DEFAULT_BLOCK_SIZE,
        )
    except ValueError:
        raise ValueError(
            f"spec.accelerator.parallelism: found {parallelism.gpus} GPUs per replica, and {spec.model.name} leaves no "
            f"KV memory on {parallelism.gpus} x {gpu}; raise tensor or pipeline, or give --kv-tokens"
        ) from None
    return KvMemory(
        tokens,
        f"the dimensions of {spec.model.name} on {parallelism.gpus} x {gpu}",
        doubt="engines report their own when they start",
    )


def step_times(spec: LLMServingPoolSpec) -> tuple[str, str | None]:
    """The name of the step-time model, and a note where it is taken for want of a better one."""
    simulated = spec.engine.simulated
    if spec.engine.type is EngineType.SIMULATED or "step_time_model" in simulated.model_fields_set:
        return simulated.step_time_model.value, None
    shape = _shape(spec.model.name)
    if shape is not None:
        return (StepTimeModel.A100_70B if shape is LLAMA_3_70B else StepTimeModel.A100_8B).value, None
    name = simulated.step_time_model.value
    note = (
        f"the iteration times of {spec.model.name} aren't known here, those of {name} are used for rates and replicas; "
        f"spec.engine.simulated.stepTimeModel chooses another of {', '.join(one.value for one in StepTimeModel)}"
    )
    return name, note


def _whole_blocks(tokens: int) -> int:
    return tokens // DEFAULT_BLOCK_SIZE * DEFAULT_BLOCK_SIZE


def _shape(model: str) -> ModelShape | None:
    if _QUANTISED.search(model):
        return None
    return next((shape for pattern, shape in _SHAPES if pattern.search(model)), None)


def _gpu(spec: LLMServingPoolSpec) -> str | None:
    """The listed GPU with the least memory; None where one of them isn't known, or none is listed."""
    products = spec.accelerator.products
    if not products or any(product not in _GPU_MEMORY_GIB for product in products):
        return None
    return min(products, key=lambda product: _GPU_MEMORY_GIB[product])
