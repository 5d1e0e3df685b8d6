"""What the rooms above ask of an engine, whatever computes: the native core, another library, another machine.

Leaves to others: all of the work (``AsyncLLM`` for the native core).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk, Timings
    from treadle.engine.guide import Constraint
    from treadle.engine.prompt import EncodedPrompt, Messages, Prompt
    from treadle.engine.request import Priority
    from treadle.engine.sampling import SamplingParams
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
# Called with the length of each prompt that is queued; makes what is told about its answers.
Observe = Callable[[int, OpenTimings], AnswerObserver]


class AnswerStream(Protocol):
    """Answers to one prompt as they come; the last chunk of each carries its whole completion.

    Errors that end an answer are raised. Closing the stream, dropping it, or cancelling the task that waits for it ends
    the request and frees what it holds.
    """

    def __aiter__(self) -> AsyncIterator[CompletionChunk]: ...

    async def __anext__(self) -> CompletionChunk: ...

    async def aclose(self, *, is_complete: bool = False) -> None:
        """End what still runs, as complete if the reader has all that was asked for; may be called twice."""


class AsyncEngine(Protocol):
    """Answers any number of prompts at a time for one event loop or several."""

    @property
    def name(self) -> str:
        """Return the name of the model, for messages."""

    @property
    def context(self) -> int:
        """Return the most tokens that prompt and answer may have together."""

    @property
    def has_chat_template(self) -> bool:
        """Tell whether ``chat_prompt`` can work."""

    def chat_prompt(
        self, messages: Messages, *, tools: Sequence[dict[str, Any]] | None = None, **variables: Any
    ) -> EncodedPrompt:
        """Return a conversation as a prompt.

        Raises:
            TemplateError: The template refused the messages.
            UsageError: The model has no template, or a message is wrong.
        """

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of ``text``; control tokens in it are plain text."""

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``; control tokens have none."""

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        constraint: Callable[[], Constraint] | None = None,
    ) -> AnswerStream:
        """Answer a prompt; refuses at once what could never be served.

        Args:
            prompt: Text, token ids, or what ``chat_prompt`` returns.
            params: How to sample.
            priority: "interactive" goes before "batch".
            timeout: Seconds from now after which the answer ends with a ``DeadlineError``.
            constraint: Makes what an answer may be; called once for each of the ``params.n`` answers.

        Raises:
            UsageError: The prompt is empty or too long for the context, or the engine was closed.
            CapacityError: The prompt and its answer could never fit.
        """

    def stats(self) -> EngineStats:
        """Return how the engine is doing."""

    async def close(self) -> None:
        """End what still runs with an error and give everything back; may be called twice."""
