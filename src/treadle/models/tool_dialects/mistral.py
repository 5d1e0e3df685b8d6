"""The dialect of Mistral: ``[TOOL_CALLS]`` and then the calls, to the end of the answer."""

from __future__ import annotations

import re

from treadle.models.tool_dialects.call_json import DECODER, call_from, calls_in
from treadle.models.tool_dialects.parts import AnswerParser, Content, Part, ToolCall, ToolSchemas, overlap

__all__ = ["OPENING", "mistral_parser"]

OPENING = "[TOOL_CALLS]"
# Newer models write the name before the arguments, some with an id or a marker between the two.
_NAMED = re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]+\s*)?(?:\[ARGS\])?\s*(?=\{)")


class _TailParser:
    """Content up to the marker; what follows is read when the answer has ended."""

    def __init__(self, tools: ToolSchemas) -> None:
        self._tools = tools
        self._held = ""
        self._is_tail = False

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        self._held += text
        if self._is_tail:
            return []
        start = self._held.find(OPENING)
        self._is_tail = start >= 0
        kept = len(self._held) - start if self._is_tail else overlap(self._held, OPENING)
        content, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return [Content(content)] if content else []

    def finish(self) -> list[Part]:
        """Return the calls, or what was held back."""
        text, self._held = self._held, ""
        calls: list[Part] = []
        if self._is_tail:
            body = text.removeprefix(OPENING)
            calls += calls_in(body, self._tools) or _named_calls(body, self._tools)
        return calls or ([Content(text)] if text else [])


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
    return _TailParser(tools)
