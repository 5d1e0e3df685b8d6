"""The dialect of Hermes and Qwen: JSON between ``<tool_call>`` tags.

Models for code leave the tags out at times. Without them a call counts only if it is JSON from the start of the answer
on, or a fenced block of JSON, and of an offered function.
"""

from __future__ import annotations

from functools import partial

from treadle.models.tool_dialects.call_json import calls_in
from treadle.models.tool_dialects.fenced import fenced_parser
from treadle.models.tool_dialects.llama import llama_parser
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, Content, Part, ToolSchemas

__all__ = ["CLOSING", "OPENING", "hermes_parser", "tagged_parser"]

OPENING = "<tool_call>"
CLOSING = "</tool_call>"


def tagged_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>``."""
    return MarkedParser((OPENING,), CLOSING, partial(calls_in, tools=tools))


def hermes_parser(tools: ToolSchemas) -> AnswerParser:
    """Read the same, and what is left of it where a model forgets the tags."""
    return _ChainedParser(tagged_parser(tools), _ChainedParser(llama_parser(tools), fenced_parser(tools)))


class _ChainedParser:
    """Reads in what is content for the ``first`` parser with the ``second``."""

    def __init__(self, first: AnswerParser, second: AnswerParser) -> None:
        self._first = first
        self._second = second

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        return self._read(self._first.push(text))

    def finish(self) -> list[Part]:
        """Return what was held back."""
        return [*self._read(self._first.finish()), *self._second.finish()]

    def _read(self, found: list[Part]) -> list[Part]:
        parts: list[Part] = []
        for part in found:
            parts += self._second.push(part.text) if isinstance(part, Content) else [*self._second.finish(), part]
        return parts
