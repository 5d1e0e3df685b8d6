"""The Python API for event loops: many answers at a time without a thread for each.

Leaves to others: loading (``engine.load``) and the requests behind the answers (``ModelHost``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle.engine.async_stream import AsyncCompletionStream
from treadle.engine.courier import Courier, Inbox
from treadle.engine.embedding import Embedding, EmbeddingOptions, Pooling
from treadle.engine.embedding_batch import EmbeddingBatch
from treadle.engine.host import ModelHost
from treadle.engine.hosted_model import HostedModel
from treadle.engine.load import load_model
from treadle.engine.prompt import EncodedPrompt, Messages, Prompt
from treadle.engine.ranking import SCORES, RankedDocument, RankingOptions, rank
from treadle.engine.request import Priority
from treadle.engine.sampling import SamplingParams
from treadle.engine.service import Service

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from treadle.engine.adapters import AdapterInfo
    from treadle.engine.contract import Observe
    from treadle.engine.conversation import Conversation
    from treadle.engine.load import LoadedModel, LoadOptions
    from treadle.engine.structured.guide import Constraint

__all__ = ["AsyncLLM"]


class AsyncLLM(HostedModel):
    """A model in memory that any number of tasks may ask; their requests are computed together.

    Use ``await AsyncLLM.load(...)``, with ``async with`` or ``close`` to give its memory back.

    ``observe``, if set, is called for each prompt that is queued; what it returns is told what becomes of the answers.
    """

    observe: Observe | None = None

    def __init__(self, loaded: LoadedModel) -> None:
        courier = Courier()
        self._route = courier.route
        self._host = ModelHost(loaded, after_step=courier.end_step)

    @classmethod
    async def load(cls, model: str | Path, **options: Unpack[LoadOptions]) -> AsyncLLM:
        """Load a model in a thread of its own; takes the arguments of ``LLM`` and raises as it does.

        Cancelling the task stops the loading. ``progress`` is called in that thread.
        """
        is_abandoned = threading.Event()
        progress = options.get("progress")

        def report(done_bytes: int, total_bytes: int) -> None:
            if is_abandoned.is_set():
                raise CancelledError
            if progress is not None:
                progress(done_bytes, total_bytes)

        options["progress"] = report
        try:
            return cls(await asyncio.to_thread(load_model, model, **options))
        except asyncio.CancelledError:
            is_abandoned.set()
            raise

    @property
    def vocab_size(self) -> int:
        """Return how many tokens the model knows."""
        return self._host.tokenizer.vocab_size

    def chat_prompt(
        self, messages: Messages, *, tools: Sequence[dict[str, Any]] | None = None, **variables: Any
    ) -> EncodedPrompt:
        """Return a conversation as a prompt, rendered with the model's own chat template.

        Args:
            messages: The turns so far, as mappings with "role" and "content".
            tools: Function definitions the model may call.
            variables: Given to the template as they are, such as ``enable_thinking``.

        Raises:
            TemplateError: The template refused the messages.
            UsageError: The model has no template, or a message is wrong.
        """
        return self._host.prompts.read_chat(messages, {"tools": tools, **variables})

    async def tokenize(self, prompt: str | Conversation) -> list[int]:
        """Return the token ids of a prompt, as ``answer`` reads it; control tokens in text are plain text."""
        encoded, _ = await asyncio.to_thread(self._host.prepare, prompt, None)
        return list(encoded.token_ids)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``; control tokens have none."""
        return await asyncio.to_thread(self._host.tokenizer.decode, list(token_ids))

    async def answer(
        self,
        prompt: Prompt | Conversation,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        adapter: str | None = None,
    ) -> AsyncCompletionStream:
        """Answer a prompt or a conversation chunk by chunk.

        Templates, long texts and forms are read in a thread, so that the loop goes on; the request is queued when that
        is done. The chunks of an answer to a conversation have ``parts``: content, reasoning and whole tool calls. Else
        as ``generate``.

        Raises:
            UsageError: The prompt, a message, a tool or the form is at fault, or as in ``generate``.
            TemplateError: The template refused the messages.
            CapacityError: As in ``generate``.
        """
        params = params or SamplingParams()
        encoded, constraint = await asyncio.to_thread(self._host.prepare, prompt, params.form)
        if params.form is not None:
            params = replace(params, form=None)
        return self.generate(
            encoded, params, priority=priority, timeout=timeout, constraint=constraint, adapter=adapter
        )

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        constraint: Callable[[], Constraint] | None = None,
        adapter: str | None = None,
    ) -> AsyncCompletionStream:
        """Answer a prompt chunk by chunk; to be called in a running event loop.

        The request is queued at once, before the stream is read. With ``params.n`` above 1 the chunks of the answers
        come as they are made, told apart by ``index``. An error that ends an answer is raised and ends all of them: a
        ``DeadlineError`` when the time was up.

        Args:
            prompt: Text, whose control tokens are plain text, token ids, or what ``chat_prompt`` returns.
            params: How to sample; by default ``SamplingParams()``.
            priority: "interactive" goes before "batch".
            timeout: Seconds from now in which the answer must have ended.
            constraint: Makes what an answer may be, token by token; called once for each answer.
            adapter: The name of an adapter that ``load_adapter`` has read.

        Raises:
            UsageError: The prompt is empty or too long for the context, there is no such adapter, or the model was
                closed.
            CapacityError: The prompt and its answer could never fit in the KV blocks.
        """
        return self._open(
            self._host.prompts.read(prompt), params or SamplingParams(), Service(priority, timeout, constraint, adapter)
        )

    async def embed(
        self,
        inputs: Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        priority: Priority = "interactive",
        timeout: float | None = None,
        on_embedding: Callable[[Embedding], None] | None = None,
    ) -> list[Embedding]:
        """Return the vectors of a list of inputs, in its order; takes the arguments of ``LLM.embed``.

        Cancelling the task ends the requests. ``on_embedding`` hears of each vector in the event loop as it comes.
        Raises as ``LLM.embed`` does.
        """
        options, service = EmbeddingOptions(pooling, normalize, dimensions), Service(priority, timeout)
        prompts = await asyncio.to_thread(self._host.prompts.read_all, inputs, truncate_prompt_tokens)
        return await self._read(prompts, options, service, on_embedding)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = True,
        truncate_prompt_tokens: int | None = None,
        priority: Priority = "interactive",
        timeout: float | None = None,
        on_embedding: Callable[[Embedding], None] | None = None,
    ) -> list[RankedDocument]:
        """Return how well documents answer a query, the best first; takes the arguments of ``LLM.rerank``.

        Cancelling the task ends the requests. ``on_embedding`` hears of each pair in the event loop as it is done.
        Raises as ``LLM.rerank`` does.
        """
        options, service = RankingOptions(top_n, normalize), Service(priority, timeout)
        pairs = await asyncio.to_thread(self._host.prompts.read_pairs, query, documents, truncate_prompt_tokens)
        return rank(await self._read(pairs, SCORES, service, on_embedding), options)

    async def load_adapter(self, name: str, path: str | Path, scale: float = 1.0) -> AdapterInfo:
        """Read an adapter in a thread, while answers go on; as ``LLM.load_adapter``."""
        return await asyncio.to_thread(self._host.adapters.load, name, path, scale)

    async def unload_adapter(self, name: str) -> None:
        """Refuse new requests for an adapter; as ``LLM.unload_adapter``."""
        self._host.adapters.unload(name)

    async def close(self) -> None:
        """End what still runs with an error and give the model's memory back; may be called twice."""
        await asyncio.to_thread(self._host.close)  # waits for the step that is under way

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _read(
        self,
        prompts: Sequence[EncodedPrompt],
        options: EmbeddingOptions,
        service: Service,
        on_embedding: Callable[[Embedding], None] | None,
    ) -> list[Embedding]:
        inbox = Inbox()
        with EmbeddingBatch(self._host, prompts, options, service, self._route(inbox)) as batch:
            while batch.advance():
                batch.take(await inbox.get(), on_embedding)
        return batch.results

    def _open(self, prompt: EncodedPrompt, params: SamplingParams, service: Service) -> AsyncCompletionStream:
        inbox = Inbox()
        answers = self._host.submit(prompt, params, service, self._route(inbox))
        observe = None if self.observe is None else partial(self.observe, len(prompt.token_ids))
        # A bound method of the host, so that an open stream keeps its model alive.
        return AsyncCompletionStream(answers, inbox, cancel=self._host.cancel, observe=observe)
