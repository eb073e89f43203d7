"""How much of a waiting request lies in vLLM's prefix cache, asked without touching anything."""

from typing import Any


def cached_tokens(scheduler: Any, request: Any) -> int:
    """Tokens of the longest cached prefix, in whole blocks; 0 where that can't be asked cheaply.

    vLLM frees the tail of a sequence before its head, so cached blocks are a prefix and a binary search finds its end:
    a dozen dictionary look-ups for the longest prompts. Models with several kinds of KV cache are left out: there a
    prefix counts only where all kinds have it.
    """
    manager = scheduler.kv_cache_manager
    hashes = request.block_hashes
    if not hashes or not manager.enable_caching or len(scheduler.kv_cache_config.kv_cache_groups) != 1:
        return 0
    if request.skip_reading_prefix_cache or scheduler.hash_block_size != scheduler.block_size:
        return 0
    look_up = manager.block_pool.get_cached_block
    # The last token is always computed, so a prompt that is cached whole still misses one block.
    low, high = 0, min(len(hashes), (request.num_tokens - 1) // scheduler.block_size)
    if not high or look_up(hashes[0], [0]) is None:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if look_up(hashes[middle - 1], [0]) is None:
            high = middle - 1
        else:
            low = middle
    return low * int(scheduler.block_size)
