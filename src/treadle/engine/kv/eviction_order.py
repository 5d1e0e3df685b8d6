"""Says which cached block goes first when room is needed.

Leaves to others: what a block holds and whether anyone uses it (``BlockPool``).
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["EvictionOrder"]


class EvictionOrder:
    """A segmented LRU: blocks that were never asked for again go before those that were.

    The protected part is bounded: beyond ``max_protected`` its oldest block loses its rank and is asked to prove itself
    again, so that yesterday's favourites leave. Blocks added together leave in the order in which they were added.
    """

    def __init__(self, max_protected: int) -> None:
        self._max_protected = max_protected
        self._once: OrderedDict[int, None] = OrderedDict()  # oldest first, as the other
        self._protected: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._once) + len(self._protected)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._once or block_id in self._protected

    def add(self, block_id: int, *, was_hit: bool) -> None:
        """Take a block that nobody holds any more."""
        if not was_hit:
            self._once[block_id] = None
            return
        self._protected[block_id] = None
        if len(self._protected) > self._max_protected:
            demoted, _ = self._protected.popitem(last=False)
            self._once[demoted] = None

    def remove(self, block_id: int) -> None:
        """Let go of a block that is in use again."""
        if block_id in self._once:
            del self._once[block_id]
        else:
            del self._protected[block_id]

    def pop(self) -> int:
        """Return the block that is worth least; raises KeyError when there is none."""
        block_id, _ = (self._once or self._protected).popitem(last=False)
        return block_id
