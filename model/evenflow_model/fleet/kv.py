"""Block-wise KV memory, as vLLM's block pool counts it."""

from collections.abc import Iterable
from dataclasses import dataclass

from evenflow_model.fleet.prefix import PrefixCache
from evenflow_model.fleet.sequence import Sequence


@dataclass(slots=True)
class BlockPool:
    """Counts of blocks. vLLM keeps one block more, the null block, that no request can use.

    With a prefix cache, blocks that only the cache remembers count as free.
    """

    block_size: int
    usable: int
    free: int
    prefix_cache: PrefixCache | None = None
    watermark: int = 0

    @staticmethod
    def of_tokens(kv_tokens: int, block_size: int, prefix_cache: PrefixCache | None = None) -> "BlockPool":
        """The pool whose usable capacity is `kv_tokens`, cut down to whole blocks.

        Raises ValueError below one, or where the cache's blocks aren't whole multiples of these.
        """
        usable = kv_tokens // block_size
        if usable < 1:
            raise ValueError(f"kv_tokens must hold at least one block of {block_size} tokens, found {kv_tokens}")
        if prefix_cache is not None and prefix_cache.block_tokens % block_size:
            raise ValueError(
                f"prefix blocks of {prefix_cache.block_tokens} tokens must be whole multiples of the block size, "
                f"found {block_size}: choose a block size that divides them"
            )
        return BlockPool(block_size, usable, usable, prefix_cache)

    @property
    def num_blocks(self) -> int:
        """vLLM's num_gpu_blocks: the null block included."""
        return self.usable + 1

    @property
    def capacity_tokens(self) -> int:
        return self.usable * self.block_size

    @property
    def used_ratio(self) -> float:
        """Share of the usable blocks in use, 0 to 1."""
        return 1.0 - self.free / self.usable

    def set_watermark(self, share: float) -> None:
        """Share of all blocks that an admission leaves free while others run; vLLM rounds it down to whole blocks."""
        self.watermark = int(share * self.num_blocks)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def needed(self, sequence: Sequence, cached: int) -> int:
        """Free blocks that the whole of a waiting sequence takes, cached ones that nobody holds now included."""
        blocks = -(-sequence.length // self.block_size)
        if self.prefix_cache is None or not cached:
            return blocks
        price = self.prefix_cache.price(sequence.prefix[: cached // self.prefix_cache.block_tokens])
        return blocks + (price - cached) // self.block_size

    def release(self, sequence: Sequence) -> None:
        """A sequence stops running: its own blocks are free, shared ones when nobody else holds them."""
        freed = sequence.capacity
        if self.prefix_cache is not None and sequence.shared:
            freed -= sequence.shared * self.prefix_cache.block_tokens
            freed += self.prefix_cache.release(sequence.prefix[: sequence.shared])
            sequence.shared = 0
        self.free += freed // self.block_size
        sequence.capacity = 0
        sequence.running = False

    # ------------------------------------------------------------------ prefix caching

    def cached(self, sequence: Sequence) -> int:
        """Leading tokens of a waiting sequence that needn't be computed; one token at least must be."""
        if self.prefix_cache is None or not sequence.prefix:
            return 0
        size = self.prefix_cache.block_tokens
        return min(self.prefix_cache.hits(sequence.prefix), (sequence.length - 1) // size) * size

    def hold_cached(self, sequence: Sequence, cached: int) -> None:
        """An admitted sequence starts with so many cached tokens."""
        assert self.prefix_cache is not None
        held = sequence.prefix[: cached // self.prefix_cache.block_tokens]
        self.free -= self.prefix_cache.price(held) // self.block_size
        self.prefix_cache.hold(held)
        sequence.shared = len(held)
        sequence.computed = cached
        sequence.own_prompt = sequence.prompt - cached

    def remember(self, prefilled: Iterable[Sequence]) -> None:
        """The prompts of these sequences are computed: others may share their blocks."""
        if self.prefix_cache is not None:
            for sequence in prefilled:
                sequence.shared += self.prefix_cache.insert(sequence.prefix, sequence.shared)

    def forget_cached(self) -> None:
        """Memory was taken: cached blocks that nobody holds make room."""
        if self.prefix_cache is not None:
            self.prefix_cache.trim(self.free * self.block_size)
