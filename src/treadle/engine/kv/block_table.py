"""The KV blocks that one request holds in one pool, by their place in its text.

Leaves to others: which those are (``RequestLine``) and counting who holds a block (``BlockPool``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_BLOCK", "BlockTable"]

NO_BLOCK = -1


class BlockTable:
    """Blocks ``first`` to the last one of a text; the places before are empty.

    ``row`` begins with ``block_ids`` as the native core reads them.
    """

    __slots__ = ("block_ids", "first", "row")

    def __init__(self, block_ids: Sequence[int] = (), *, first: int = 0) -> None:
        self.first = first
        self.block_ids: list[int] = []
        self.row: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self.add([NO_BLOCK] * first)
        self.add(block_ids)

    @property
    def held(self) -> list[int]:
        """Return the blocks, without empty places."""
        return self.block_ids[self.first :]

    @property
    def num_held(self) -> int:
        """Return how many blocks there are, without empty places."""
        return len(self.block_ids) - self.first

    def add(self, block_ids: Sequence[int]) -> None:
        """Put blocks behind the last one."""
        start = len(self.block_ids)
        self.block_ids += block_ids
        if len(self.block_ids) > len(self.row):
            self.row = np.resize(self.row, 2 * len(self.block_ids))
            self.row[:start] = self.block_ids[:start]
        self.row[start : len(self.block_ids)] = block_ids

    def replace(self, place: int, block_id: int) -> None:
        """Use another block with the same contents."""
        self.block_ids[place] = self.row[place] = block_id

    def drop_before(self, place: int) -> list[int]:
        """Empty the places before ``place`` and return their blocks."""
        dropped = self.block_ids[self.first : place]
        self.block_ids[self.first : place] = [NO_BLOCK] * len(dropped)
        self.row[self.first : place] = NO_BLOCK
        self.first = max(self.first, place)
        return dropped
