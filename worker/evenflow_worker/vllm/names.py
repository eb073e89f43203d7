"""The names of vLLM's that the worker relies on, checked at start instead of the version."""

import inspect
from typing import Any, Final

TESTED_VERSIONS: Final = ("0.28.", "0.30.", "0.32.")

METHODS: Final = (
    "schedule",
    "add_request",
    "update_from_output",
    "_preempt_request",
    "_free_request",
    "finish_requests",
    "get_request_counts",
    "get_num_unfinished_requests",
)
ATTRIBUTES: Final = (
    "waiting",
    "running",
    "requests",
    "policy",
    "pause_state",
    "max_num_scheduled_tokens",
    "max_model_len",
    "block_size",
    "hash_block_size",
    "lora_config",
    "kv_cache_config",
    "kv_cache_manager",
)
KV_ATTRIBUTES: Final = ("watermark_blocks", "enable_caching", "block_pool")
BLOCK_POOL_ATTRIBUTES: Final = ("num_gpu_blocks", "get_num_free_blocks", "get_cached_block")
REQUEST_NAMES: Final = (
    "request_id",
    "status",
    "num_prompt_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_preemptions",
    "max_tokens",
    "prompt_token_ids",
    "sampling_params",
    "lora_request",
    "block_hashes",
    "skip_reading_prefix_cache",
    "num_tokens",
    "num_output_tokens",
    "is_finished",
)


def missing_names(scheduler_class: type, request_class: type, queue_class: type, our_queue: type) -> list[str]:
    """What these classes of vLLM's lack of what the worker needs; empty if it can run."""
    found = [f"Scheduler.{name}" for name in METHODS if not callable(getattr(scheduler_class, name, None))]
    if hasattr(scheduler_class, "evenflow"):
        found.append("Scheduler.evenflow free for us")
    init_source = _source(request_class)
    found += [
        f"Request.{name}"
        for name in REQUEST_NAMES
        if not hasattr(request_class, name) and f"self.{name}" not in init_source
    ]
    abstract: frozenset[str] = getattr(queue_class, "__abstractmethods__", frozenset())
    found += [f"RequestQueue.{name} is unknown to us" for name in sorted(abstract) if not hasattr(our_queue, name)]
    return found


def missing_attributes(scheduler: Any) -> list[str]:
    """The same for a scheduler that is already built."""
    found = [f"Scheduler.{name}" for name in ATTRIBUTES if not hasattr(scheduler, name)]
    manager = getattr(scheduler, "kv_cache_manager", None)
    if manager is None:
        return found
    found += [f"KVCacheManager.{name}" for name in KV_ATTRIBUTES if not hasattr(manager, name)]
    pool = getattr(manager, "block_pool", None)
    if pool is not None:
        found += [f"BlockPool.{name}" for name in BLOCK_POOL_ATTRIBUTES if not hasattr(pool, name)]
    if not hasattr(getattr(scheduler, "waiting", None), "prepend_request"):
        found.append("Scheduler.waiting.prepend_request")
    return found


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        # No source in this build: the attributes show at the first request, whose hooks are guarded.
        return "".join(f"self.{name} " for name in REQUEST_NAMES)
