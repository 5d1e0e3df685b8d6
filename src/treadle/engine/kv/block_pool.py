"""Hands out KV blocks of the native runtime by number and remembers what full ones hold.

Leaves to others: what a key stands for (``PrefixCache``), the contents (the runtime), who gets a block (the scheduler).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from treadle.engine.kv.block_window import BlockWindow
from treadle.engine.kv.eviction_order import EvictionOrder
from treadle.errors import InternalError

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed set of equal KV blocks, numbered from 0, each with the number of those that hold it.

    A full block can be sealed under a key. It never changes again, so anyone who wants what the key stands for holds
    the same block, and when nobody does it stays cached until its room is needed. No two blocks have one key.

    Among blocks without a key the one freed last is handed out first, and cached blocks give way only when no other is
    left: memory that was never touched costs nothing, so a light load stays light.

    Args:
        num_blocks: How many there are.
        block_tokens: Tokens of a block.
        window: How far layers look back whose keys and values these blocks hold; None for all the way. Of such blocks
            the cached ones that nobody is likely to ask for are lost in silence when they are handed out anew.
        on_evict: Called with keys and numbers of all other cached blocks that are about to be.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        *,
        window: BlockWindow | None = None,
        on_evict: Callable[[Sequence[bytes], Sequence[int]], None] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.window = window
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

    def end_for(self, num_tokens: int, first: int = 0) -> int:
        """Return the place behind the last block of a table that begins with ``first``, for so many known tokens."""
        num_blocks = self.blocks_for(num_tokens)
        return num_blocks if self.window is None else min(num_blocks, first + self.window.most_held)

    def num_usable(self, keys: Sequence[bytes], is_elsewhere: Callable[[bytes], bool] = lambda _: False) -> int:
        """Return after how many of these blocks a request can go on: those it needs are here or elsewhere."""

        def is_there(place: int) -> bool:
            return keys[place] in self._block_of or is_elsewhere(keys[place])

        if self.window is not None:
            return self.window.num_usable(len(keys), is_there)
        return next((place for place in range(len(keys)) if not is_there(place)), len(keys))

    def first_needed(self, num_blocks: int) -> int:
        """Return the first block that must be there to go on after so many."""
        return 0 if self.window is None else max(0, num_blocks - self.window.num_before)

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

    def protect(self, block_ids: Iterable[int]) -> None:
        """Treat sealed blocks as if they had been asked for again."""
        for block_id in block_ids:
            self._was_hit[block_id] = self._key_of[block_id] is not None

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
        lost_keys, lost_ids = [], []
        for block_id in block_ids:
            key = self._key_of[block_id]
            assert key is not None
            if self.window is None or self._was_hit[block_id]:
                lost_keys.append(key)
                lost_ids.append(block_id)
            del self._block_of[key]
            self._key_of[block_id] = None
            self._was_hit[block_id] = False
        self.num_evicted += num_blocks
        if self.on_evict is not None and lost_keys:
            self.on_evict(lost_keys, lost_ids)
        return block_ids
