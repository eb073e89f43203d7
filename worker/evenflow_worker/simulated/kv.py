"""Block-wise KV memory, as vLLM's block pool counts it without prefix caching."""

from dataclasses import dataclass


@dataclass(slots=True)
class BlockPool:
    """Counts of blocks. vLLM keeps one block more, the null block, that no request can use."""

    block_size: int
    usable: int
    free: int
    watermark: int = 0

    @staticmethod
    def of_tokens(kv_tokens: int, block_size: int) -> "BlockPool":
        """The pool whose usable capacity is `kv_tokens`, cut down to whole blocks; raises ValueError below one."""
        usable = kv_tokens // block_size
        if usable < 1:
            raise ValueError(f"kv_tokens must hold at least one block of {block_size} tokens, found {kv_tokens}")
        return BlockPool(block_size, usable, usable)

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
