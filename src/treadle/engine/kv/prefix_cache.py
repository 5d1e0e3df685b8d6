"""Finds what was computed before: which blocks hold the beginning of a request, which are being made, which are stored.

Leaves to others: the blocks themselves (``BlockPool``), where they go beyond it (a ``BlockStore``) and when a request
runs (the scheduler).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from treadle.engine.kv.block_load import BlockLoad, BlockStore, LoadPart
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.prefix_match import Found, Match, chain_keys

if TYPE_CHECKING:
    from treadle.engine.request import Request

__all__ = ["PrefixCache"]

# Copying a block out takes about as long as reading it from memory twice; this many never delay a step visibly.
_MAX_SAVED_PER_STEP = 16


class PrefixCache:
    """Full blocks by content, shared by everyone who wants them.

    Args:
        pools: One for the layers that see everything before a token, one for those with a window, or one of the two.
        identity: What besides tokens decides the contents of every block: model, type of the KV cache. It keeps apart
            what a shared store holds, as ``Request.cache_identity`` does what single requests compute.
        stores: One behind each pool, or none.
        is_enabled: A cache that is not finds nothing and keeps nothing.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        *,
        identity: bytes = b"",
        stores: Sequence[BlockStore] = (),
        is_enabled: bool = True,
    ) -> None:
        self.num_pool_tokens = 0  # of prompts, found in the pools; and in the stores
        self.num_store_tokens = 0
        self.wake: Callable[[], None] = lambda: None
        self._pools = pools
        self._block_tokens = pools[0].block_tokens
        self._root = identity
        self._stores = stores
        self._is_enabled = is_enabled
        self._makers: dict[bytes, Request] = {}  # who is about to compute or load a block
        self._loads: list[BlockLoad] = []
        self._unsaved: deque[tuple[int, bytes, int]] = deque(maxlen=sum(pool.num_blocks for pool in pools))
        self._saves_left = _MAX_SAVED_PER_STEP
        for index, pool in enumerate(pools):
            pool.on_evict = partial(self._save_evicted, index)

    @property
    def has_unsaved(self) -> bool:
        """Tell whether blocks wait for their turn in ``save_some``."""
        return bool(self._unsaved)

    def match(self, request: Request) -> Match:
        """Look for the beginning of ``request``, short of its last token, which must be computed for its logits."""
        if not (self._is_enabled and request.uses_cache):
            return Match([Found()] * len(self._pools))
        chain_keys(self._root + request.cache_identity, request.token_ids, self._block_tokens, request.block_keys)
        keys = request.block_keys[: (len(request.token_ids) - 1) // self._block_tokens]
        num_ready = num_blocks = self._num_usable(keys)
        awaited_key = None
        for key in keys[num_ready:]:
            if key in self._makers:
                awaited_key = key
            elif self._pools[0].find(key) is None:
                break
        if self._stores and request.uses_store and awaited_key is None:
            num_blocks = self._num_usable(keys, with_stores=True)
        found = []
        for pool in self._pools:
            first = pool.first_needed(num_blocks)
            found.append(Found(first, [pool.find(key) for key in keys[first:num_blocks]]))
        return Match(found, num_ready, num_blocks, awaited_key)

    def maker(self, key: bytes) -> Request | None:
        """Return who is about to make the block of ``key``."""
        return self._makers.get(key)

    def begin(self, request: Request, match: Match) -> None:
        """Announce what ``request``, which has its blocks now, is going to make, and load what stores have of it."""
        if not (self._is_enabled and request.uses_cache):
            return
        if request.times.started is None:
            self.num_pool_tokens += request.count_cached(match.num_ready * self._block_tokens)
        for key in request.block_keys[match.num_ready :]:
            self._makers.setdefault(key, request)
        self._save_windows(request, match)
        if match.num_blocks > match.num_ready:
            self._load(request, match)
        else:
            self._skip(request, match.num_blocks)

    def end(self, request: Request) -> None:
        """Take back what was announced for ``request``, which gives its blocks up."""
        self._protect_windows(request)
        self._forget_maker(request, request.block_keys[request.num_sealed :])
        request.load = None

    def seal(self, request: Request) -> None:
        """Share the blocks of ``request`` that have become full."""
        if not (self._is_enabled and request.uses_cache):
            return
        num_full = request.num_computed // self._block_tokens
        chain_keys(self._root + request.cache_identity, request.token_ids, self._block_tokens, request.block_keys)
        for place in range(request.num_sealed, num_full):
            for index in range(len(self._pools)):
                self._seal_block(request, index, place)
        self._forget_maker(request, request.block_keys[request.num_sealed : num_full])
        request.num_sealed = num_full

    def count_found(self, request: Request) -> None:
        """Count what the runner of a cache that is not enabled found by itself."""
        if not self._is_enabled:
            self.num_pool_tokens += request.num_cached_tokens

    def finish_loads(self) -> list[Request]:
        """Let go on the requests whose loads have ended; return those that did not get all and must start again."""
        ended = [load for load in self._loads if load.is_done]
        for load in ended:
            self._loads.remove(load)
        return [load.request for load in ended if not self._finish(load)]

    def keep(self, request: Request) -> None:
        """Have the full blocks of a prompt that was computed stored soon, lest they be lost with the process.

        Of layers with a window that is what is needed to go on from the end of the prompt.
        """
        self._protect_windows(request)
        num_cached = request.num_cached_tokens // self._block_tokens
        end = len(request.prompt_ids) // self._block_tokens
        for index, table in enumerate(request.tables if self._stores else ()):
            start = max(num_cached, self._first_wanted(request, index))
            pairs = zip(request.block_keys[start:end], table.block_ids[start:end], strict=True)
            self._unsaved.extend((index, key, block_id) for key, block_id in pairs)

    def save_some(self) -> None:
        """Store as much of what waits for it as one step may; to be called once before each."""
        self._saves_left = _MAX_SAVED_PER_STEP
        batches: list[tuple[list[bytes], list[int]]] = [([], []) for _ in self._stores]
        while self._unsaved and self._saves_left:
            index, key, block_id = self._unsaved.popleft()
            if self._pools[index].find(key) == block_id:
                batches[index][0].append(key)
                batches[index][1].append(block_id)
                self._saves_left -= 1
        for store, (keys, block_ids) in zip(self._stores, batches, strict=True):
            if keys:
                store.save(keys, block_ids)

    def reset(self) -> None:
        """Forget everything but blocks that a load may still write into, and take all others back."""
        self._makers.clear()
        self._unsaved.clear()
        for index, pool in enumerate(self._pools):
            parts = [part for load in self._loads for part in load.parts if part.pool_index == index]
            pool.reset(held=[block_id for part in parts for block_id in part.block_ids])

    def _num_usable(self, keys: Sequence[bytes], *, with_stores: bool = False) -> int:
        """Return after how many blocks a request can go on with what is in the pools, or in them and the stores.

        A pool without a window is the first: where its blocks end, those of a window must end, too, or before.
        """
        for index, pool in enumerate(self._pools):
            is_elsewhere = (self._stores[index].__contains__,) if with_stores else ()
            keys = keys[: pool.num_usable(keys, *is_elsewhere)]
        return len(keys)

    def _load(self, request: Request, match: Match) -> None:
        parts = []
        for index, (pool, found) in enumerate(zip(self._pools, match.found, strict=True)):
            places = [found.first + i for i, block_id in enumerate(found.block_ids) if block_id is None]
            if not places:
                continue
            keys = [request.block_keys[place] for place in places]
            block_ids = [request.tables[index].block_ids[place] for place in places]
            pool.hold(block_ids)  # whatever becomes of the request, nobody may have them before the load ends
            parts.append(LoadPart(index, places, keys, block_ids, self._stores[index].load(keys, block_ids)))
        load = BlockLoad(request, match, parts)
        self._loads.append(load)
        request.load = load
        for part in parts:
            part.result.add_done_callback(lambda _: self.wake())

    def _finish(self, load: BlockLoad) -> bool:
        """Tell whether the request can go on; what came can be found in any case."""
        request = load.request
        is_wanted = request.load is load  # else it was cancelled or preempted, and may even load anew
        for part in load.parts:
            for place in part.places[: part.num_valid] if is_wanted else ():
                self._seal_block(request, part.pool_index, place)
            self._pools[part.pool_index].free(part.block_ids)
        if not is_wanted:
            return True
        request.load = None
        request.uses_store = load.is_complete
        keys = request.block_keys[: load.match.num_blocks]
        if request.times.first_token is None:
            num_blocks = len(keys) if load.is_complete else self._num_usable(keys)
            num_tokens = max(0, num_blocks - load.match.num_ready) * self._block_tokens
            self.num_store_tokens += request.count_cached(num_tokens)
        if load.is_complete:
            self._forget_maker(request, keys)
            self._skip(request, len(keys))
        return load.is_complete

    def _skip(self, request: Request, num_blocks: int) -> None:
        """Go on after blocks that are there."""
        request.num_sealed = num_blocks
        request.num_computed = num_blocks * self._block_tokens

    def _forget_maker(self, request: Request, keys: Sequence[bytes]) -> None:
        for key in keys:
            if self._makers.get(key) is request:
                del self._makers[key]

    def _seal_block(self, request: Request, index: int, place: int) -> None:
        table = request.tables[index]
        table.replace(place, self._pools[index].seal(table.block_ids[place], request.block_keys[place]))

    def _protect_windows(self, request: Request) -> None:
        """Keep what it takes to go on from where a request is now longer than what it leaves behind on its way."""
        for index, table in enumerate(request.tables):
            if self._pools[index].window is not None:
                self._pools[index].protect(table.block_ids[self._first_wanted(request, index) :])

    def _first_wanted(self, request: Request, index: int) -> int:
        """Return the first of the blocks that a request holds which it takes to go on from where it is now."""
        window = self._pools[index].window
        return 0 if window is None else max(request.tables[index].first, window.first_held(request.num_computed))

    def _save_windows(self, request: Request, match: Match) -> None:
        """Store what was found in a window: where one has gone on, others will, and only ends of prompts are kept."""
        for index, (store, found) in enumerate(zip(self._stores, match.found, strict=bool(self._stores))):
            if self._pools[index].window is not None:
                keys = request.block_keys[found.first : match.num_blocks]
                pairs = zip(keys, found.block_ids, strict=True)
                self._unsaved.extend((index, key, id_) for key, id_ in pairs if id_ is not None and key not in store)

    def _save_evicted(self, index: int, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        if self._stores and self._saves_left:
            self._stores[index].save(keys[: self._saves_left], block_ids[: self._saves_left])
            self._saves_left -= min(self._saves_left, len(keys))
