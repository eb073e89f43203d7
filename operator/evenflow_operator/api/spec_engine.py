"""What a replica runs: the model, the engine and the accelerator (docs/design.md §4)."""

from typing import Annotated

from pydantic import Field

from evenflow_operator.api.base import ApiModel, Items, ObjectName, Printable, UniqueItems
from evenflow_operator.api.enums import EngineType, PullPolicy, StepTimeModel
from evenflow_operator.api.names import MAX_KV_TOKENS, MAX_TOKENS


class SecretKeyRef(ApiModel):
    """One key of a Secret in the pool's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]
    """Key inside the Secret."""


class HuggingFaceSource(ApiModel):
    """The engine downloads the model from the Hugging Face Hub."""

    token_secret_ref: SecretKeyRef | None = None
    """Secret with the access token; absent for models that need none."""


class PvcSource(ApiModel):
    """The model lies on a PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """Name of the claim, in the pool's namespace."""
    path: Annotated[
        str,
        Field(max_length=512, pattern=r"^([A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*)?$"),
    ] = ""
    """Folder of the model inside the claim, without a leading slash; empty for the claim's root."""


class ImageSource(ApiModel):
    """The model lies in an OCI image, mounted as an image volume."""

    reference: Printable
    """Reference of the image."""
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    """When the node pulls the image."""


class ModelSource(ApiModel):
    """Where the weights come from; exactly one of the fields."""

    hugging_face: HuggingFaceSource | None = None
    """From the Hugging Face Hub."""
    pvc: PvcSource | None = None
    """From a PersistentVolumeClaim."""
    image: ImageSource | None = None
    """From an OCI image."""


class ServedModel(ApiModel):
    """The model that every replica of the pool serves."""

    name: Printable
    """Name of the model as the engine loads it, for example meta-llama/Llama-3.1-8B-Instruct."""
    served_name: Printable | None = None
    """Name that clients send as `model`; absent: the model's own name."""
    max_model_len: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """Longest prompt plus output of a request (tokens); absent: what the model allows."""
    source: ModelSource | None = None
    """Where the weights come from; absent: the Hugging Face Hub, without a token."""

    @property
    def served(self) -> str:
        """The name that clients use."""
        return self.served_name if self.served_name is not None else self.name


class VLLMEngine(ApiModel):
    """Settings of a real engine; used when the engine's type is VLLM."""

    image: Printable = "vllm/vllm-openai:v0.32.0"
    """Image of the engine."""
    extra_args: Items[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=tuple, max_length=64
    )
    """Further arguments of `vllm serve`. Flags that the operator sets itself are refused."""
    gpu_memory_utilization_percent: int = Field(90, ge=1, le=100)
    """Share of GPU memory that the engine may use (percent)."""


class SimulatedEngine(ApiModel):
    """Settings of the GPU-free engine; used when the engine's type is Simulated."""

    step_time_model: StepTimeModel = StepTimeModel.A100_8B
    """Which measured step-time model the engine follows."""
    time_scale: int = Field(1, ge=1, le=100)
    """How many times faster than real time the engine runs."""
    stream_interval: int = Field(1, ge=1, le=100_000)
    """Tokens per streamed chunk."""
    startup_seconds: int = Field(0, ge=0, le=86_400)
    """Wall time before the engine is ready, whatever timeScale is (seconds)."""


class Engine(ApiModel):
    """The inference engine of every replica."""

    type: EngineType = EngineType.VLLM
    """Which engine runs: VLLM, or Simulated, which needs no GPU and no model."""
    vllm: VLLMEngine = Field(default_factory=VLLMEngine)
    """Settings of a VLLM engine."""
    simulated: SimulatedEngine = Field(default_factory=SimulatedEngine)
    """Settings of a Simulated engine."""
    max_num_seqs: int = Field(256, ge=1, le=65_536)
    """Most requests that one engine runs at once (requests)."""
    max_num_batched_tokens: int = Field(2048, ge=1, le=MAX_TOKENS)
    """Most tokens that one engine computes per iteration (tokens)."""
    kv_cache_tokens: int = Field(430_000, ge=32, le=MAX_KV_TOKENS)
    """KV memory of one engine (tokens): expected, until an engine reports its own; the size of a Simulated one."""
    worker_image: Printable | None = None
    """Image that carries the worker; absent: the operator's default, kept on a slot until its next roll."""


class Parallelism(ApiModel):
    """How one replica is spread over the GPUs of its node."""

    tensor: int = Field(1, ge=1, le=16)
    """Tensor-parallel size (GPUs)."""
    pipeline: int = Field(1, ge=1, le=16)
    """Pipeline-parallel size (stages)."""

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline


class Accelerator(ApiModel):
    """The accelerator that each replica asks for."""

    products: Annotated[
        Items[
            Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
        ],
        UniqueItems(),
    ] = Field(default=("NVIDIA-A100-SXM4-80GB",), max_length=16)
    """Values of the node label nvidia.com/gpu.product that will do; empty: any node."""
    resource_name: Annotated[
        str,
        Field(
            min_length=3,
            max_length=253,
            pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        ),
    ] = "nvidia.com/gpu"
    """Extended resource that a replica requests."""
    parallelism: Parallelism = Field(default_factory=Parallelism)
    """How one replica is spread over GPUs."""
