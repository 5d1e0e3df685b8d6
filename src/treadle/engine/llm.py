"""The Python API: load a model, ask it, get answers.

Leaves to others: loading (``engine.load``), scheduling (``engine.scheduler``) and the thread that computes.
"""

from __future__ import annotations

import itertools
import secrets
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard, cast, overload

from treadle.engine.answer import CompletionStream, Mailbox
from treadle.engine.block_pool import BlockPool
from treadle.engine.completion import ChatMessage, Completion
from treadle.engine.engine import Engine
from treadle.engine.engine_thread import EngineThread, closed_error
from treadle.engine.load import load_model
from treadle.engine.memory_plan import KV_BLOCK_TOKENS, MAX_BATCH_TOKENS, MAX_NUM_REQUESTS
from treadle.engine.output import TextOutput
from treadle.engine.request import Request, Times
from treadle.engine.sampling import SamplingParams
from treadle.engine.scheduler import Scheduler
from treadle.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from treadle.engine.runner import NativeRunner

__all__ = ["LLM"]

# How many requests of one list the scheduler knows at a time: enough to choose from, whatever the length of the list.
_MAX_PENDING = 4 * MAX_NUM_REQUESTS

Prompt = str | list[int]
Messages = Sequence[ChatMessage | Mapping[str, Any]]


