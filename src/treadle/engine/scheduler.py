"""Decides which tokens of which requests the next step computes, and who holds which KV blocks.

Leaves to others: computing (the runner), the text of an answer (the request's output) and telling anyone (the engine).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from treadle.engine.block_pool import BlockPool
from treadle.engine.plan import Chunk, StepPlan, StepResult
from treadle.engine.request import Request, TokenEvent
from treadle.errors import CapacityError, TreadleError, UsageError

__all__ = ["Scheduler"]


class Scheduler:
    """First come, first served, under one token budget per step.

    A request is admitted when the blocks for all its known tokens are free, so only its answer grows; requests that
    decode go before prompts. When the pool is full the youngest request gives its blocks back, to be computed again.
    Every running request is older than every waiting one, so the oldest always advances and nothing can deadlock.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        context: int,
        max_batch_tokens: int = 512,
        max_num_requests: int = 16,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_batch_tokens < max_num_requests:
            raise UsageError(
                f"max_batch_tokens: expected at least max_num_requests ({max_num_requests}), as each may need one "
                f"token in a step, found {max_batch_tokens}"
            )
        self.pool = pool
        self.context = context
        self.max_batch_tokens = max_batch_tokens
        self.max_num_requests = max_num_requests
        self._clock = clock
        self._running: list[Request] = []  # oldest first
        self._waiting: deque[Request] = deque()  # oldest first

    @property
    def running(self) -> tuple[Request, ...]:
        """Return the requests that hold blocks, oldest first."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Return the requests that wait for blocks, oldest first."""
        return tuple(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            UsageError: The prompt is empty or leaves no room for an answer in the context.
            CapacityError: The pool could not hold the request even if it were alone.
        """
        self.check(len(request.prompt_ids), request.max_length)
        self._waiting.append(request)

    def check(self, num_prompt_tokens: int, max_length: int) -> None:
        """Refuse a request that could never finish; raises as ``add`` does."""
        if num_prompt_tokens == 0:
            raise UsageError("the prompt is empty: there is no token to continue from")
        if num_prompt_tokens >= self.context:
            raise UsageError(
                f"the prompt has {num_prompt_tokens} tokens; a context of {self.context} has room for "
                f"{self.context - 1} and the first token of an answer",
                hint="shorten the prompt, or load the model with a larger context",
            )
        needed = self.pool.blocks_for(max_length - 1)  # the last token of an answer is never computed
        if needed > self.pool.num_blocks:
            raise CapacityError(
                f"the request needs {needed} KV blocks of {self.pool.block_tokens} tokens and the pool has "
                f"{self.pool.num_blocks}",
                hint="lower max_tokens, or load the model with a larger context",
            )

    def schedule(self) -> StepPlan:
        """Choose the tokens of the next step and give their requests the blocks for them."""
        num_running = len(self._running)
        chunks = self._decodes()
        is_full = len(self._running) < num_running
        budget = self.max_batch_tokens - len(chunks)
        for request in self._running:
            if budget and request.num_wanted > 1:
                chunks.append(self._chunk(request, budget))
                budget -= chunks[-1].num_tokens
        while budget and not is_full and (admitted := self._try_admit()):
            chunks.append(self._chunk(admitted, budget))
            budget -= chunks[-1].num_tokens
        return StepPlan(tuple(chunks))

    def apply(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """Advance the requests of ``plan`` by what came out of it and free what ended."""
        now = self._clock()
        samples = iter(result.samples)
        events = []
        for chunk in plan.chunks:
            request = chunk.request
            request.num_computed += chunk.num_tokens
            if not chunk.samples:
                continue
            event = request.accept(next(samples))
            events.append(event)
            if request.times.first_token is None:
                request.times.first_token = now
            if event.finish_reason is not None:
                request.times.finished = now
                self.cancel(request)
        return events

    def cancel(self, request: Request) -> None:
        """Forget a request, wherever it is, and free its blocks."""
        if request in self._running:
            self._running.remove(request)
            self._release(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def abort(self, error: TreadleError) -> list[TokenEvent]:
        """End every request with ``error`` and take all blocks back, in whatever state a failed step left them."""
        requests = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self.pool.reset()
        return [request.fail(error) for request in requests]

    def _decodes(self) -> list[Chunk]:
        chunks = []
        index = 0
        while index < len(self._running):  # preempting shortens the list from its end
            request = self._running[index]
            if request.num_wanted == 1 and self._try_grow(request):
                chunks.append(self._chunk(request, 1))
            index += 1
        return chunks

    def _chunk(self, request: Request, budget: int) -> Chunk:
        num_tokens = min(budget, request.num_wanted)
        return Chunk(request, request.num_computed, num_tokens, samples=num_tokens == request.num_wanted)

    def _try_grow(self, request: Request) -> bool:
        """Give ``request`` room for its next token, from the youngest if need be; false if it is that one itself."""
        while self.pool.blocks_for(len(request.token_ids)) > len(request.block_ids):
            block_ids = self.pool.try_allocate(1)
            if block_ids is None:
                youngest = self._running.pop()
                self._release(youngest)
                self._waiting.appendleft(youngest)
                if youngest is request:
                    return False
            else:
                request.block_ids += block_ids
        return True

    def _try_admit(self) -> Request | None:
        if not self._waiting or len(self._running) == self.max_num_requests:
            return None
        request = self._waiting[0]
        needed = self.pool.blocks_for(len(request.token_ids))
        # One block of growth stays free for each running request, lest an admission be undone by the next step.
        if needed + len(self._running) > self.pool.num_free:
            return None
        self._waiting.popleft()
        request.block_ids = self.pool.try_allocate(needed) or []
        self._running.append(request)
        if request.times.started is None:
            request.times.started = self._clock()
        return request

    def _release(self, request: Request) -> None:
        self.pool.free(request.block_ids)
        request.block_ids = []
        request.num_computed = 0
