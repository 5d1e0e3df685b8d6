"""The dialect of Mistral: ``[TOOL_CALLS]`` and then the calls, to the end of the answer."""

from __future__ import annotations

import re

from treadle.models.tool_dialects.call_json import DECODER, call_from, calls_in
from treadle.models.tool_dialects.parts import AnswerParser, ToolCall, ToolSchemas
from treadle.models.tool_dialects.tail import TailParser

__all__ = ["OPENING", "mistral_parser"]

OPENING = "[TOOL_CALLS]"
# Newer models write the name before the arguments, some with an id or a marker between the two.
_NAMED = re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]+\s*)?(?:\[ARGS\])?\s*(?=\{)")


def _named_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    calls: list[ToolCall] = []
    while text.strip():
        match = _NAMED.match(text)
        if match is None:
            return []
        try:
            arguments, end = DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            return []
        call = call_from({"name": match[1], "arguments": arguments}, tools)
        if call is None:
            return []
        calls.append(call)
        text = text[end:]
    return calls


def mistral_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``[TOOL_CALLS][{"name": "f", "arguments": {}}]`` or ``[TOOL_CALLS]f[ARGS]{}``."""
    return TailParser(OPENING, lambda body: calls_in(body, tools) or _named_calls(body, tools))
