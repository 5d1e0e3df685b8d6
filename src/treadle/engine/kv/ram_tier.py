"""Blocks kept in memory beside the pool, up to a limit, the least recently used going first.

Leaves to others: copying blocks in and out, and locking (``TieredStore``).
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockBytes", "RamTier"]

BlockBytes = NDArray[np.uint8]


class RamTier:
    """At most ``limit_bytes`` of blocks by key. Not thread-safe."""

    def __init__(self, limit_bytes: int, block_bytes: int) -> None:
        self.capacity = limit_bytes // block_bytes
        self._blocks: OrderedDict[bytes, BlockBytes] = OrderedDict()  # least recently used first

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: bytes) -> BlockBytes | None:
        """Return a block, None if it is not here; counts as a use."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def put(self, key: bytes, block: BlockBytes) -> list[tuple[bytes, BlockBytes]]:
        """Keep a block, and return those that had to go for it; at capacity 0 that is the block itself."""
        self._blocks[key] = block
        self._blocks.move_to_end(key)
        return [self._blocks.popitem(last=False) for _ in range(len(self._blocks) - self.capacity)]
