"""Answers of no tokens, for requests that only want their prompt counted or echoed."""

from __future__ import annotations

from treadle.engine.completion import Completion, CompletionChunk, Timings

__all__ = ["EmptyAnswer"]


class EmptyAnswer:
    """An ``AnswerStream`` that ends at once, without work for the engine.

    Args:
        num_tokens: How many tokens the prompt has.
        num_answers: How many answers were asked for.
    """

    def __init__(self, num_tokens: int, num_answers: int) -> None:
        self.prompt_tokens: int | None = num_tokens
        self.cached_tokens = 0
        self._left = [_empty(index, num_tokens) for index in reversed(range(num_answers))]

    def __aiter__(self) -> EmptyAnswer:
        return self

    async def __anext__(self) -> CompletionChunk:
        if not self._left:
            raise StopAsyncIteration
        completion = self._left.pop()
        return CompletionChunk("", (), 0, completion=completion, index=completion.index)

    async def aclose(self, *, is_complete: bool = False) -> None:  # noqa: ARG002
        """Leave out what was not read."""
        self._left.clear()


def _empty(index: int, num_tokens: int) -> Completion:
    return Completion("", [], "length", num_tokens, 0, Timings(0.0, 0.0, 0.0), logprobs=[], index=index)
