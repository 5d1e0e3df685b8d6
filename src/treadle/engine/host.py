"""A loaded model and the thread that computes it: makes requests of prompts and hands them over.

Leaves to others: loading (``engine.load``), scheduling (``engine.scheduler``) and the form answers take (``LLM``,
``AsyncLLM``).
"""

from __future__ import annotations

import itertools
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from treadle.engine.adapters import Adapters
from treadle.engine.answer import Answer
from treadle.engine.completion import TokenLogprob
from treadle.engine.conversation import Conversation
from treadle.engine.embedding import EmbeddingOptions, EmbeddingRequest, answers_refused
from treadle.engine.engine import Engine
from treadle.engine.engine_thread import EngineThread, closed_error
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.block_store import TieredStore, stats_of
from treadle.engine.kv.prefix_cache import PrefixCache
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_BATCH_TOKENS
from treadle.engine.output import TextOutput
from treadle.engine.plan import Sample
from treadle.engine.prepare import prepare_conversation
from treadle.engine.prompt import EncodedPrompt, Prompt, PromptReader
from treadle.engine.request import AnswerRequest, Priority, Request, Sampler, Times, TokenEvent
from treadle.engine.sampling import SamplingParams, choice_seed
from treadle.engine.scheduler import Scheduler
from treadle.engine.service import Service
from treadle.engine.statistics import EngineStats, MeteredRunner, StepMeter
from treadle.engine.structured.grammar import Grammars
from treadle.engine.structured.guide import Guide
from treadle.errors import UsageError
from treadle.hardware.memory import resident_memory_bytes

if TYPE_CHECKING:
    from treadle.engine.load import LoadedModel, LoadReport
    from treadle.engine.plan import ModelRunner
    from treadle.engine.structured.form import AnswerForm
    from treadle.engine.structured.guide import Constraint

__all__ = ["ModelHost"]


