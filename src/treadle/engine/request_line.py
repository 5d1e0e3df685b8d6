"""Keeps the line of requests: who runs and holds KV blocks, who waits, and who must make way for whom.

Leaves to others: what the running ones compute (the scheduler) and what blocks hold (``PrefixCache``).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.prefix_cache import PrefixCache
from treadle.engine.kv.prefix_match import Found, Match
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

    Every request has a place in the line, its ``turn``. It starts when the blocks for all its known tokens are free, or
    in a pool with a window the most of them that it needs at once, so only its answer grows. Whoever needs a block or a
    seat may take it from those behind, the last one first, who start again later, mostly from the cache. So the first
    in line always advances and nothing can deadlock.
    """

    def __init__(self, pools: Sequence[BlockPool], cache: PrefixCache, max_num_running: int) -> None:
        self.running: list[Request] = []  # both in the order of turns
        self.waiting: list[Request] = []
        self.num_preemptions = 0
        self._pools = pools
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

    def restart(self, request: Request) -> None:
        """Let a running request wait for its turn again."""
        self.running.remove(request)
        self._release(request)
        insort(self.waiting, request, key=_turn)

    def try_grow(self, request: Request) -> bool:
        """Give ``request`` room for its next tokens, from those behind it if need be; false if it is last itself.

        What has come out of sight is given back first.
        """
        num_tokens = len(request.token_ids)
        for pool, table in zip(self._pools, request.tables, strict=True):
            if pool.window is not None:
                pool.free(table.drop_before(pool.window.first_held(request.num_computed)))
            while len(table.block_ids) < pool.end_for(num_tokens, table.first):
                block_ids = pool.try_allocate(1)
                if block_ids is not None:
                    table.add(block_ids)
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
        num_new = [
            pool.end_for(len(request.token_ids), found.first) - found.first - len(found.held)
            for pool, found in zip(self._pools, match.found, strict=True)
        ]
        if not self._make_room(request, match, num_new):
            return False
        for pool, found, count in zip(self._pools, match.found, num_new, strict=True):
            pool.hold(found.held, is_hit=True)
            request.tables.append(found.table(pool.try_allocate(count) or ()))
        self._cache.begin(request, match)
        insort(self.running, request, key=_turn)
        if request.times.started is None:
            request.times.started = now
        return True

    def _make_room(self, request: Request, match: Match, num_new: Sequence[int]) -> bool:
        """Preempt those behind ``request`` until it can start; false, preempting no one, if that were not enough.

        ``num_new`` are the blocks it needs of each pool beside those of ``match``.
        """
        victims = self._behind(request)
        num_gained = [sum(victim.tables[index].num_held for victim in victims) for index in range(len(num_new))]
        while True:
            num_missing = list(map(self._num_missing, self._pools, match.found, num_new))
            if max(num_missing) <= 0 and len(self.running) < self._max_num_running:
                return True
            if not victims or any(missing > gained for missing, gained in zip(num_missing, num_gained, strict=True)):
                return False
            victim = victims.pop()
            num_gained = [gained - table.num_held for gained, table in zip(num_gained, victim.tables, strict=True)]
            self._preempt(victim)

    def _num_missing(self, pool: BlockPool, found: Found, num_new: int) -> int:
        # Blocks in a window are shared for a while only: who holds them now leaves them at another time.
        num_taken = sum(pool.window is not None or pool.num_holders(block_id) == 0 for block_id in found.held)
        # One block of growth stays free for each running request, lest this be undone by the next step.
        return num_new + num_taken + len(self.running) - pool.num_free

    def _behind(self, request: Request) -> list[Request]:
        """Return who must make way for ``request``: a request that loads has no use of its blocks to give."""
        return [other for other in self.running if other.turn > request.turn and other.load is None]

    def _preempt(self, request: Request) -> None:
        self.restart(request)
        self.num_preemptions += 1

    def _release(self, request: Request) -> None:
        self._cache.end(request)
        for pool, table in zip(self._pools, request.take_tables(), strict=True):
            pool.free(table.held)
