"""What the rooms above ask of an engine, whatever computes: the native core, another library, another machine.

All that is asked is data: a conversation is messages and tools, and a form says what an answer must be. Whether that
becomes a prompt and a grammar or a request to somebody else is the engine's business, and so is reading the answer.

Leaves to others: all of the work (``AsyncLLM`` in this process, ``RemoteEngine`` elsewhere).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from treadle.engine.adapters import AdapterInfo
    from treadle.engine.completion import CompletionChunk, Timings
    from treadle.engine.conversation import Conversation
    from treadle.engine.embedding import Embedding, Pooling
    from treadle.engine.load import LoadReport
    from treadle.engine.prompt import Prompt
    from treadle.engine.ranking import RankedDocument
    from treadle.engine.request import Priority
    from treadle.engine.sampling import SamplingParams
    from treadle.engine.shared_cores import SharedCores
    from treadle.engine.statistics import EngineStats
    from treadle.errors import TreadleError

__all__ = ["AnswerObserver", "AnswerStream", "AsyncEngine", "Observe", "OpenTimings"]


class AnswerObserver(Protocol):
    """Told in the event loop what becomes of the answers to one prompt; must neither block nor raise."""

    def took(self, chunk: CompletionChunk) -> None:
        """Called with each chunk before its reader gets it."""

    def ended(self, unfinished: Mapping[int, Timings], error: TreadleError | None, *, is_complete: bool) -> None:
        """Called when answers ended before their last chunk, with the times of each by its index.

        That was because of ``error``, because their reader has all that was asked for (``is_complete``), or else
        because it left.
        """


# Tells the times up to now of each answer to a prompt that has not ended, by its index; empty where it cannot.
OpenTimings = Callable[[], Mapping[int, "Timings"]]
# Called with the length of each prompt that is queued, None if it shows with the first whole answer; makes what is told
# about its answers.
Observe = Callable[["int | None", OpenTimings], AnswerObserver]


class AnswerStream(Protocol):
    """Answers to one prompt as they come; the last chunk of each carries its whole completion.

    Errors that end an answer are raised. Closing the stream, dropping it, or cancelling the task that waits for it ends
    the request and frees what it holds.
    """

    @property
    def prompt_tokens(self) -> int | None:
        """Return how many tokens the prompt has, None as long as the engine has not told."""

    @property
    def cached_tokens(self) -> int:
        """Return how many of them were known already; certain once a completion is there."""

    def __aiter__(self) -> AsyncIterator[CompletionChunk]: ...

    async def __anext__(self) -> CompletionChunk: ...

    async def aclose(self, *, is_complete: bool = False) -> None:
        """End what still runs, as complete if the reader has all that was asked for; may be called twice."""


class AsyncEngine(Protocol):
    """Answers any number of prompts at a time.

    ``observe``, if set, is called for each prompt that is queued; what it returns is told what becomes of the answers.
    """

    observe: Observe | None

    @property
    def name(self) -> str:
        """Return the name of the model, for messages."""

    @property
    def context(self) -> int | None:
        """Return the most tokens that prompt and answer may have together, None if that is not known."""

    @property
    def vocab_size(self) -> int | None:
        """Return how many tokens the model knows, None if that is not known."""

    @property
    def report(self) -> LoadReport | None:
        """Return how the model was loaded, None if it is in no memory of ours."""

    @property
    def cores(self) -> SharedCores | None:
        """Return the cores that compute, to borrow some; None if they are not ours to borrow."""

    async def tokenize(self, prompt: str | Conversation) -> list[int]:
        """Return the token ids of a prompt as ``answer`` reads it; control tokens in text are plain text.

        Raises:
            UsageError: The engine does not tell, or as in ``answer``.
        """

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``; control tokens have none.

        Raises:
            UsageError: The engine does not tell, or an id is no token.
        """

    async def answer(
        self,
        prompt: Prompt | Conversation,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        adapter: str | None = None,
    ) -> AnswerStream:
        """Answer a prompt or a conversation; refuses what could never be served.

        The chunks of an answer to a conversation say in ``parts`` what it is made of: content, reasoning, tool calls.

        Args:
            prompt: Text, token ids, or a conversation.
            params: How to sample, when to end, and what the answer must be.
            priority: "interactive" goes before "batch".
            timeout: Seconds from now after which the answer ends with a ``DeadlineError``.
            adapter: The name of an adapter that ``load_adapter`` has read.

        Raises:
            UsageError: The prompt, a message, a tool or a setting is at fault, the prompt is too long for the context,
                the engine cannot do what is asked or has no such adapter, or it was closed.
            TemplateError: The chat template refused the messages.
            CapacityError: The prompt and its answer could never fit.
        """

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
        """Return the vectors of a list of inputs, in its order; cancelling the task frees what they hold.

        Args:
            inputs: Texts or lists of token ids.
            pooling: How one vector is made of the states of all tokens; by default as the model asks for.
            normalize: Whether to give every vector the length 1.
            dimensions: How many of the leading numbers to keep; by default all.
            truncate_prompt_tokens: Longer inputs lose their end; -1 stands for the context, None for an error.
            priority: "interactive" goes before "batch".
            timeout: Seconds from now after which a ``DeadlineError`` ends them all.
            on_embedding: Called in the event loop with each vector as it comes; must not block.

        Raises:
            UsageError: An input is empty or too long for the context, an argument is wrong, or the engine was closed.
            CapacityError: An input could never fit.
        """

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
        """Return how well documents answer a query, the best first; cancelling the task frees what they hold.

        Args:
            query: What is asked.
            documents: What may answer it.
            top_n: How many to return; by default all.
            normalize: Whether scores are from 0 to 1; otherwise they are logits.
            truncate_prompt_tokens: Documents lose their end where they and the query have more tokens, as in ``embed``.
            priority: "interactive" goes before "batch".
            timeout: Seconds from now after which a ``DeadlineError`` ends them all.
            on_embedding: Called in the event loop with what the model gave for each document; must not block.

        Raises:
            UsageError: The model does not rank, a text is wrong or too long, or the engine was closed.
            CapacityError: A document could never fit.
        """

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """Return the adapters that requests may name, the oldest first."""

    async def load_adapter(self, name: str, path: str | Path, scale: float = 1.0) -> AdapterInfo:
        """Read an adapter (LoRA, a GGUF file), which requests may name from then on.

        Raises:
            UsageError: The name is taken, there is no such file, or the engine takes no adapters.
            ModelFileError: The file is broken, or no adapter of this model.
            CapacityError: There are too many, or not enough memory for one more.
        """

    async def unload_adapter(self, name: str) -> None:
        """Refuse new requests for an adapter, whose memory is freed when the last that runs has ended.

        Raises:
            UsageError: There is no adapter of that name.
        """

    def stats(self) -> EngineStats | None:
        """Return how the engine is doing, None if others compute."""

    async def close(self) -> None:
        """End what still runs with an error and give everything back; may be called twice."""
