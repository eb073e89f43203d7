"""The prefix cache: which leading blocks of a prompt an engine needn't compute again.

A prompt's full blocks carry ids; equal ids mean equal content up to and including that block. They may be larger than
the engine's own blocks (512 tokens in Mooncake's traces).
"""

from collections import OrderedDict
from collections.abc import Sequence as Ids


class PrefixCache:
    """vLLM's: blocks live in the engine's KV memory; those that nobody uses count as free and go in LRU order.

    `block_tokens` is the size of a prompt's blocks. Attention over cached tokens takes its time all the same.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def hits(self, prefix: Ids[int]) -> int:
        """How many leading blocks are there."""
        for number, block in enumerate(prefix):
            if block not in self._users:
                return number
        return len(prefix)

    def price(self, prefix: Ids[int]) -> int:
        """Tokens of free memory that holding these cached blocks takes."""
        return self.block_tokens * sum(1 for block in prefix if block in self._idle)

    def hold(self, prefix: Ids[int]) -> None:
        """One more request uses these cached blocks."""
        for block in prefix:
            self._users[block] += 1
            self._idle.pop(block, None)

    def insert(self, prefix: Ids[int], held: int) -> int:
        """A request that holds the first `held` blocks computed them all; returns how many more it shares now.

        Where another request was first with a block, this one's copy stays its own, uncached.
        """
        new = 0
        for block in prefix[held:]:
            if block in self._users:
                break
            self._users[block] = 1
            new += 1
        return new

    def release(self, prefix: Ids[int]) -> int:
        """One request less uses these blocks; returns the tokens of memory that this makes free."""
        freed = 0
        # A prompt's last block is the first to go: without the blocks before it, it would be of no use.
        for block in reversed(prefix):
            self._users[block] -= 1
            if not self._users[block]:
                self._idle[block] = None
                freed += 1
        return freed * self.block_tokens

    def trim(self, free_tokens: int) -> None:
        """Only so much memory is free: cached blocks that nobody uses and that don't fit into it are forgotten."""
        while len(self._idle) * self.block_tokens > free_tokens:
            block, _ = self._idle.popitem(last=False)
            del self._users[block]
