"""Real vLLM schedulers without a model: built from configs, stepped with a fake runner."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from evenflow_worker.vllm import make_scheduler
from evenflow_worker.vllm.factory import build_scheduler, stock_class

EOS = 2
FILLER = 7


def make_model_dir(path: Path, *, max_model_len: int = 4096) -> Path:
    """A tiny random Llama with a word-level tokenizer; weights only where `with_weights` asks (make_weights)."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, 512)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained(path)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=max_model_len,
        bos_token_id=1,
        eos_token_id=EOS,
        torch_dtype="float32",
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(path)
    json.loads((path / "config.json").read_text())
    return path


@dataclass
class Engine:
    """A scheduler and a fake runner. `outputs` says how many tokens a request id produces before its EOS."""

    scheduler: Any
    block_size: int
    caching: bool
    outputs: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    in_flight: list[tuple[Any, ModelRunnerOutput]] = field(default_factory=list)
    tokens: int = 0

    def request(
        self,
        request_id: str,
        prompt: int | list[int],
        output: int,
        *,
        max_tokens: int | None = None,
        traffic_class: str | None = None,
        lora: LoRARequest | None = None,
        **kwargs: Any,
    ) -> Request:
        ids = prompt if isinstance(prompt, list) else [3 + (len(request_id) + n) % 500 for n in range(prompt)]
        limit = self.scheduler.max_model_len - len(ids) if max_tokens is None else max_tokens
        parameters = SamplingParams(
            max_tokens=limit, extra_args=None if traffic_class is None else {"traffic_class": traffic_class}
        )
        parameters.update_from_generation_config({}, EOS)
        self.outputs[request_id] = output
        hasher = get_request_block_hasher(self.block_size, sha256) if self.caching else None
        return Request(
            request_id=request_id,
            prompt_token_ids=ids,
            sampling_params=parameters,
            pooling_params=None,
            lora_request=lora,
            block_hasher=hasher,
            **kwargs,
        )

    def add(self, request_id: str, prompt: int | list[int], output: int, **kwargs: Any) -> Request:
        request = self.request(request_id, prompt, output, **kwargs)
        self.scheduler.add_request(request)
        return request

    def abort(self, request_ids: Iterable[str]) -> None:
        self.scheduler.finish_requests(set(request_ids), RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> Any:
        """One pass; its output is computed, but not given back yet."""
        scheduled = self.scheduler.schedule()
        self.in_flight.append((scheduled, self._run(scheduled)))
        return scheduled

    def update(self) -> list[str]:
        """Give the oldest output back; returns who finished by it."""
        scheduled, output = self.in_flight.pop(0)
        result = self.scheduler.update_from_output(scheduled, output)
        done = [
            one.request_id for outputs in result.values() for one in outputs.outputs if one.finish_reason is not None
        ]
        self.finished += done
        return done

    def step(self) -> Any:
        scheduled = self.schedule()
        self.update()
        return scheduled

    def run(self, limit: int = 100_000) -> int:
        """Until nothing is left; returns the steps."""
        for steps in range(limit):
            if not self.scheduler.has_requests():
                return steps
            self.step()
        raise AssertionError(f"not done after {limit} steps: {self.scheduler.get_request_counts()}")

    def _run(self, scheduled: Any) -> ModelRunnerOutput:
        ids = list(scheduled.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id in ids:
            request = self.scheduler.requests[request_id]
            if request.is_prefill_chunk:
                sampled.append([])
                continue
            produced = request.num_output_tokens + max(request.num_output_placeholders - 1, 0)
            self.tokens += 1
            sampled.append([EOS if produced + 1 >= self.outputs[request_id] else FILLER])
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: index for index, name in enumerate(ids)}, sampled_token_ids=sampled
        )

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def make_config(
    model: Path,
    *,
    asynchronous: bool = False,
    num_blocks: int = 65,
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    max_model_len: int = 1024,
    caching: bool = False,
    max_loras: int = 0,
    policy: str = "fcfs",
    remote: bool = False,
) -> VllmConfig:
    model_config = ModelConfig(
        model=str(model), dtype="float32", seed=0, max_model_len=max_model_len, skip_tokenizer_init=True
    )
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=caching)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=model_config,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        lora_config=LoRAConfig(max_loras=max_loras, max_lora_rank=8, max_cpu_loras=max(max_loras, 8))
        if max_loras
        else None,
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(max_num_batched_tokens, max_num_seqs),
            max_model_len=max_model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy=policy,
        ),
    )
    config.scheduler_config.async_scheduling = asynchronous
    # The platform may have rounded these for kernels that never run here.
    config.cache_config.block_size = block_size
    config.scheduler_config.max_num_batched_tokens = max_num_batched_tokens
    if remote:
        from vllm_remote import with_remote

        with_remote(config)
    return config


def _arguments(config: VllmConfig) -> dict[str, Any]:
    block_size, blocks = config.cache_config.block_size, config.cache_config.num_gpu_blocks
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=16, dtype=torch.float32)
    kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return {
        "kv_cache_config": kv,
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": block_size,
        "hash_block_size": block_size,
        "log_stats": True,
    }


def built(config: VllmConfig) -> tuple[Any, str | None]:
    """A scheduler as the factory builds it, and why it is the stock one if it is."""
    init_none_hash(sha256)
    return build_scheduler(config, **_arguments(config))


def made(config: VllmConfig) -> Any:
    """A scheduler as vLLM gets it from `--scheduler-cls`, its admin server beside it."""
    init_none_hash(sha256)
    return make_scheduler(config, **_arguments(config))


def make_engine(
    model: Path, *, steered: bool = True, clock: Callable[[], float] | None = None, **options: Any
) -> Engine:
    """An engine with our scheduler, or with stock's of the same kind."""
    config = make_config(model, **options)
    init_none_hash(sha256)
    if steered:
        scheduler, reason = build_scheduler(config, **_arguments(config))
        assert reason is None or options.get("policy") == "priority", reason
    else:
        stock = stock_class(bool(config.scheduler_config.async_scheduling))
        scheduler = stock(vllm_config=config, **_arguments(config))
    if clock is not None:
        scheduler.evenflow.steering.clock = clock
    return Engine(scheduler, config.cache_config.block_size, bool(config.cache_config.enable_prefix_caching))
