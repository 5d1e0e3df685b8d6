"""Hands out the KV blocks of the native runtime by number and remembers what full ones hold.

Leaves to others: what a key stands for (``PrefixCache``), the contents (the runtime), who gets a block (the scheduler).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from treadle.engine.eviction_order import EvictionOrder
from treadle.errors import InternalError

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed set of equal KV blocks, numbered from 0, each with the number of those that hold it.

    A full block can be sealed under a key. It never changes again, so anyone who wants what the key stands for holds
    the same block, and when nobody does it stays cached until its room is needed. No two blocks have one key.

    Among blocks without a key the one freed last is handed out first, and cached blocks give way only when no other is
    left: memory that was never touched costs nothing, so a light load stays light.

    ``on_evict`` is called with keys and numbers of cached blocks that are about to be handed out anew.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        *,
        on_evict: Callable[[Sequence[bytes], Sequence[int]], None] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.on_evict = on_evict
        self.num_evicted = 0
        self.reset()

    @property
    def num_free(self) -> int:
        """Return how many blocks can be allocated now, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Return how many blocks are held."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Return how many blocks nobody holds but would find again by their key."""
        return len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold ``num_tokens`` tokens of one request."""
        return -(-num_tokens // self.block_tokens)

    def num_holders(self, block_id: int) -> int:
        """Return how often a block is held."""
        return self._num_holders[block_id]

    def try_allocate(self, num_blocks: int) -> list[int] | None:
        """Hold ``num_blocks`` fresh blocks, or none at all (``None``) when fewer are free."""
        if num_blocks > self.num_free:
            return None
        num_evicted = max(0, num_blocks - len(self._free))
        block_ids = [self._free.pop() for _ in range(num_blocks - num_evicted)]
        if num_evicted:
            block_ids += self._evict(num_evicted)
        for block_id in block_ids:
            self._num_holders[block_id] = 1
        return block_ids

    def find(self, key: bytes) -> int | None:
        """Return the block sealed under ``key``."""
        return self._block_of.get(key)

    def hold(self, block_ids: Iterable[int], *, is_hit: bool = False) -> None:
        """Hold blocks once more; ``is_hit`` says that their contents were asked for again, which protects them."""
        for block_id in block_ids:
            if self._num_holders[block_id] == 0:
                self._cached.remove(block_id)
            self._num_holders[block_id] += 1
            self._was_hit[block_id] |= is_hit

    def seal(self, block_id: int, key: bytes) -> int:
        """Name a full block that is held; return it, or the block that has the key already and is now held instead."""
        known = self._block_of.setdefault(key, block_id)
        if known == block_id:
            self._key_of[block_id] = key
        else:
            self.hold([known])
            self.free([block_id])
        return known

    def free(self, block_ids: Iterable[int]) -> None:
        """Let go of a chain of blocks once; of those that nobody else holds the last is given away first."""
        for block_id in reversed(list(block_ids)):
            num_holders = self._num_holders[block_id]
            if num_holders == 0:
                raise InternalError(f"KV block {block_id} was freed twice")
            self._num_holders[block_id] = num_holders - 1
            if num_holders > 1:
                continue
            if self._key_of[block_id] is None:
                self._free.append(block_id)
            else:
                self._cached.add(block_id, was_hit=self._was_hit[block_id])

    def reset(self, held: Iterable[int] = ()) -> None:
        """Forget every key and take every block back, whoever holds it, but for those in ``held``."""
        self._num_holders = [0] * self.num_blocks
        for block_id in held:
            self._num_holders[block_id] += 1
        self._free = [block_id for block_id in reversed(range(self.num_blocks)) if not self._num_holders[block_id]]
        # A quarter at least stays open to newcomers, or nothing new could ever prove itself.
        self._cached = EvictionOrder(max_protected=self.num_blocks * 3 // 4)
        self._was_hit = [False] * self.num_blocks
        self._key_of: list[bytes | None] = [None] * self.num_blocks
        self._block_of: dict[bytes, int] = {}

    def _evict(self, num_blocks: int) -> list[int]:
        block_ids = [self._cached.pop() for _ in range(num_blocks)]
        keys = []
        for block_id in block_ids:
            key = self._key_of[block_id]
            assert key is not None
            keys.append(key)
            del self._block_of[key]
            self._key_of[block_id] = None
            self._was_hit[block_id] = False
        self.num_evicted += num_blocks
        if self.on_evict is not None:
            self.on_evict(keys, block_ids)
        return block_ids
