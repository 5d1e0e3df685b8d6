"""Hands out the KV blocks of the native runtime by number.

Leaves to others: what is in a block (the runtime) and who should get one (the scheduler).
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.errors import InternalError

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed set of equal KV blocks, numbered from 0, each either free or held by one request.

    The block freed last is handed out first: memory that was never touched costs nothing, so a light load stays light.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free: list[int] = []
        self._is_used: list[bool] = []
        self.reset()

    @property
    def num_free(self) -> int:
        """Return how many blocks can be allocated now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Return how many blocks are held."""
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold ``num_tokens`` tokens of one request."""
        return -(-num_tokens // self.block_tokens)

    def try_allocate(self, num_blocks: int) -> list[int] | None:
        """Take ``num_blocks`` blocks, or none at all (``None``) when fewer are free."""
        if num_blocks > len(self._free):
            return None
        block_ids = [self._free.pop() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._is_used[block_id] = True
        return block_ids

    def free(self, block_ids: Iterable[int]) -> None:
        """Give blocks back; the next allocation gets them again in the order they were held."""
        for block_id in reversed(list(block_ids)):
            if not self._is_used[block_id]:
                raise InternalError(f"KV block {block_id} was freed twice")
            self._is_used[block_id] = False
            self._free.append(block_id)

    def reset(self) -> None:
        """Take every block back, whoever holds it."""
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._is_used = [False] * self.num_blocks
