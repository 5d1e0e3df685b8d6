"""What a request's beginning is called, and what was found of it.

Leaves to others: looking for it, and what becomes of it (``PrefixCache``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from sys import byteorder
from typing import NamedTuple

from treadle.engine.kv.block_table import BlockTable

__all__ = ["Found", "Match", "chain_keys"]


def chain_keys(root: bytes, token_ids: Sequence[int], block_tokens: int, keys: list[bytes]) -> None:
    """Extend ``keys`` to one per full block of ``token_ids``.

    The key of a block is BLAKE2b, 16 bytes, of the key before it (``root`` for the first) and its own token ids as
    little-endian int32: it stands for everything from the beginning to the end of the block.
    """
    start = len(keys) * block_tokens
    num_blocks = len(token_ids) // block_tokens
    if len(keys) == num_blocks:
        return
    numbers = array("i", token_ids[start : num_blocks * block_tokens])
    if byteorder == "big":
        numbers.byteswap()
    tokens = numbers.tobytes()
    step = block_tokens * numbers.itemsize
    key = keys[-1] if keys else root
    for offset in range(0, len(tokens), step):
        key = blake2b(key + tokens[offset : offset + step], digest_size=16).digest()
        keys.append(key)


class Found(NamedTuple):
    """What a request needs of one pool to go on from somewhere: its blocks from place ``first`` on, None if stored."""

    first: int = 0
    block_ids: Sequence[int | None] = ()

    @property
    def held(self) -> list[int]:
        """Return the blocks that are in the pool."""
        return [block_id for block_id in self.block_ids if block_id is not None]

    def table(self, fresh_ids: Sequence[int]) -> BlockTable:
        """Return a table of these blocks, with fresh ones for what is stored and behind all."""
        fresh = iter(fresh_ids)
        block_ids = [next(fresh) if block_id is None else block_id for block_id in self.block_ids]
        return BlockTable([*block_ids, *fresh], first=self.first)


@dataclass(frozen=True)
class Match:
    """What there is of a request's beginning.

    The first ``num_ready`` blocks need not be computed thanks to the pools alone, ``num_blocks`` when what is stored
    has been loaded, too; ``found`` says of each pool what that takes. ``awaited_key``, if any, is the last block of
    what follows that a running request is about to make.
    """

    found: Sequence[Found]
    num_ready: int = 0
    num_blocks: int = 0
    awaited_key: bytes | None = None
