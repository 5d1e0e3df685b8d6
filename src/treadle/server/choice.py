"""Reads the chunks of one answer into parts, counts its calls and says why it ended.

Leaves to others: the shape of each API's answers (``server.routes``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.models.tool_dialects import AnswerParser, Part, ToolCall

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk

__all__ = ["ChoiceReader"]


class ChoiceReader:
    """The state of one answer of a request; ``finish_reason`` is the engine's, or "tool_calls".

    Args:
        parser: Reads the text.
        max_calls: How many calls may be made; the answer ends with the last of them.
    """

    def __init__(self, parser: AnswerParser, *, max_calls: int | None = None) -> None:
        self._parser = parser
        self._max_calls = max_calls
        self.num_calls = 0
        self.num_tokens = 0
        self.finish_reason: str | None = None

    def read(self, chunk: CompletionChunk) -> list[Part]:
        """Return what a chunk adds to the answer."""
        if self.finish_reason is not None:
            return []
        self.num_tokens += len(chunk.token_ids)
        parts = self._parser.push(chunk.text)
        if chunk.finish_reason is not None:
            parts += self._parser.finish()
        return self._count(parts, chunk.finish_reason)

    def _count(self, parts: list[Part], finish_reason: str | None) -> list[Part]:
        self.finish_reason = finish_reason
        taken: list[Part] = []
        for part in parts:
            taken.append(part)
            if isinstance(part, ToolCall):
                self.num_calls += 1
                if self.num_calls == self._max_calls:
                    self.finish_reason = "stop"
                    break
        if self.num_calls and self.finish_reason == "stop":
            self.finish_reason = "tool_calls"
        return taken
