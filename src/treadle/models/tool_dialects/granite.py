"""The dialects of Granite 3 and Phi-4: JSON after ``<|tool_call|>``, which Phi closes and Granite does not."""

from __future__ import annotations

from functools import partial

from treadle.models.tool_dialects.call_json import calls_in
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, ToolSchemas
from treadle.models.tool_dialects.tail import TailParser

__all__ = ["CLOSING", "OPENING", "granite_parser", "phi_parser"]

OPENING = "<|tool_call|>"
CLOSING = "<|/tool_call|>"


def granite_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]``."""
    return TailParser(OPENING, partial(calls_in, tools=tools))


def phi_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``<|tool_call|>{"name": "f", "arguments": {"x": 1}}<|/tool_call|>``."""
    return MarkedParser((OPENING,), CLOSING, partial(calls_in, tools=tools))
