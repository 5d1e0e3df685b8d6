"""Reads the chunks of one answer, counts its calls and says why it ended.

Leaves to others: the shape of each API's answers (``server.routes``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.models.tool_dialects import ToolCall

if TYPE_CHECKING:
    from treadle.engine.completion import Completion, CompletionChunk
    from treadle.models.tool_dialects import Part

__all__ = ["ChoiceReader", "stop_reason"]


def stop_reason(completion: Completion | None) -> str | None:
    """Return the text of the caller's that ended an answer, as vLLM has it in its choices."""
    stopped_by = None if completion is None else completion.stopped_by
    return stopped_by if isinstance(stopped_by, str) else None


class ChoiceReader:
    """The state of one answer of a request; ``finish_reason`` is the engine's, or "tool_calls".

    Args:
        max_calls: How many calls may be made; the answer ends with the last of them.
    """

    def __init__(self, *, max_calls: int | None = None) -> None:
        self._max_calls = max_calls
        self.num_calls = 0
        self.num_tokens = 0
        self.finish_reason: str | None = None

    def read(self, chunk: CompletionChunk) -> list[Part]:
        """Return what a chunk adds to the answer."""
        if self.finish_reason is not None:
            return []
        self.num_tokens += chunk.num_tokens
        if chunk.completion is not None:
            self.num_tokens = chunk.completion.answer_tokens
        self.finish_reason = chunk.finish_reason
        taken: list[Part] = []
        for part in chunk.parts:
            taken.append(part)
            if isinstance(part, ToolCall):
                self.num_calls += 1
                if self.num_calls == self._max_calls:
                    self.finish_reason = "stop"
                    break
        if self.num_calls and self.finish_reason == "stop":
            self.finish_reason = "tool_calls"
        return taken
