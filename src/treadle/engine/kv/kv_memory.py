"""Says how many KV blocks a model needs, those of layers with a sliding window counted apart, and what they take.

Leaves to others: the memory there is (``memory_plan``) and which blocks a window needs (``BlockWindow``).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from treadle.engine.kv.block_window import BlockWindow
from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS, kv_block_bytes, windowed_block_bytes

if TYPE_CHECKING:
    from treadle.models.hyperparameters import Hyperparameters

__all__ = ["BATCH_TOKENS", "MAX_BATCH_TOKENS", "KvMemory", "blocks_for", "context_kv_bytes"]

MAX_BATCH_TOKENS = 512
# Beside one full context, the pool has room for this many tokens of other requests, memory permitting.
BATCH_TOKENS = 4096
# Of memory beyond that, layers with a window get one block for so many of the others: requests of some thousand tokens
# need no more, with what is kept of their beginnings for those that follow.
_BLOCKS_PER_WINDOW_BLOCK = 8


def context_kv_bytes(model: Hyperparameters, kv_type: str, context: int) -> int:
    """Return what the KV blocks of one request take that fills a context."""
    kv = KvMemory(model, kv_type)
    return kv.pool_bytes(blocks_for(context), context)


class KvMemory:
    """Says what KV blocks take: those of all layers, but of layers with a window only as many as are of use.

    Everything follows from the number of blocks for layers without a window, even where there are none.
    """

    def __init__(self, model: Hyperparameters, kv_type: str) -> None:
        self._window = BlockWindow(model.window, KV_BLOCK_TOKENS, MAX_BATCH_TOKENS)
        self._window_block_bytes = windowed_block_bytes(model, kv_type)
        self.block_bytes = kv_block_bytes(model, kv_type) - self._window_block_bytes
        if not self._window_block_bytes:
            self.block_bytes = max(1, self.block_bytes)

    def num_window_blocks(self, num_blocks: int, context: int) -> int:
        """Return how many blocks layers with a window have: for one full context and for other requests."""
        if not self._window_block_bytes:
            return 0
        one = min(blocks_for(context), self._window.most_held)
        others = max(0, num_blocks - blocks_for(context))
        batch = min(others, blocks_for(BATCH_TOKENS))
        return min(num_blocks, one + batch + (others - batch) // _BLOCKS_PER_WINDOW_BLOCK)

    def pool_bytes(self, num_blocks: int, context: int) -> int:
        """Return what all blocks take."""
        return num_blocks * self.block_bytes + self.num_window_blocks(num_blocks, context) * self._window_block_bytes

    def largest_context(self, kv_bytes: int, most: int) -> int:
        """Return the longest context of which one request fits."""
        sizes = range(blocks_for(most) + 1)
        num_blocks = bisect_right(sizes, kv_bytes, key=lambda size: self.pool_bytes(size, size * KV_BLOCK_TOKENS)) - 1
        return min(most, num_blocks * KV_BLOCK_TOKENS)

    def largest_pool(self, kv_bytes: int, context: int, most: int) -> int:
        """Return how many blocks fit, at most ``most``, at least those of one full context."""
        sizes = range(blocks_for(context), max(blocks_for(context), most) + 1)
        found = bisect_right(sizes, kv_bytes, key=lambda size: self.pool_bytes(size, context)) - 1
        return sizes[max(0, found)]


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold so many tokens of one request."""
    return -(-num_tokens // KV_BLOCK_TOKENS)
