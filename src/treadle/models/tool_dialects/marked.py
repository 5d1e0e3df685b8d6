"""Finds calls between an opening and a closing marker, whatever is written inside.

Leaves to others: the markers and the reading of what is between them (the dialects).
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.models.tool_dialects.parts import Content, Part, ToolCall, overlap

__all__ = ["MarkedParser"]


class MarkedParser:
    """Content with calls between markers in it.

    White space around calls is dropped: it separates calls and means nothing to a reader.

    Args:
        openings: Markers that may begin a call; none may begin another.
        closing: The marker that ends one.
        read: Reads what is between them; ``None`` when it is no call.
    """

    def __init__(self, openings: tuple[str, ...], closing: str, read: Callable[[str], list[ToolCall] | None]) -> None:
        self._openings = openings
        self._closing = closing
        self._read = read
        self._buffer = ""
        self._opening: str | None = None  # of the block being read
        self._search_from = 0
        self._follows_call = False

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        self._buffer += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back; a block without an end is content."""
        text, self._buffer = (self._opening or "") + self._buffer, ""
        self._opening = None
        if self._follows_call and not text.strip():
            return []
        return [Content(text)] if text else []

    def _step(self, parts: list[Part]) -> bool:
        """Advance by one marker; false when more text is needed."""
        return self._to_opening(parts) if self._opening is None else self._to_closing(parts)

    def _to_opening(self, parts: list[Part]) -> bool:
        if self._follows_call:
            self._buffer = self._buffer.lstrip()
        found = [(start, marker) for marker in self._openings if (start := self._buffer.find(marker)) >= 0]
        if found:
            start, self._opening = min(found)
            self._content(parts, self._buffer[:start].rstrip())
            self._buffer = self._buffer[start + len(self._opening) :]
            self._search_from = 0
            return True
        kept = max(overlap(self._buffer, marker) for marker in self._openings)
        kept = len(self._buffer) - len(self._buffer[: len(self._buffer) - kept].rstrip())
        self._content(parts, self._buffer[: len(self._buffer) - kept])
        self._buffer = self._buffer[len(self._buffer) - kept :]
        return False

    def _to_closing(self, parts: list[Part]) -> bool:
        end = self._buffer.find(self._closing, self._search_from)
        if end < 0:
            self._search_from = max(0, len(self._buffer) - len(self._closing) + 1)
            return False
        body = self._buffer[:end]
        calls = self._read(body)
        if calls is None and _ends_inside_string(body):
            self._search_from = end + 1  # the marker is text of an argument
            return True
        rest = self._buffer[end + len(self._closing) :]
        if calls is None:
            self._content(parts, f"{self._opening}{body}{self._closing}")
        else:
            parts.extend(calls)
            self._follows_call = True
        self._opening, self._buffer = None, rest
        return True

    def _content(self, parts: list[Part], text: str) -> None:
        if text:
            parts.append(Content(text))
            self._follows_call = False


def _ends_inside_string(text: str) -> bool:
    is_inside = is_escaped = False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = is_inside
        elif character == '"':
            is_inside = not is_inside
    return is_inside
