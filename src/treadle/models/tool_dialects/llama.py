"""The dialect of Llama 3: the whole answer is JSON calls, with nothing around them.

Leaves to others: what is in the JSON (``call_json``).
"""

from __future__ import annotations

from treadle.models.tool_dialects.call_json import DECODER, call_from
from treadle.models.tool_dialects.parts import AnswerParser, Content, Part, ToolCall, ToolSchemas

__all__ = ["PYTHON_TAG", "llama_parser"]

PYTHON_TAG = "<|python_tag|>"
_FIRST_NAMES = tuple(f'"{name}"' for name in ("name", "arguments", "parameters", "type", "id", "description"))


class _BareJsonParser:
    """Calls one after the other, apart from each other by white space or semicolons, from the start of the answer.

    JSON answers are common, so only calls of offered functions count. From the first text that is no call on, all is
    content.
    """

    def __init__(self, tools: ToolSchemas) -> None:
        self._tools = tools
        self._held = ""  # from the end of the last call on
        self._is_content = False
        self._has_calls = False

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        if self._is_content:
            return [Content(text)] if text else []
        self._held += text
        parts: list[Part] = []
        while (call := self._next_call()) is not None:
            parts.append(call)
            self._has_calls = True
        if self._is_content:
            parts += self.finish()
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back."""
        text, self._held = self._held, ""
        if self._has_calls and not text.strip(" \t\r\n;"):
            return []
        return [Content(text)] if text else []

    def _next_call(self) -> ToolCall | None:
        """Take a whole call from what is held; ``None`` when there is none yet, or all the rest is content."""
        text = self._held.lstrip(" \t\r\n;" if self._has_calls else " \t\r\n")
        if PYTHON_TAG.startswith(text):
            return None  # also when nothing is left
        text = text.removeprefix(PYTHON_TAG).lstrip()
        if not text:
            return None
        self._is_content = not _may_be_call(text)
        if self._is_content or "}" not in text:
            return None
        try:
            value, end = DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return None
        call = call_from(value, self._tools)
        if call is None or call.name not in self._tools:
            self._is_content = True
            return None
        self._held = text[end:]
        return call


def _may_be_call(text: str) -> bool:
    """Tell whether a text may begin a call, by the first name in it: other JSON need not be held back."""
    if not text.startswith("{"):
        return False
    name = text[1:].lstrip()
    return not name or any(each.startswith(name) or name.startswith(each) for each in _FIRST_NAMES)


def llama_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls such as ``{"name": "f", "parameters": {"x": 1}}``."""
    return _BareJsonParser(tools)
