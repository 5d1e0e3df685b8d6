"""The dialect of Hermes and Qwen: JSON between ``<tool_call>`` tags."""

from __future__ import annotations

from functools import partial

from treadle.models.tool_dialects.call_json import calls_in
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, ToolSchemas

__all__ = ["CLOSING", "OPENING", "hermes_parser"]

OPENING = "<tool_call>"
CLOSING = "</tool_call>"


def hermes_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>``."""
    return MarkedParser((OPENING,), CLOSING, partial(calls_in, tools=tools))
