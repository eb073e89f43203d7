"""The prefix cache by itself, and against the memory it lives in."""

import random

import pytest

from evenflow_contract.worker_config import WorkerConfig
from evenflow_model.fleet.prefix import PrefixCache
from evenflow_model.fleet.records import EngineRequest, EngineSpec
from evenflow_worker.simulated.core import EngineCore


def test_blocks_are_shared_counted_once_and_priced_when_nobody_holds_them() -> None:
    cache = PrefixCache(16)
    assert cache.hits((1, 2, 3)) == 0
    assert cache.insert((1, 2, 3), 0) == 3
    assert cache.hits((1, 2, 9)) == 2
    assert cache.price((1, 2)) == 0
    cache.hold((1, 2))
    assert cache.release((1, 2, 3)) == 16  # block 3; the others have a second user
    assert cache.price((1, 2, 3)) == 16
    assert cache.release((1, 2)) == 32
    assert cache.price((1, 2, 3)) == 48
    assert cache.insert((1, 2, 3, 4), 3) == 1


def test_a_second_copy_of_a_block_stays_its_owner_s() -> None:
    cache = PrefixCache(16)
    assert cache.insert((1, 2), 0) == 2
    assert cache.insert((1, 2, 3), 0) == 0
    assert cache.hits((1, 2, 3)) == 2


def test_the_least_recently_used_go_first_and_a_prompt_s_end_before_its_beginning() -> None:
    cache = PrefixCache(16)
    cache.insert((1, 2), 0)
    cache.insert((5, 6), 0)
    cache.release((1, 2))
    cache.release((5, 6))
    cache.trim(48)
    assert (cache.hits((1, 2)), cache.hits((5, 6))) == (1, 2)
    cache.hold((1,))
    cache.trim(0)
    assert (cache.hits((1, 2)), cache.hits((5, 6))) == (1, 0)


@pytest.mark.parametrize("seed", range(10))
def test_cached_and_held_blocks_never_exceed_the_memory(seed: int) -> None:
    source = random.Random(seed)
    spec = EngineSpec(kv_tokens=640, max_model_len=400, max_num_batched_tokens=source.choice((64, 512)))
    cache = PrefixCache(source.choice((16, 32)))
    core = EngineCore(spec, WorkerConfig(), prefix_cache=cache)
    number = 0
    for _ in range(400):
        if source.random() < 0.3:
            prompt, output, family = source.randint(1, 200), source.randint(1, 60), source.randrange(6)
            prefix = tuple(100 * family + block for block in range(prompt // cache.block_tokens))
            core.add(EngineRequest(str(number), prompt, output, output, "chat", core.now, prefix=prefix))
            number += 1
        if source.random() < 0.02 and number:
            core.abort(str(source.randrange(number)))
        if not core.has_work:
            continue
        core.step()
        shared = sum(users > 0 for users in cache._users.values()) * cache.block_tokens
        private = sum(one.capacity - one.shared * cache.block_tokens for one in core._requests.values() if one.running)
        assert shared + private + core.free_blocks * 16 == 640
        assert len(cache._idle) * cache.block_tokens <= core.free_blocks * 16
    assert core.counters.cached_tokens > 0
    assert core.counters.evictions.total() > 0
