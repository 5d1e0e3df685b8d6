"""An engine elsewhere for programs without an event loop, with the methods of ``LLM``.

Leaves to others: asking it (``RemoteEngine``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from treadle.engine.completion import Completion, CompletionChunk, Timings
from treadle.engine.conversation import Conversation
from treadle.engine.prompt import is_prompt
from treadle.engine.remote.engine import RemoteEngine
from treadle.engine.sampling import SamplingParams
from treadle.errors import InternalError, TreadleError, UsageError

if TYPE_CHECKING:
    from treadle.engine.prompt import Messages, Prompt, PromptList
    from treadle.engine.remote.http import RemoteLimits
    from treadle.engine.remote.stream import RemoteStream
    from treadle.engine.request import Priority

__all__ = ["RemoteLLM"]

_Result = TypeVar("_Result")


class RemoteLLM:
    """A model of an OpenAI-compatible server, for any number of threads. Use it as a context manager, or ``close`` it.

    Args:
        url: The base URL of OpenAI clients, such as ``http://host:8000/v1``; ``#model`` may follow.
        model: The name the server has for the model; not needed where there is only one.
        api_key: By default that of the host in the file ``TREADLE_ENGINE_KEY_FILE``, or else
            ``TREADLE_ENGINE_API_KEY``.
        limits: Times, retries, connections.

    Raises:
        UsageError: The URL is none, or the server has no such model.
        RemoteError: The server cannot be reached, or it is no OpenAI-compatible one.
        CapacityError: It is too busy.
    """

    def __init__(
        self, url: str, model: str | None = None, *, api_key: str | None = None, limits: RemoteLimits | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="treadle-remote", daemon=True)
        self._thread.start()
        try:
            self._engine = self._run(RemoteEngine.connect(url, model, api_key=api_key, limits=limits))
        except BaseException:
            self._stop()
            raise

    report: None = None
    has_chat_template = True

    @property
    def name(self) -> str:
        """Return the name of the model, for messages."""
        return self._engine.name

    @property
    def context(self) -> int | None:
        """Return the most tokens that prompt and answer may have together, if the server tells."""
        return self._engine.context

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: PromptList,
        params: SamplingParams | None = None,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Prompt | PromptList,
        params: SamplingParams | None = None,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of a list of prompts side by side; as ``LLM.generate``.

        Raises:
            UsageError: The server refuses a prompt or a setting.
            RemoteError: It failed.
            CapacityError: It is too busy.
            DeadlineError: The time was up.
        """
        if is_prompt(prompt):
            return self._run(self._answer(prompt, params, priority or "interactive", timeout))
        prompts = prompt if isinstance(prompt, list) else [prompt]

        async def answer_all() -> list[Completion]:
            asked = (self._answer(each, params, priority or "batch", timeout) for each in prompts)
            found = await asyncio.gather(*asked, return_exceptions=True)
            return [_failed(each) if isinstance(each, BaseException) else each for each in found]

        return self._run(answer_all())

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        **variables: Any,
    ) -> Completion:
        """Answer a conversation; ``variables`` are for the chat template, where the server takes them.

        Raises as ``generate`` does, and UsageError for tools, whose calls have no place in a text.
        """
        return self._run(self._answer(_conversation(messages, variables), params, priority, timeout))

    def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams | None = None,
        *,
        priority: Priority = "interactive",
        timeout: float | None = None,
        **variables: Any,
    ) -> RemoteChunks:
        """Answer a prompt, or a conversation if given messages, chunk by chunk; raises as ``generate`` and ``chat`` do.

        The last chunk carries the whole ``completion``. Closing the iterator early ends the request.
        """
        asked = prompt if is_prompt(prompt) else _conversation(cast("Messages", prompt), variables)
        return RemoteChunks(
            self._run, self._run(self._engine.answer(asked, params, priority=priority, timeout=timeout))
        )

    def close(self) -> None:
        """End what still runs and close every connection; may be called twice."""
        if self._thread.is_alive():
            self._run(self._engine.close())
            self._stop()

    def __enter__(self) -> RemoteLLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _answer(
        self,
        prompt: Prompt | Conversation,
        params: SamplingParams | None,
        priority: Priority,
        timeout: float | None,
    ) -> Completion:
        stream = await self._engine.answer(prompt, params, priority=priority, timeout=timeout)
        found = [chunk.completion async for chunk in stream if chunk.completion is not None]
        first, *others = sorted(found, key=lambda each: each.index)
        return replace(first, alternatives=tuple(others))

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop.is_closed():
            work.close()
            raise UsageError(f"{self.name} was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class RemoteChunks(Iterator[CompletionChunk]):
    """Answers as they come: iterate over their chunks. Closing it early ends the request."""

    def __init__(self, run: Any, stream: RemoteStream) -> None:
        self._run = run
        self._stream = stream

    def __next__(self) -> CompletionChunk:
        chunk: CompletionChunk | None = self._run(anext(self._stream, None))
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """End the answers here; may be called twice."""
        self._run(self._stream.aclose())

    def __enter__(self) -> RemoteChunks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _conversation(messages: Messages, variables: dict[str, Any]) -> Conversation:
    if variables.get("tools"):
        raise UsageError("tools: their calls have no place in a text", hint="use `RemoteEngine.answer`")
    return Conversation(cast("Sequence[dict[str, Any]]", messages), variables=variables)


def _failed(error: BaseException) -> Completion:
    if not isinstance(error, TreadleError):
        error = InternalError(f"a request failed: {type(error).__name__}: {error}")
    return Completion("", [], "error", 0, 0, Timings(0.0, 0.0, 0.0), error=error)
