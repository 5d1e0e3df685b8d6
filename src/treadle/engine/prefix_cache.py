"""Finds what was computed before: which blocks hold the beginning of a request, which are being made, which are stored.

Leaves to others: the blocks themselves (``BlockPool``), where they go beyond it (a ``BlockStore``) and when a request
runs (the scheduler).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from sys import byteorder
from typing import TYPE_CHECKING, Protocol

from treadle.engine.block_pool import BlockPool

if TYPE_CHECKING:
    from treadle.engine.request import Request

__all__ = ["BlockStore", "Match", "PrefixCache", "chain_keys"]

# Copying a block out takes about as long as reading it from memory twice; this many never delay a step visibly.
_MAX_SAVED_PER_STEP = 16


class BlockStore(Protocol):
    """Where blocks live on when the pool needs their room. Every method returns at once; ``save`` copies memory."""

    def find(self, keys: Sequence[bytes]) -> int:
        """Return how many of the leading keys are held."""

    def save(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Copy the contents of blocks out now and store them in the background; keys that are held are skipped."""

    def load(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> Future[int]:
        """Fill blocks in the background; the result is how many of the leading ones are then valid."""


@dataclass(frozen=True)
class Match:
    """What there is of a request's beginning.

    ``block_ids`` are in the pool, ``num_stored`` blocks after them in the store. ``awaited_key``, if any, is the last
    block of what follows that a running request is about to make.
    """

    block_ids: Sequence[int] = ()
    num_stored: int = 0
    awaited_key: bytes | None = None


@dataclass(frozen=True)
class _Load:
    """Blocks on their way from the store into the pool, the first of them number ``first_index`` of the request."""

    request: Request
    first_index: int
    keys: Sequence[bytes]
    block_ids: Sequence[int]
    result: Future[int]


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


class PrefixCache:
    """Full blocks by content, shared by everyone who wants them.

    ``identity`` is what besides tokens decides the contents of every block: model, type of the KV cache. It keeps apart
    what a shared store holds, as ``Request.cache_identity`` does what single requests compute. A cache that is not
    enabled finds nothing and keeps nothing.
    """

    def __init__(
        self, pool: BlockPool, *, identity: bytes = b"", store: BlockStore | None = None, is_enabled: bool = True
    ) -> None:
        self.pool = pool
        self.num_pool_tokens = 0  # of prompts, found in the pool; and in the store
        self.num_store_tokens = 0
        self.wake: Callable[[], None] = lambda: None
        self._root = identity
        self._store = store
        self._is_enabled = is_enabled
        self._makers: dict[bytes, Request] = {}  # who is about to compute or load a block
        self._loads: list[_Load] = []
        self._unsaved: deque[tuple[bytes, int]] = deque(maxlen=pool.num_blocks)
        self._saves_left = _MAX_SAVED_PER_STEP
        pool.on_evict = self._save_evicted

    @property
    def has_unsaved(self) -> bool:
        """Tell whether blocks wait for their turn in ``save_some``."""
        return bool(self._unsaved)

    def match(self, request: Request) -> Match:
        """Look for the beginning of ``request``, short of its last token, which must be computed for its logits."""
        if not (self._is_enabled and request.uses_cache):
            return Match()
        chain_keys(self._root + request.cache_identity, request.token_ids, self.pool.block_tokens, request.block_keys)
        keys = request.block_keys[: (len(request.token_ids) - 1) // self.pool.block_tokens]
        block_ids = []
        for key in keys:
            block_id = self.pool.find(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        awaited_key = None
        for key in keys[len(block_ids) :]:
            if key not in self._makers:
                break
            awaited_key = key
        num_stored = 0 if self._store is None or awaited_key else self._store.find(keys[len(block_ids) :])
        return Match(block_ids, num_stored, awaited_key)

    def maker(self, key: bytes) -> Request | None:
        """Return who is about to make the block of ``key``."""
        return self._makers.get(key)

    def begin(self, request: Request, match: Match) -> None:
        """Announce what ``request``, which has its blocks now, is going to make, and load what the store has of it."""
        if not (self._is_enabled and request.uses_cache):
            return
        first = len(match.block_ids)
        request.num_sealed = first
        request.num_computed = first * self.pool.block_tokens
        if request.times.started is None:
            self.num_pool_tokens += request.count_cached(request.num_computed)
        for key in request.block_keys[first:]:
            self._makers.setdefault(key, request)
        if match.num_stored and self._store is not None:
            end = first + match.num_stored
            keys, block_ids = request.block_keys[first:end], request.block_ids[first:end]
            self.pool.hold(block_ids)  # whatever becomes of the request, nobody may have them before the load ends
            load = _Load(request, first, keys, block_ids, self._store.load(keys, block_ids))
            self._loads.append(load)
            request.load = load
            load.result.add_done_callback(lambda _: self.wake())

    def end(self, request: Request) -> None:
        """Take back what was announced for ``request``, which gives its blocks up."""
        for key in request.block_keys[request.num_sealed :]:
            if self._makers.get(key) is request:
                del self._makers[key]
        request.load = None

    def seal(self, request: Request) -> None:
        """Share the blocks of ``request`` that have become full."""
        if not (self._is_enabled and request.uses_cache):
            return
        num_full = request.num_computed // self.pool.block_tokens
        chain_keys(self._root + request.cache_identity, request.token_ids, self.pool.block_tokens, request.block_keys)
        for index in range(request.num_sealed, num_full):
            self._seal_block(request, index)

    def count_found(self, request: Request) -> None:
        """Count what the runner of a cache that is not enabled found by itself."""
        if not self._is_enabled:
            self.num_pool_tokens += request.num_cached_tokens

    def finish_loads(self) -> None:
        """Let go on the requests whose loads have ended, with as much as came."""
        ended = [load for load in self._loads if load.result.done()]
        for load in ended:
            self._loads.remove(load)
            self._finish(load)

    def keep(self, request: Request) -> None:
        """Have the full blocks of a prompt that was computed stored soon, lest they be lost with the process."""
        if self._store is None:
            return
        first = request.num_cached_tokens // self.pool.block_tokens
        end = len(request.prompt_ids) // self.pool.block_tokens
        self._unsaved.extend(zip(request.block_keys[first:end], request.block_ids[first:end], strict=True))

    def save_some(self) -> None:
        """Store as much of what waits for it as one step may; to be called once before each."""
        self._saves_left = _MAX_SAVED_PER_STEP
        if self._store is None:
            return
        keys: list[bytes] = []
        block_ids: list[int] = []
        while self._unsaved and len(keys) < self._saves_left:
            key, block_id = self._unsaved.popleft()
            if self.pool.find(key) == block_id:
                keys.append(key)
                block_ids.append(block_id)
        if keys:
            self._saves_left -= len(keys)
            self._store.save(keys, block_ids)

    def reset(self) -> None:
        """Forget everything but blocks that a load may still write into, and take all others back."""
        self._makers.clear()
        self._unsaved.clear()
        self.pool.reset(held=[block_id for load in self._loads for block_id in load.block_ids])

    def _save_evicted(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        if self._store is not None and self._saves_left:
            self._store.save(keys[: self._saves_left], block_ids[: self._saves_left])
            self._saves_left -= min(self._saves_left, len(keys))

    def _seal_block(self, request: Request, index: int) -> None:
        key = request.block_keys[index]
        request.replace_block(index, self.pool.seal(request.block_ids[index], key))
        request.num_sealed = index + 1
        if self._makers.get(key) is request:
            del self._makers[key]

    def _finish(self, load: _Load) -> None:
        request = load.request
        if request.load is load:  # else it was cancelled or preempted, and may even load anew
            request.load = None
            failed = load.result.cancelled() or load.result.exception() is not None
            num_blocks = 0 if failed else load.result.result()
            for index in range(load.first_index, load.first_index + num_blocks):
                self._seal_block(request, index)
            num_tokens = num_blocks * self.pool.block_tokens
            request.num_computed += num_tokens
            if request.times.first_token is None:
                self.num_store_tokens += request.count_cached(num_tokens)
        self.pool.free(load.block_ids)
