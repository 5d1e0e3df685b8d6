"""Decides which tokens of which requests the next step computes, and who holds which KV blocks.

Leaves to others: computing (the runner), what blocks hold (``PrefixCache``), the text of an answer (the request's
output) and telling anyone (the engine).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from treadle.engine.batching import DEFAULT_SLOWDOWN, check_slowdown
from treadle.engine.counters import PoolCounters, SchedulerCounters
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.prefix_cache import PrefixCache
from treadle.engine.plan import Chunk, StepPlan, StepResult
from treadle.engine.request import AnswerRequest, Request, TokenEvent
from treadle.engine.request_line import RequestLine
from treadle.engine.step_costs import StepCosts
from treadle.errors import CapacityError, ContextError, DeadlineError, TreadleError, UsageError

__all__ = ["Scheduler"]

_TILE_TOKENS = 8  # how many tokens the native core multiplies by one piece of the weights


class Scheduler:
    """Closes the gap between known and computed tokens, under one token budget per step, answers before prompts.

    Args:
        pools: The KV blocks, as ``PrefixCache`` wants them.
        context: Most tokens of one request.
        max_batch_tokens: Most tokens of one step.
        max_num_requests: Most requests that hold blocks at once.
        slowdown: With interactive answers under way, prompts make a step at most about so many times as long as it
            were without them; ``None`` fills every step, which is best for throughput.
        cuts_prompts: Whether a prompt may be computed in several steps. Otherwise one that is longer than
            ``max_batch_tokens`` has a step of its own.
        cache: Where to look for what was computed before; by default the pools alone.
        clock: Seconds, never going back.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        *,
        context: int,
        max_batch_tokens: int = 512,
        max_num_requests: int = 16,
        slowdown: float | None = DEFAULT_SLOWDOWN,
        cuts_prompts: bool = True,
        cache: PrefixCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_batch_tokens < max_num_requests:
            raise UsageError(
                f"max_batch_tokens: expected at least max_num_requests ({max_num_requests}), as each may need one "
                f"token in a step, found {max_batch_tokens}"
            )
        check_slowdown(slowdown)
        self.pools = pools
        self.cache = cache or PrefixCache(pools)
        self.context = context
        self.max_batch_tokens = max_batch_tokens
        self.max_num_requests = max_num_requests
        self.slowdown = slowdown
        self.cuts_prompts = cuts_prompts
        self._clock = clock
        self._costs = StepCosts()
        self._line = RequestLine(pools, self.cache, max_num_requests)
        self._step_began = 0.0
        self._is_stalled = False
        self._num_steps = 0
        self._num_missed_tokens = 0
        self._num_prompt_tokens = 0
        self._num_answer_tokens = 0

    @property
    def running(self) -> tuple[Request, ...]:
        """Return the requests that hold blocks, first in line first."""
        return tuple(self._line.running)

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Return the requests that hold none yet, or no more, first in line first."""
        return tuple(self._line.waiting)

    @property
    def has_work(self) -> bool:
        """Tell whether there is anything left to do."""
        return bool(self._line.running or self._line.waiting or self.cache.has_unsaved)

    @property
    def num_requests(self) -> int:
        """Return how many requests run or wait."""
        return len(self._line.running) + len(self._line.waiting)

    def idle_seconds(self) -> float | None:
        """Return how long no step would do anything unless something happens: 0 not at all, ``None`` for ever."""
        if self.cache.has_unsaved or not self._is_stalled:
            return 0.0 if self.has_work else None
        deadlines = [
            request.deadline for request in (*self._line.running, *self._line.waiting) if request.deadline is not None
        ]
        return max(0.0, min(deadlines) - self._clock()) if deadlines else None

    def counters(self) -> SchedulerCounters:
        """Return how things stand; may be called from any thread."""
        return SchedulerCounters(
            num_running=len(self._line.running),
            num_waiting=len(self._line.waiting),
            pools=[PoolCounters(pool.num_blocks, pool.num_used, pool.num_cached) for pool in self.pools],
            num_pool_hit_tokens=self.cache.num_pool_tokens,
            num_store_hit_tokens=self.cache.num_store_tokens,
            num_missed_tokens=self._num_missed_tokens,
            num_prompt_tokens_computed=self._num_prompt_tokens,
            num_answer_tokens_computed=self._num_answer_tokens,
            num_preemptions=self._line.num_preemptions,
            num_evicted_blocks=sum(pool.num_evicted for pool in self.pools),
            num_steps=self._num_steps,
        )

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            UsageError: The prompt is empty or leaves no room for an answer in the context.
            CapacityError: The pool could not hold the request even if it were alone, or too many wait already.
        """
        self.check(len(request.prompt_ids), request.max_length if isinstance(request, AnswerRequest) else None)
        self._line.add(request, self._clock())
        self._is_stalled = False

    def check(self, num_prompt_tokens: int, max_length: int | None) -> None:
        """Refuse a request that could never finish; raises as ``add`` does.

        Args:
            num_prompt_tokens: The length of the prompt.
            max_length: The most tokens of prompt and answer together, or ``None`` where no answer is wanted.
        """
        if num_prompt_tokens == 0:
            raise UsageError("the prompt is empty: there is no token to continue from", field="prompt")
        room = self.context if max_length is None else self.context - 1
        if num_prompt_tokens > room:
            raise ContextError(
                f"the prompt has {num_prompt_tokens} tokens; a context of {self.context} has room for {room}"
                + ("" if max_length is None else " and the first token of an answer"),
                hint="shorten the prompt, or load the model with a larger context",
            )
        # The last token of an answer is never computed.
        for pool in self.pools:
            needed = pool.end_for(num_prompt_tokens if max_length is None else max_length - 1)
            if needed > pool.num_blocks:
                raise CapacityError(
                    f"the request needs {needed} KV blocks of {pool.block_tokens} tokens and the pool has "
                    f"{pool.num_blocks}",
                    hint="lower max_tokens, or load the model with a larger context",
                )

    def expire(self) -> list[TokenEvent]:
        """End the requests whose deadline has passed, running or not; to be called before each step."""
        late = [
            r
            for r in (*self._line.running, *self._line.waiting)
            if r.deadline is not None and r.deadline <= self._clock()
        ]
        return [self._end_late(request) for request in late]

    def schedule(self) -> StepPlan:
        """Choose the tokens of the next step and give their requests the blocks for them."""
        self._step_began = self._clock()
        self.cache.save_some()
        for request in self.cache.finish_loads():
            self._line.restart(request)
        if self._line.waiting:
            self._line.admit(self._step_began)
        chunks = self._decodes()
        num_decodes = len(chunks)
        if len(self._line.running) > num_decodes:
            self._add_prompts(chunks)
        self._is_stalled = not chunks
        return StepPlan(chunks, num_decodes)

    def apply(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """Advance the requests of ``plan`` by what came out of it and free what ended."""
        now = self._clock()
        self._learn(plan, now - self._step_began)
        block_tokens = self.pools[0].block_tokens
        samples = iter(result.samples)
        events = []
        for request, start, num_tokens, is_sampled, _ in plan.chunks:
            request.num_computed = start + num_tokens
            if request.num_computed >= (request.num_sealed + 1) * block_tokens:
                self.cache.seal(request)
            event = request.accept(next(samples) if is_sampled else None)
            if event is None:
                continue
            events.append(event)
            if request.times.first_token is None:
                request.times.first_token = now
                if request.uses_cache:
                    self._num_missed_tokens += len(request.prompt_ids) - request.num_cached_tokens
                    self.cache.count_found(request)
                if is_sampled:
                    self.cache.keep(request)
            if event.finish_reason is not None:
                request.times.finished = now
                self.cancel(request)
        return events

    def cancel(self, request: Request) -> None:
        """Forget a request, wherever it is, and free its blocks."""
        self._line.remove(request)
        request.adapter = None

    def abort(self, error: TreadleError) -> list[TokenEvent]:
        """End every request with ``error`` and take all blocks back, in whatever state a failed step left them."""
        cleared = self._line.clear()
        for request in cleared:
            request.adapter = None
        return [request.fail(error) for request in cleared]

    def _decodes(self) -> list[Chunk]:
        """Give every running request room for its known tokens, and return a chunk for each that wants one token."""
        chunks = []
        index = 0
        while index < len(self._line.running):  # preempting shortens the list behind this place
            request = self._line.running[index]
            num_computed = request.num_computed
            # Also one that wants more than a token may have grown: by tokens that a constraint forced.
            if request.load is None and self._line.try_grow(request) and request.is_decoding:
                chunks.append(Chunk(request, num_computed, 1, True))
            index += 1
        return chunks

    def _add_prompts(self, chunks: list[Chunk]) -> None:
        """Fill the step with tokens of prompts, after those that a guide has put into answers.

        A prompt may be overtaken by shorter ones for as long as it takes itself, so that a short question does not
        wait behind a book, nor the book for ever.
        """
        budget = self._prompt_budget(chunks)
        token_seconds = self._costs.prompt_seconds
        prompts = [request for request in self._line.running if not request.is_decoding and request.load is None]
        prompts.sort(key=lambda r: (r.times.first_token is None, r.turn[0] + r.num_wanted * token_seconds))
        for request in prompts:
            if budget <= 0:
                break
            num_tokens = request.num_wanted
            if num_tokens > budget:
                if self.cuts_prompts:
                    num_tokens = budget
                elif chunks:
                    continue
            chunks.append(request.chunk(num_tokens))
            budget -= num_tokens

    def _prompt_budget(self, decodes: list[Chunk]) -> int:
        room = self.max_batch_tokens - len(decodes)
        if self.slowdown is None or all(chunk.request.priority == "batch" for chunk in decodes):
            return room
        num_tokens = self._costs.prompt_tokens(len(decodes), self.slowdown)
        if num_tokens is None:
            return room
        num_tokens = min(room, num_tokens)
        # A tile begun costs nearly a whole one: a few more tokens would delay the answers and gain next to nothing.
        num_aligned = (len(decodes) + num_tokens) // _TILE_TOKENS * _TILE_TOKENS - len(decodes)
        return num_aligned if num_aligned >= 0.75 * num_tokens else num_tokens

    def _learn(self, plan: StepPlan, seconds: float) -> None:
        if not plan.chunks:
            return
        num_prompt_tokens = plan.num_tokens - plan.num_decodes
        self._costs.record(plan.num_decodes, num_prompt_tokens, seconds)
        self._num_steps += 1
        self._num_prompt_tokens += num_prompt_tokens
        self._num_answer_tokens += plan.num_decodes

    def _end_late(self, request: Request) -> TokenEvent:
        now = self._clock()
        self.cancel(request)
        request.times.finished = now
        seconds, num_answered = now - request.times.created, len(request.token_ids) - len(request.prompt_ids)
        return request.fail(
            DeadlineError(
                f"the request's time was up after {seconds:.1f} s, with {num_answered} tokens answered"
                + ("" if request.times.started else ", before it could start"),
                hint="allow more time, ask for fewer tokens, or send fewer requests at once",
            )
        )
