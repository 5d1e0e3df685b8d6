"""The dialect of gpt-oss: an answer is several messages, each with a channel and sometimes a recipient in its header.

The channel "analysis" is reasoning, "final" and "commentary" are content, and a message to a function is a call.
"""

from __future__ import annotations

import re

from treadle.models.tool_dialects.call_json import call_from
from treadle.models.tool_dialects.parts import AnswerParser, Content, Part, Reasoning, ToolSchemas, overlap

__all__ = ["CHANNEL", "CONTROL_TOKENS", "MESSAGE", "harmony_parser"]

CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
_START = "<|start|>"
CONTROL_TOKENS = (CHANNEL, MESSAGE, _START, "<|end|>", "<|constrain|>")
_BEGINNINGS = (CHANNEL, _START, " to=", "to=")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, CHANNEL)
_MAX_HEADER = 256
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."


class _HarmonyParser:
    """Reads header and message in turn; an answer that begins without a header is content."""

    def __init__(self, tools: ToolSchemas) -> None:
        self._tools = tools
        self._held = ""
        self._is_message = False
        self._is_first = True
        self._first_end = 0  # after a mark that turned out to begin no header, which is text
        self._header = ""
        self._recipient: str | None = None

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        self._held += text
        parts: list[Part] = []
        while self._read_message(parts) if self._is_message else self._read_header():
            pass
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back; the framing of a message that did not begin is dropped."""
        held, self._held = self._held, ""
        if self._is_message:
            return self._whole(held, is_ended=False)
        is_framing = held.startswith((CHANNEL, _START)) and _RECIPIENT.search(held) is None
        return [] if not held or is_framing or (not self._is_first and not held.strip()) else [Content(held)]

    def _read_header(self) -> bool:
        """Take a header from what is held; false when more text is needed."""
        begin = self._held if self._is_first else self._held.lstrip()
        if any(each.startswith(begin) and each != begin for each in _BEGINNINGS):
            return False
        end = begin.find(MESSAGE)
        if begin.startswith(_BEGINNINGS) and 0 <= end <= _MAX_HEADER:
            self._header, self._held = begin[:end] + MESSAGE, begin[end + len(MESSAGE) :]
            self._first_end = 0
        elif begin.startswith(_BEGINNINGS) and len(begin) < _MAX_HEADER + len(MESSAGE):
            return False
        else:
            self._header, self._held = "", begin
            self._first_end = 1 if begin.startswith(_BEGINNINGS) else 0
        recipient = _RECIPIENT.search(self._header)
        self._recipient = None if recipient is None else recipient[1]
        self._is_message, self._is_first = True, False
        return True

    def _read_message(self, parts: list[Part]) -> bool:
        """Take what is certain of a message; false when more text is needed."""
        found = [(start, end) for end in _ENDS if (start := self._held.find(end, self._first_end)) >= 0]
        if found:
            start, end = min(found)
            parts += self._whole(self._held[:start], is_ended=True)
            self._held = self._held[start if end in (_START, CHANNEL) else start + len(end) :]
            self._is_message = False
            return True
        if self._recipient is None:
            kept = max(overlap(self._held, end) for end in _ENDS)
            parts += self._text(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]
            self._first_end = 0
        return False

    def _whole(self, text: str, *, is_ended: bool) -> list[Part]:
        """Return the rest of a message."""
        if self._recipient is None:
            return self._text(text)
        if self._tools and self._recipient.startswith(_FUNCTIONS) and (is_ended or text.strip()):
            name = self._recipient.removeprefix(_FUNCTIONS)
            call = call_from({"name": name, "arguments": text}, self._tools)
            if call is not None:
                return [call]
        return [Content(self._header + text)]

    def _text(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Reasoning(text) if f"{CHANNEL}analysis" in self._header else Content(text)]


def harmony_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>``."""
    return _HarmonyParser(tools)