class LLM:
    """A model in memory. Any number of threads may ask it; their requests are computed together.

    Use it as a context manager, or call ``close``, to give its memory back.

    Args:
        model: A catalog name such as "smollm2:135m", "hf:org/repo[:quant]", a URL, or the path of a GGUF file. What is
            not on this machine is pulled into the store first.
        context: Most tokens of prompt and answer together; by default the smallest of the model's own, 8192 and what
            fits in the memory this process may use.
        memory: Bytes, or text such as "6GiB", for weights, KV blocks and caches together; KV blocks get what the rest
            leaves. By default ``TREADLE_MEMORY``, or else as much as is usual within what is free.
        threads: Threads that compute; by default the physical cores this process may use.
        mlock: Keep the model out of swap; warns (``RuntimeWarning``) and goes on where the system forbids it.
        isa: Name of the kernels to use ("ref", "avx2", ...); by default the best this CPU runs, or ``TREADLE_ISA``.
        progress: Called while the weights load with the bytes done and the bytes in all.

    Raises:
        UsageError: There is no such model or file, or a setting is out of range.
        DownloadError: The model could not be fetched.
        ModelFileError: The file is broken or of a kind Treadle does not know.
        CapacityError: Weights or context do not fit in memory; says the largest context that does.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        context: int | None = None,
        memory: int | str | None = None,
        threads: int | None = None,
        mlock: bool = False,
        isa: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        loaded = load_model(
            model, context=context, memory=memory, threads=threads, mlock=mlock, isa=isa, progress=progress
        )
        self.report = loaded.report
        self._tokenizer = loaded.tokenizer
        self._template = loaded.template
        self._runner: NativeRunner | None = loaded.runner
        self._ids = itertools.count()
        self._scheduler = Scheduler(
            BlockPool(self.report.memory_plan.num_blocks, KV_BLOCK_TOKENS),
            context=self.context,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_num_requests=MAX_NUM_REQUESTS,
        )
        self._thread = EngineThread(Engine(self._scheduler, loaded.runner))
        # Also runs when the object is dropped and at exit, where a thread inside native code would crash Python.
        self._end = weakref.finalize(self, self._thread.close)

    @property
    def context(self) -> int:
        """Return the most tokens that prompt and answer may have together."""
        return self.report.memory_plan.context

    @property
    def has_chat_template(self) -> bool:
        """Tell whether the model's file carries the template that ``chat`` needs."""
        return self._template is not None

    @overload
    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], params: SamplingParams | None = None
    ) -> list[Completion]: ...
    def generate(
        self, prompt: Prompt | list[str] | list[list[int]], params: SamplingParams | None = None
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of a list of prompts in one batch.

        A prompt is text, whose control tokens are plain text, or a list of token ids. Answers come in the order of the
        prompts. In a list an answer that failed has the ``finish_reason`` "error"; a single one raises its error.

        Raises:
            UsageError: A prompt is empty or too long for the context, or the model was closed.
            CapacityError: A prompt and its answer could never fit in the KV blocks.
        """
        if _is_prompt(prompt):
            return _raise_error(self._answer([self._prompt_ids(prompt)], params, is_chat=False)[0])
        prompts = prompt if isinstance(prompt, Sequence) else [prompt]
        return self._answer([self._prompt_ids(each) for each in prompts], params, is_chat=False)

    def chat(self, messages: Messages, params: SamplingParams | None = None, **variables: Any) -> Completion:
        """Answer a conversation, rendered with the model's own chat template.

        Args:
            messages: The turns so far, as mappings with "role" and "content".
            params: How to sample; by default ``SamplingParams()``.
            variables: Given to the template as they are, such as ``tools`` or ``enable_thinking``.

        Raises:
            TemplateError: The template refused the messages.
            UsageError: The model has no template or was closed, or the conversation is too long for the context.
        """
        return _raise_error(self._answer([self._chat_ids(messages, variables)], params, is_chat=True)[0])

    def stream(
        self, prompt: Prompt | Messages, params: SamplingParams | None = None, **variables: Any
    ) -> CompletionStream:
        """Answer a prompt, or a conversation if given messages, chunk by chunk.

        The last chunk carries the whole ``completion``. Closing the iterator early frees the request. Raises as
        ``generate`` and ``chat`` do.
        """
        is_chat = not _is_prompt(prompt)
        if _is_prompt(prompt):
            if variables:
                raise UsageError(f"stream: {', '.join(variables)} is for the chat template, but a prompt has none")
            prompt_ids = self._prompt_ids(prompt)
        else:
            prompt_ids = self._chat_ids(cast(Messages, prompt), variables)
        params = params or SamplingParams()
        [max_length] = self._checked_lengths([prompt_ids], params)
        return self._submit(prompt_ids, max_length, params, is_chat=is_chat, is_streamed=True)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of ``text``, as ``generate`` takes them; control tokens in it are plain text."""
        return self._tokenizer.encode(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``; control tokens have none."""
        return self._tokenizer.decode(list(token_ids))

    def close(self) -> None:
        """End what still runs and give the model's memory back; may be called twice."""
        self._end()
        self._runner = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _prompt_ids(self, prompt: object) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        if not isinstance(prompt, Sequence) or not all(isinstance(token_id, int) for token_id in prompt):
            raise UsageError(
                f"prompt: expected text or a list of token ids, found {prompt!r:.80}", hint="`chat` takes messages"
            )
        vocab_size = self._tokenizer.vocab_size
        for token_id in prompt:
            if not 0 <= token_id < vocab_size:
                raise UsageError(f"prompt: {token_id} is not a token id, expected 0 to {vocab_size - 1}")
        return list(prompt)

    def _chat_ids(self, messages: Messages, variables: Mapping[str, Any]) -> list[int]:
        if self._template is None:
            raise UsageError(
                f"{self.report.name} has no chat template, so it cannot tell whose turn a message is",
                hint="use `generate`, or `treadle run --raw`, to continue plain text",
            )
        return self._tokenizer.encode_prompt(self._template.render(messages, **variables))

    def _answer(
        self, prompts: Sequence[list[int]], params: SamplingParams | None, *, is_chat: bool
    ) -> list[Completion]:
        params = params or SamplingParams()
        lengths = self._checked_lengths(prompts, params)
        completions: list[Completion] = []
        pending: deque[CompletionStream] = deque()
        try:
            for prompt_ids, max_length in zip(prompts, lengths, strict=True):
                if len(pending) == _MAX_PENDING:
                    completions.append(pending.popleft().wait())
                pending.append(self._submit(prompt_ids, max_length, params, is_chat=is_chat, is_streamed=False))
            while pending:
                completions.append(pending.popleft().wait())
        finally:
            for stream in pending:
                stream.close()
        return completions

    def _checked_lengths(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[int]:
        """Return the most tokens each prompt and its answer may have; raises for what could never be served."""
        lengths = []
        for index, prompt_ids in enumerate(prompts):
            limit = self.context if params.max_tokens is None else len(prompt_ids) + params.max_tokens
            lengths.append(min(self.context, limit))
            try:
                self._scheduler.check(len(prompt_ids), lengths[-1])
            except (CapacityError, UsageError) as error:
                if len(prompts) == 1:
                    raise
                raise type(error)(f"prompt {index} of the list: {error.args[0]}", hint=error.hint) from None
        return lengths

    def _submit(
        self, prompt_ids: list[int], max_length: int, params: SamplingParams, *, is_chat: bool, is_streamed: bool
    ) -> CompletionStream:
        if self._runner is None:
            raise closed_error()
        mailbox = Mailbox(wakes_for_each=is_streamed)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        request = Request(
            request_id=next(self._ids),
            prompt_ids=prompt_ids,
            max_length=max_length,
            end_ids=frozenset() if params.ignore_eos else self._tokenizer.eog_ids,
            sampler=self._runner.create_sampler(params, seed, prompt_ids),
            # A chat's answer is a text of its own; a prompt's answer goes on from the prompt.
            output=TextOutput(self._tokenizer.stream(continuation=not is_chat), params.stop_strings),
            deliver=mailbox.deliver,
            times=Times(created=time.perf_counter()),
        )
        self._thread.submit(request)
        return CompletionStream(
            request,
            mailbox,
            cancel=self._cancel,
            token_text=self._tokenizer.token_text,
            has_logprobs=params.logprobs is not None,
        )

    def _cancel(self, request: Request) -> None:
        self._thread.cancel(request)  # a bound method of this object, so that an open stream keeps its model alive


def _is_prompt(prompt: object) -> TypeGuard[Prompt]:
    """Tell one prompt (text, or token ids) from a list of prompts or of messages."""
    return isinstance(prompt, str) or (isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], int))


def _raise_error(completion: Completion) -> Completion:
    if completion.error is not None:
        raise completion.error
    return completion