class ModelHost:
    """A model in memory that any number of threads may use.

    Args:
        loaded: What ``load_model`` gave.
        after_step: Called in the engine's thread when all events of a step are delivered. It must not hold the host,
            or dropping the host would not end that thread.
    """

    def __init__(self, loaded: LoadedModel, *, after_step: Callable[[], None] | None = None) -> None:
        self.report = loaded.report
        self.tokenizer = loaded.tokenizer
        self.grammars = Grammars(loaded.tokenizer)
        self.prompts = PromptReader.of(loaded)
        pools = _block_pools(self.report)
        self.scheduler = Scheduler(
            pools,
            cache=PrefixCache(pools, stores=loaded.block_stores, is_enabled=loaded.shares_blocks),
            context=self.context,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_num_requests=self.report.batching.max_num_requests,
            slowdown=self.report.batching.slowdown,
            cuts_prompts=not self.report.embeds_only,
        )
        self._runner: ModelRunner | None = loaded.runner
        self.adapters = Adapters(
            loaded.runner.load_adapter,
            max_num=self.report.max_adapters,
            max_bytes=self.report.memory_plan.adapter_bytes,
        )
        self._ids = itertools.count()
        self._stores = loaded.block_stores
        self._meter = meter = StepMeter(self.report.work)
        self.cores = cores = loaded.cores
        self._watch = loaded.watch
        engine = Engine(self.scheduler, MeteredRunner(loaded.watch or loaded.runner, meter))

        def end_step() -> None:
            if after_step is not None:
                after_step()
            meter.end()

        def held_seconds() -> float:
            if cores is None:
                return 0.0
            cores.note_requests(engine.scheduler.num_requests)
            return cores.held_seconds()

        self.thread = EngineThread(engine, before_step=meter.begin, after_step=end_step, held_seconds=held_seconds)
        if cores is not None:
            cores.set_wake(self.thread.wake)
        # Also runs when the object is dropped and at exit, where a thread inside native code would crash Python.
        self._end = weakref.finalize(self, _end, self.thread, loaded.block_stores)

    @property
    def context(self) -> int:
        """Return the most tokens that prompt and answer may have together."""
        return self.report.memory_plan.context

    def max_length(self, prompt: EncodedPrompt, params: SamplingParams) -> int:
        """Return the most tokens that a prompt and its answer may have.

        Raises:
            UsageError: The model gives no answers, or the prompt is empty or leaves no room for one in the context.
            CapacityError: The KV blocks could not hold it even if it were alone.
        """
        if not self.report.gives_answers:
            raise answers_refused(self.report.name, ranks=self.report.ranks)
        num_prompt_tokens = len(prompt.token_ids)
        limit = self.context if params.max_tokens is None else num_prompt_tokens + params.max_tokens
        max_length = min(self.context, limit)
        self.scheduler.check(num_prompt_tokens, max_length)
        return max_length

    def submit(
        self, prompt: EncodedPrompt, params: SamplingParams, service: Service, deliver: Callable[[TokenEvent], None]
    ) -> list[Answer]:
        """Queue a prompt and return the answers to come, as many as ``params.n``; raises as ``max_length`` does.

        ``deliver`` hears the events of all of them in the engine's thread and must neither block nor raise.
        """
        max_length = self.max_length(prompt, params)
        if self._runner is None:
            raise closed_error()
        service = self._with_form(service, params)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        spell = None if params.logprobs is None else self._speller(prompt)
        answers = []
        for index in range(params.n):
            sampler = self._runner.create_sampler(params, choice_seed(seed, index), prompt.token_ids)
            request = self._request(prompt, params, service, sampler=sampler, max_length=max_length, deliver=deliver)
            request.begin()
            parser = None if prompt.parser is None else prompt.parser()
            answers.append(Answer(request, index=index, spell=spell, parser=parser))
        for answer in answers:
            self.thread.submit(answer.request)
        return answers

    def prepare(
        self, prompt: Prompt | Conversation, form: AnswerForm | None
    ) -> tuple[EncodedPrompt, Callable[[], Constraint] | None]:
        """Render, encode and compile, which may take long; any thread may do it.

        Raises:
            TreadleError: The prompt, a message, a tool, the form or the template is at fault.
        """
        if isinstance(prompt, Conversation):
            encoded, rules = prepare_conversation(self.prompts, prompt, form)
            return encoded, None if rules is None else self.grammars.compile(rules).constraint
        return self.prompts.read(prompt), None if form is None else self.grammars.form(form).constraint

    def check_embedding(self, prompt: EncodedPrompt, options: EmbeddingOptions) -> None:
        """Refuse an input that could never be embedded.

        Raises:
            UsageError: The input is empty or too long for the context, or the model has no such vectors.
            CapacityError: The KV blocks could not hold it even if it were alone.
        """
        if self._runner is None:
            raise closed_error()
        options.check(self._runner.hidden_size, self.report)
        self.scheduler.check(len(prompt.token_ids), None)

    def submit_embedding(
        self,
        prompt: EncodedPrompt,
        options: EmbeddingOptions,
        deliver: Callable[[TokenEvent], None],
        *,
        priority: Priority,
        deadline: float | None,
    ) -> EmbeddingRequest:
        """Queue an input that ``check_embedding`` has passed; its one event is the last.

        ``deliver`` hears it as in ``submit``; ``deadline`` is on the clock of ``time.perf_counter``.
        """
        if self._runner is None:
            raise closed_error()
        request = EmbeddingRequest(
            request_id=next(self._ids),
            prompt_ids=prompt.token_ids,
            deliver=deliver,
            priority=priority,
            deadline=deadline,
            times=Times(created=time.perf_counter()),
            state_sum=np.zeros(self._runner.hidden_size),
            pooling=options.pooling or self.report.pooling,
            has_head=self.report.ranks,
        )
        self.thread.submit(request)
        return request

    def cancel(self, request: Request) -> None:
        """Forget a request and free what it holds before the next step; does nothing for one that has ended."""
        self.thread.cancel(request)

    def stats(self) -> EngineStats:
        """Return how the engine is doing."""
        return EngineStats(
            scheduler=self.scheduler.counters(),
            store=stats_of(self._stores),
            steps=self._meter.stats(),
            resident_bytes=resident_memory_bytes(),
            num_threads=self.report.thread_plan.num_threads if self._watch is None else self._watch.num_threads,
        )

    def close(self) -> None:
        """End what still runs and give the model's memory back; may be called twice."""
        self._end()
        self.adapters.close()
        self._runner = None

    def _with_form(self, service: Service, params: SamplingParams) -> Service:
        """Make the form of the answer its constraint."""
        if params.form is None:
            return service
        if service.constraint is not None:
            raise UsageError("an answer has either a form or a constraint, and both were given")
        return replace(service, constraint=self.grammars.form(params.form).constraint)

    def _speller(self, prompt: EncodedPrompt) -> Callable[[Sequence[Sample]], list[TokenLogprob]]:
        """Return what reports log-probabilities; what only ends the answer is no part of one that is read."""
        hidden_ids = frozenset() if prompt.parser is None else self.tokenizer.eog_ids

        def spell(token_id: int, logprob: float, top: Sequence[tuple[int, float]] = ()) -> TokenLogprob:
            data = self.tokenizer.token_bytes(token_id)
            tops = tuple(spell(*each) for each in top)
            return TokenLogprob(token_id, data.decode(errors="replace"), data, logprob, tops)

        def spell_all(samples: Sequence[Sample]) -> list[TokenLogprob]:
            return [spell(s.token_id, s.logprob, s.top_logprobs) for s in samples if s.token_id not in hidden_ids]

        return spell_all

    def _request(
        self,
        prompt: EncodedPrompt,
        params: SamplingParams,
        service: Service,
        *,
        sampler: Sampler,
        max_length: int,
        deliver: Callable[[TokenEvent], None],
    ) -> AnswerRequest:
        end_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            end_ids |= self.tokenizer.eog_ids
        guide = None
        if service.constraint is not None or params.min_tokens > 0:
            guide = Guide(
                sampler,
                vocab_size=self.tokenizer.vocab_size,
                constraint=service.constraint() if service.constraint is not None else None,
                end_ids=end_ids,
                min_tokens=params.min_tokens,
                takes_forced=params.logprobs is None,
            )
        now = time.perf_counter()
        # A chat's answer is a text of its own; a prompt's answer goes on from the prompt.
        stream = self.tokenizer.stream(continuation=not prompt.is_chat, shown_ids=prompt.shown_ids)
        return AnswerRequest(
            request_id=next(self._ids),
            prompt_ids=prompt.token_ids,
            max_length=max_length,
            end_ids=end_ids,
            sampler=sampler,
            output=TextOutput(stream, params.stop_strings, min_tokens=params.min_tokens),
            deliver=deliver,
            priority=service.priority,
            deadline=None if service.timeout is None else now + service.timeout,
            guide=guide,
            adapter=None if service.adapter is None else self.adapters.find(service.adapter),
            times=Times(created=now),
        )


def _block_pools(report: LoadReport) -> list[BlockPool]:
    """Return the KV blocks; an encoder, which keeps nothing between steps, has seats that hold a text of any length."""
    if not report.embeds_only:
        return [BlockPool(each.num_blocks, KV_BLOCK_TOKENS, window=each.window) for each in report.memory_plan.pools]
    # A seat is never full; as many again stay free, for texts that grow as answers do.
    return [BlockPool(2 * report.batching.max_num_requests, report.memory_plan.context + 1)]


def _end(thread: EngineThread, block_stores: Sequence[TieredStore]) -> None:
    thread.close()
    for store in block_stores:
        store.close()
