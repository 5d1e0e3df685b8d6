"""Blocks on their way from stores into pools, and what a store is to those that ask it.

Leaves to others: keeping blocks (``TieredStore``) and whose they are (``PrefixCache``).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from treadle.engine.kv.prefix_match import Match
    from treadle.engine.request import Request

__all__ = ["BlockLoad", "BlockStore", "LoadPart"]


class BlockStore(Protocol):
    """Where blocks live on when a pool needs their room. Every method returns at once; ``save`` copies memory."""

    def __contains__(self, key: bytes) -> bool:
        """Tell whether the block of ``key`` is held."""

    def save(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Copy the contents of blocks out now and store them in the background; keys that are held are skipped."""

    def load(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> Future[int]:
        """Fill blocks in the background; the result is how many of the leading ones are then valid."""


class LoadPart(NamedTuple):
    """Blocks on their way from a store into its pool, for these places of a request."""

    pool_index: int
    places: Sequence[int]
    keys: Sequence[bytes]
    block_ids: Sequence[int]
    result: Future[int]

    @property
    def num_valid(self) -> int:
        """Return how many of the leading blocks came."""
        failed = self.result.cancelled() or self.result.exception() is not None
        return 0 if failed else self.result.result()


@dataclass(frozen=True)
class BlockLoad:
    """All that a request loads at once."""

    request: Request
    match: Match
    parts: Sequence[LoadPart]

    @property
    def is_done(self) -> bool:
        """Tell whether nobody writes into any of the blocks any more."""
        return all(part.result.done() for part in self.parts)

    @property
    def is_complete(self) -> bool:
        """Tell whether all blocks came, once it is done."""
        return all(part.num_valid == len(part.places) for part in self.parts)
