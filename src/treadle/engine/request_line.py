"""Keeps the line of requests: who runs and holds KV blocks, who waits, and who must make way for whom.

Leaves to others: what the running ones compute (the scheduler) and what blocks hold (``PrefixCache``).
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from treadle.engine.block_pool import BlockPool
from treadle.engine.prefix_cache import Match, PrefixCache
from treadle.engine.request import Request
from treadle.errors import CapacityError

__all__ = ["RequestLine"]

# A batch request stands in line as if it had come so much later; older ones than that go before interactive ones.
_BATCH_PATIENCE_SECONDS = 30.0
_MAX_WAITING = 1024
# So many requests that wait for what others compute are passed over in one step, in search of one that can start.
_MAX_PASSED_OVER = 64

_turn = attrgetter("turn")


class RequestLine:
    """First come, first served; interactive requests before batch requests, until those have waited long.

    Every request has a place in the line, its ``turn``. It starts when the blocks for all its known tokens are free, so
    only its answer grows. Whoever needs a block or a seat may take it from those behind, the last one first, who start
    again later, mostly from the cache. So the first in line always advances and nothing can deadlock.
    """

    def __init__(self, pool: BlockPool, cache: PrefixCache, max_num_running: int) -> None:
        self.running: list[Request] = []  # both in the order of turns
        self.waiting: list[Request] = []
        self.num_preemptions = 0
        self._pool = pool
        self._cache = cache
        self._max_num_running = max_num_running
        self._num_added = 0

    def add(self, request: Request, now: float) -> None:
        """Let a request that came ``now`` wait in its place; raises CapacityError when too many wait already."""
        if len(self.waiting) >= _MAX_WAITING:
            raise CapacityError(
                f"{len(self.waiting)} requests wait already, which is the most that may",
                hint="send fewer at a time, or serve the model on more machines",
            )
        self._num_added += 1
        request.turn = (now + (_BATCH_PATIENCE_SECONDS if request.priority == "batch" else 0.0), self._num_added)
        insort(self.waiting, request, key=_turn)

    def remove(self, request: Request) -> bool:
        """Forget a request, wherever it is, and free its blocks; false if it was in the line no more."""
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return False
        return True

    def clear(self) -> list[Request]:
        """Forget and return all requests and take all blocks back, in whatever state they are."""
        requests = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        self._cache.reset()
        return requests

    def admit(self, now: float) -> None:
        """Start requests in the order of the line, passing over those whose beginning is being computed by another."""
        index = 0
        while index < min(len(self.waiting), _MAX_PASSED_OVER):
            request = self.waiting[index]
            if self._is_awaiting(request):
                index += 1
                continue
            match = self._cache.match(request)
            request.awaited_key = match.awaited_key
            if match.awaited_key is not None:
                continue
            if not self._try_start(request, match, now):
                return
            self.waiting.remove(request)

    def try_grow(self, request: Request) -> bool:
        """Give ``request`` room for its next token, from those behind it if need be; false if it is last itself."""
        while len(request.token_ids) > len(request.block_ids) * self._pool.block_tokens:
            block_ids = self._pool.try_allocate(1)
            if block_ids is not None:
                request.add_blocks(block_ids)
                continue
            victims = self._behind(request)
            self._preempt(victims[-1] if victims else request)
            if not victims:
                return False
        return True

    def _is_awaiting(self, request: Request) -> bool:
        maker = None if request.awaited_key is None else self._cache.maker(request.awaited_key)
        if maker is None:
            return False
        if maker.turn > request.turn:  # who serves two goes when the first of them would
            maker.turn = request.turn
            self.running.sort(key=_turn)
        return True

    def _try_start(self, request: Request, match: Match, now: float) -> bool:
        num_new = self._pool.blocks_for(len(request.token_ids)) - len(match.block_ids)
        if not self._make_room(request, match, num_new):
            return False
        self._pool.hold(match.block_ids, is_hit=True)
        request.add_blocks(match.block_ids)
        request.add_blocks(self._pool.try_allocate(num_new) or ())
        self._cache.begin(request, match)
        insort(self.running, request, key=_turn)
        if request.times.started is None:
            request.times.started = now
        return True

    def _make_room(self, request: Request, match: Match, num_new: int) -> bool:
        """Preempt those behind ``request`` until it can start; false, preempting no one, if that were not enough."""
        victims = self._behind(request)
        num_gained = sum(len(victim.block_ids) for victim in victims)
        while True:
            num_idle = sum(self._pool.num_holders(block_id) == 0 for block_id in match.block_ids)
            # One block of growth stays free for each running request, lest this be undone by the next step.
            num_missing = num_new + num_idle + len(self.running) - self._pool.num_free
            if num_missing <= 0 and len(self.running) < self._max_num_running:
                return True
            if not victims or num_missing > num_gained:
                return False
            num_gained -= len(victims[-1].block_ids)
            self._preempt(victims.pop())

    def _behind(self, request: Request) -> list[Request]:
        """Return who must make way for ``request``: a request that loads has no use of its blocks to give."""
        return [other for other in self.running if other.turn > request.turn and other.load is None]

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        insort(self.waiting, request, key=_turn)
        self.num_preemptions += 1

    def _release(self, request: Request) -> None:
        self._cache.end(request)
        self._pool.free(request.take_blocks())
